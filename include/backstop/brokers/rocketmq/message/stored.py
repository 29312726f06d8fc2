"""Reads messages as a broker stores them: where they lie, their properties, and their content unpacked.

What cannot be unpacked has no content, and says why: compressed bytes never pass for a message.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from backstop.brokers.rocketmq.message.unpack import Unreadable, unpack
from backstop.brokers.rocketmq.wire.frames import Malformed

MAGIC_V1, MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
COMPRESSED, BORN_V6, STORED_V6, INNER_BATCH = 1 << 0, 1 << 4, 1 << 5, 1 << 7
_HEAD = struct.Struct(">iIIiiqqiq")
_LONG, _INT, _SHORT = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">h")
_TAIL = struct.Struct(">iqi")
_MIN = 91
"""A message of the first version with empty body, topic and properties."""
_START = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999 = 253_370_764_800_000
"""Milliseconds since 1970. The broker keeps whatever a producer writes as the time of birth."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One message in a queue."""

    topic: str
    queue_id: int
    offset: int
    physical_offset: int
    store_host: str
    """host:port of the broker that took it."""
    store_id: str
    """The broker's own id of it: store host and physical offset (what Java calls the message id of a send)."""
    born_at: datetime
    """By the producer's clock; 1970 where it is none."""
    stored_at: datetime
    """By the broker's clock."""
    reconsume_times: int
    sys_flag: int
    flag: int
    body: bytes
    """As it is stored."""
    crc: int | None = None
    """The checksum that the broker wrote of it; null: none is held against it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    cut_off: bool = False
    """Its properties are not all there. A broker that is killed while it writes a message leaves NUL characters in place of the
    rest, and its recovery checks the body alone. Our producers never write NUL into properties."""

    def unpack(self) -> tuple[bytes | None, str | None]:
        """The content; null: it cannot be unpacked, and the second says why, as the end of a sentence.

        Unpacked on each call: a body of a few KiB may become 64 MiB, which only whoever needs the content is to hold.
        """
        if self.cut_off:
            return (
                None,
                "its properties are cut off: they hold NUL characters, as when a broker dies while it writes a message",
            )
        return _content(self.body, self.crc, self.sys_flag)

    @property
    def unique_key(self) -> str | None:
        """The producer's id of it, the same for every redelivery."""
        return self.properties.get("UNIQ_KEY")


def read_stored(buffer: bytes) -> list[Stored]:
    """All messages of an answer's body. Raises Malformed: a message that is cut off, or is none, ends the trust in all."""
    found: list[Stored] = []
    at = 0
    with memoryview(buffer) as whole:
        while at < len(buffer):
            if len(buffer) - at < 4:
                raise Malformed(f"{len(buffer) - at} bytes are left after {len(found)} messages")
            (size,) = _INT.unpack_from(whole, at)
            if not _MIN <= size <= len(buffer) - at:
                raise Malformed(f"a message of {size} bytes, and {len(buffer) - at} are there")
            with whole[at : at + size] as one:
                try:
                    found.append(_read_one(one))
                except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
                    raise Malformed(
                        f"message {len(found) + 1} cannot be read: {type(error).__name__}: {error}"
                    ) from error
            at += size
    return found


def _read_one(one: memoryview) -> Stored:
    _, magic, crc, queue_id, flag, offset, physical, sys_flag, born = _HEAD.unpack_from(one)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise Malformed(f"a message of the unknown kind {magic:08X}")
    at = _HEAD.size + (16 if sys_flag & BORN_V6 else 4) + 4
    (stored,) = _LONG.unpack_from(one, at)
    at += 8
    host, at = (
        bytes(_cut(one, at, 16 if sys_flag & STORED_V6 else 4)),
        at + (16 if sys_flag & STORED_V6 else 4),
    )
    (port,) = _INT.unpack_from(one, at)
    reconsumed, _, length = _TAIL.unpack_from(one, at + 4)
    at += 4 + _TAIL.size
    body = bytes(_cut(one, at, length))
    at += length
    if magic == MAGIC_V2:
        (length,) = _SHORT.unpack_from(one, at)
        at += 2
    else:
        length = one[at]
        at += 1
    topic = bytes(_cut(one, at, length)).decode()
    at += length
    (length,) = _SHORT.unpack_from(one, at)
    properties = bytes(_cut(one, at + 2, length))
    return Stored(
        topic,
        queue_id,
        offset,
        physical,
        _endpoint(host, port),
        (host + _INT.pack(port) + _LONG.pack(physical)).hex().upper(),
        _START + timedelta(milliseconds=born if 0 <= born < _YEAR_9999 else 0),
        _START + timedelta(milliseconds=stored),
        reconsumed,
        sys_flag,
        flag,
        body,
        crc,
        read_properties(properties.decode(errors="backslashreplace")),
        b"\0" in properties,
    )


def _content(body: bytes, crc: int | None, sys_flag: int) -> tuple[bytes | None, str | None]:
    if body and crc is not None and zlib.crc32(body) & 0x7FFFFFFF != crc & 0x7FFFFFFF:
        return None, "its content is not the one that was stored (the checksum differs)"
    if sys_flag & INNER_BATCH:
        return None, "it is a batch that only a batch consumer can take apart"
    if not sys_flag & COMPRESSED:
        return body, None
    try:
        return unpack(body, sys_flag >> 8 & 7), None
    except Unreadable as error:
        return None, str(error)


def read_properties(text: str) -> dict[str, str]:
    """Name and value of each property, in their order; of two of one name the last counts, as for the broker."""
    found: dict[str, str] = {}
    for one in text.split("\x02"):
        name, parted, value = one.partition("\x01")
        if parted:
            found[name] = value
    return found


def read_store_id(store_id: str) -> tuple[str, int] | None:
    """(host:port, physical offset) of a broker's id; null for anything else."""
    try:
        raw = bytes.fromhex(store_id)
    except ValueError:
        return None
    if len(raw) not in (16, 28) or len(store_id) != 2 * len(raw):
        return None
    (port,), (physical,) = (
        _INT.unpack_from(raw, len(raw) - 12),
        _LONG.unpack_from(raw, len(raw) - 8),
    )
    if not 0 < port < 65536 or physical < 0:
        return None
    return _endpoint(raw[:-12], port), physical


def _endpoint(host: bytes, port: int) -> str:
    if len(host) == 16:
        return f"[{socket.inet_ntop(socket.AF_INET6, host)}]:{port}"
    return f"{socket.inet_ntoa(host)}:{port}"


def _cut(one: memoryview, at: int, length: int) -> memoryview:
    if length < 0 or at + length > len(one):
        raise Malformed(f"a part of {length} bytes in a message of {len(one)}")
    return one[at : at + length]
