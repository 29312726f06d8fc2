"""Names every Redis key of the guard, and writes and reads the record of a message.

Names of a group or topic are percent-encoded; the message id ends its key, so it may hold anything. The keys of one
bucket of a group share a hash tag: a script touches one slot of a cluster, and a sweep works bucket by bucket.

    {backstop:G:B}:m:T:ID       string  one record (lua/record.lua says how it is written)
    {backstop:G:B}:expiry       zset    consuming records: key of the message -> end of its lease (ms)
    {backstop:G:B}:conflicts    hash    key of the message -> when, and what came with another content

Every key has a time to live. B is the CRC-32 of `T:ID` modulo BUCKETS.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

from backstop.model.errors import ContractBroken
from backstop.model.records import Key

PREFIX = "backstop"
BUCKETS = 16
"""Part of the key format: another number would not find what is stored."""


class Record(NamedTuple):
    """What stands in Redis of one message. Times are milliseconds since 1970 by the server's clock."""

    state: str
    """C consuming, D done, F failed, E given back or reclaimed."""
    token: str
    ends: int
    fence: int
    attempts: int
    content_version: int
    payload_hash: str | None
    """16 hex digits of its SHA-256; null: unknown."""
    owner_host: str


class RedisKeys:
    """The keys of one group."""

    def __init__(self, group: str, prefix: str = PREFIX) -> None:
        self.group = group
        tags = [f"{{{prefix}:{encoded(group)}:{bucket}}}" for bucket in range(BUCKETS)]
        self.expiry = [f"{tag}:expiry".encode() for tag in tags]
        self.conflicts = [f"{tag}:conflicts".encode() for tag in tags]
        self._messages = [f"{tag}:m:".encode() for tag in tags]

    def bucket_and_key(self, topic: str, message_id: str) -> tuple[int, bytes]:
        """The bucket of a message and its key."""
        suffix = f"{encoded(topic)}:{message_id}".encode()
        bucket = crc32(suffix) % BUCKETS
        return bucket, self._messages[bucket] + suffix

    def in_buckets(
        self, messages: Sequence[tuple[str, str]], at_most: int
    ) -> Iterator[tuple[int, list[int], list[bytes]]]:
        """(topic, id) by bucket, `at_most` a part: the bucket, their numbers in `messages`, their keys."""
        numbers: list[list[int]] = [[] for _ in range(BUCKETS)]
        keys: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        starts, last, prefix = self._messages, None, b""
        # `bucket_and_key`, written out: a batch is mostly of one topic, and each call would be felt.
        for number, (topic, message_id) in enumerate(messages):
            if topic is not last:
                last, prefix = topic, f"{encoded(topic)}:".encode()
            suffix = prefix + message_id.encode()
            bucket = crc32(suffix) % BUCKETS
            numbers[bucket].append(number)
            keys[bucket].append(starts[bucket] + suffix)
        for bucket, found in enumerate(numbers):
            for at in range(0, len(found), at_most):
                yield bucket, found[at : at + at_most], keys[bucket][at : at + at_most]

    def message(self, key: bytes, bucket: int | None = None) -> Key:
        """The message of a key of ours, most likely of this bucket. Raises ContractBroken for another key."""
        for start in (
            self._messages if bucket is None else (self._messages[bucket], *self._messages)
        ):
            if key.startswith(start):
                topic, colon, message_id = key[len(start) :].decode().partition(":")
                if colon:
                    return Key(_decoded(topic), message_id)
        raise ContractBroken(
            f"{key!r} is not a key of a message of {self.group!r}.",
            unaffected="It was not touched.",
            next_step="Give Backstop's guard a Redis database of its own.",
        )


@lru_cache(maxsize=4096)
def encoded(name: str) -> str:
    """A name as it stands in a key: no ':', '{', '}' or '|' of its own."""
    return quote(name, safe="", errors="strict")


@lru_cache(maxsize=4096)
def _decoded(name: str) -> str:
    return unquote(name)


def hash_text(payload_hash: bytes | None) -> str:
    """As a record holds it: enough of SHA-256 to tell two contents of one id apart."""
    return "-" if payload_hash is None else payload_hash[:8].hex()


def read_record(text: bytes) -> Record:
    """Raises ContractBroken for what is no record."""
    try:
        record = text.decode("utf-8", "replace")
        version, hash_, host = record[67:].split("|", 3)[:3]
        return Record(
            record[0],
            record[34:66],
            int(record[1:14]),
            int(record[14:30]),
            int(record[30:34]),
            int(version),
            None if hash_ == "-" else hash_,
            _decoded(host),
        )
    except (ValueError, IndexError):
        raise ContractBroken(
            "A record of the guard in Redis cannot be read.",
            unaffected="It was not touched.",
            next_step="See which program writes under Backstop's prefix, and give each a database or a server of its own.",
        ) from None


def milliseconds(length: timedelta) -> int:
    return max(1, round(length.total_seconds() * 1000))
