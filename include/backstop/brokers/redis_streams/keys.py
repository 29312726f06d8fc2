"""Names every Redis key of the broker, and the queue of a message.

Every name of a topic or group is percent-encoded, so that ':' '%' '{' '}' and any Unicode survive. All keys
of one topic share the hash tag {topic}: a script never touches two slots.

    backstop:{T}:topic                hash    queues (their number)
    backstop:{T}:queue:N              stream  the entries; offset n has the id <n+1>-0
    backstop:{T}:queue:N:life         hash    epoch, next (offset), last_time, max_bytes
    backstop:{T}:queue:N:held:G       zset    entry id -> the instant (ms) from which it is due
    backstop:{T}:queue:N:fence:G      text    the highest fence under which an owner of the queue has read
    backstop:{T}:dead:G               stream  the dead letters of group G from topic T
    backstop:group:G                  set     the topics that group G ever took
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote
from zlib import crc32

from backstop.model.errors import ContractBroken


def encode(name: str) -> str:
    """A name as it stands in a key. Raises ContractBroken for an empty name or one that is not valid
    Unicode."""
    try:
        encoded = quote(name, safe="", errors="strict")
    except UnicodeEncodeError:
        encoded = ""
    if not encoded:
        raise ContractBroken(
            f"{name!r} cannot name a topic or a group.",
            unaffected="Nothing was stored or sent under it.",
            next_step="Use a name of at least one character that is valid Unicode.",
        )
    return encoded


def queue_of(partition: str, queues: int) -> int:
    """The queue of a message: CRC-32 of its partition key (else of its id) in UTF-8, modulo the topic's
    queues."""
    return crc32(partition.encode()) % queues


def offset_of(entry_id: bytes | str) -> int:
    """The offset of an entry, of which ids are one more. Ids are compared as integers, never as text."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return int(text.partition("-")[0]) - 1


def id_of(offset: int) -> str:
    return f"{offset + 1}-0"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix (several systems may share a server)."""

    prefix: str = "backstop"

    def topic(self, topic: str) -> str:
        return f"{self.prefix}:{{{encode(topic)}}}:topic"

    def stream(self, topic: str, queue: int) -> str:
        return f"{self.prefix}:{{{encode(topic)}}}:queue:{queue}"

    def life(self, topic: str, queue: int) -> str:
        return f"{self.stream(topic, queue)}:life"

    def held(self, topic: str, queue: int, group: str) -> str:
        return f"{self.stream(topic, queue)}:held:{encode(group)}"

    def fence(self, topic: str, queue: int, group: str) -> str:
        return f"{self.stream(topic, queue)}:fence:{encode(group)}"

    def dead(self, topic: str, group: str) -> str:
        return f"{self.prefix}:{{{encode(topic)}}}:dead:{encode(group)}"

    def group(self, group: str) -> str:
        return f"{self.prefix}:group:{encode(group)}"
