"""Names every Redis key of the guard, and writes and reads the record of a message.

Names of a group or topic are percent-encoded; the message id ends its key, so it may hold anything. The keys of one
bucket of a group share a hash tag: a script touches one slot of a cluster, and a sweep works bucket by bucket.

    {backstop:G:B}:m:T:ID       string  one record (lua/record.lua says how it is written)
    {backstop:G:B}:expiry       zset    consuming records: key of the message -> end of its lease (ms)
    {backstop:G:B}:conflicts    hash    key of the message -> when, and what came with another content

Every key has a time to live. B is the CRC-32 of `T:ID` modulo BUCKETS.
"""

import re
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
_RECORD = re.compile(rb"([CDFE])(\d{13})(\d{16})(\d{4})(.{32})\|(\d+)\|([^|]*)\|([^|]*)", re.DOTALL)
"""state, end, fence, attempts, token, version, hash, host: as lua/record.lua writes it; an error may follow."""
_STATES = {b"C": "C", b"D": "D", b"F": "F", b"E": "E"}
NOTHING, UNREADABLE = ("", 0, ""), ("?", 0, "")
"""What `read_leases` says of what is no record: there is none, or it cannot be read."""


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

    def message(self, key: bytes) -> Key:
        """The message of a key of ours. Raises ContractBroken for another key."""
        for start in self._messages:
            if found := _message(key, start):
                return found
        raise ContractBroken(
            f"{key!r} is not a key of a message of {self.group!r}.",
            unaffected="It was not touched.",
            next_step="Give Backstop's guard a Redis database of its own.",
        )

    def messages(self, keys: Sequence[bytes], bucket: int) -> list[Key | None]:
        """The message of each key, most likely of this bucket; null: it is no key of ours."""
        start, others = self._messages[bucket], self._messages
        return [
            _message(key, start) or next(filter(None, (_message(key, one) for one in others)), None)
            for key in keys
        ]


def _message(key: bytes, start: bytes) -> Key | None:
    """The message of a key that begins so; null: it does not, or goes on as none of ours does."""
    if not key.startswith(start):
        return None
    try:
        topic, colon, message_id = key[len(start) :].decode().partition(":")
    except UnicodeDecodeError:
        return None
    return Key(_decoded(topic), message_id) if colon else None


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
    found = _RECORD.match(text)
    if found is None:
        raise ContractBroken(
            "A record of the guard in Redis cannot be read.",
            unaffected="It was not touched.",
            next_step="See which program writes under Backstop's prefix, and give each a database or a server of its own.",
        )
    state, ends, fence, attempts, token, version, hash_, host = found.groups()
    return Record(
        _STATES[state],
        token.decode("utf-8", "replace"),
        int(ends),
        int(fence),
        int(attempts),
        int(version),
        None if hash_ == b"-" else hash_.decode("utf-8", "replace"),
        _host(host),
    )


def read_leases(texts: Sequence[bytes]) -> list[tuple[str, int, str]]:
    """State, end and host of each record, which is all that a sweep of thousands needs."""
    leases = []
    for text, found in zip(texts, map(_RECORD.match, texts), strict=True):
        if found:
            state, ends, host = found.group(1, 2, 8)
            leases.append((_STATES[state], int(ends), _host(host)))
        else:
            leases.append(UNREADABLE if text else NOTHING)
    return leases


@lru_cache(maxsize=4096)
def _host(name: bytes) -> str:
    return unquote(name.decode("utf-8", "replace"))


def milliseconds(length: timedelta) -> int:
    return max(1, round(length.total_seconds() * 1000))
