"""Stored messages of RocketMQ: read as they lie on disk, unpacked, and never a part of one for a whole."""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstop.brokers.rocketmq.message import unpack
from backstop.brokers.rocketmq.message.read_dead_letter import read_dead_letter, ref_of
from backstop.brokers.rocketmq.message.stored import (
    Stored,
    read_properties,
    read_store_id,
    read_stored,
)
from backstop.brokers.rocketmq.wire.frames import Malformed

START = datetime(1970, 1, 1, tzinfo=UTC)
# By hand, from the description of the format: a message of the first version in the queue 3 of the topic "ab".
BY_HAND = bytes.fromhex(
    "00000066"
    "DAA320A7"
    "3610A686"
    "00000003"
    "00000000"  # size, kind, checksum, queue, flag
    "0000000000000005"
    "0000000000000200"
    "00000000"  # offset, physical offset, flags
    "0000018BCFE56800"
    "0A000001"
    "00001F90"
    "0000018BCFE56BE8"
    "7F000001"
    "00002A9F"  # born, its host; stored, its host
    "00000002"
    "0000000000000000"  # redeliveries, prepared
    "00000005"
    "68656C6C6F"
    "02"
    "6162"
    "0004"
    "61016202"  # "hello", "ab", a property a=b
)


def packed(
    body: bytes = b"hello",
    *,
    topic: bytes = b"orders",
    properties: bytes = b"",
    sys_flag: int = 0,
    crc: int | None = None,
    second: bool = False,
    magic: int | None = None,
    offset: int = 5,
    born: int = 1_700_000_000_000,
) -> bytes:
    """One message, written by the description of the format."""
    birthplace = bytes([10, 0, 0, 1]) if not sys_flag & 16 else bytes(15) + b"\x01"
    host = bytes([127, 0, 0, 1]) if not sys_flag & 32 else bytes(15) + b"\x01"
    rest = (
        struct.pack(">I", (0xDAA320AB if second else 0xDAA320A7) if magic is None else magic)
        + struct.pack(">I", (zlib.crc32(body) & 0x7FFFFFFF) if crc is None else crc)
        + struct.pack(">iiqqiq", 3, 0, offset, 512, sys_flag, born)
        + birthplace
        + struct.pack(">i", 8080)
        + struct.pack(">q", 1_700_000_001_000)
        + host
        + struct.pack(">i", 10911)
        + struct.pack(">iq", 2, 0)
        + struct.pack(">i", len(body))
        + body
        + (struct.pack(">h", len(topic)) if second else bytes([len(topic)]))
        + topic
        + struct.pack(">h", len(properties))
        + properties
    )
    return struct.pack(">i", 4 + len(rest)) + rest


def one(data: bytes) -> Stored:
    [found] = read_stored(data)
    return found


@pytest.mark.parametrize("born", [-1, 2**63 - 1, 1_700_000_000_000_000_000])
def test_a_time_of_birth_that_is_none_does_not_make_a_message_unreadable(born: int) -> None:
    assert (one(packed(born=born)).born_at, one(packed(born=born)).unpack()) == (
        START,
        (b"hello", None),
    )


def test_a_message_written_by_hand_is_read() -> None:
    assert one(BY_HAND) == Stored(
        "ab",
        3,
        5,
        512,
        "127.0.0.1:10911",
        "7F00000100002A9F0000000000000200",
        START + timedelta(milliseconds=1_700_000_000_000),
        START + timedelta(milliseconds=1_700_000_001_000),
        2,
        0,
        0,
        b"hello",
        zlib.crc32(b"hello") & 0x7FFFFFFF,
        {"a": "b"},
    )


@pytest.mark.parametrize("sys_flag", [0, 16, 32, 48], ids=["v4", "born v6", "stored v6", "both v6"])
@pytest.mark.parametrize("second", [False, True], ids=["first version", "second version"])
def test_both_versions_and_both_kinds_of_hosts_are_read(sys_flag: int, second: bool) -> None:
    topic = b"t" * (200 if second else 127)
    found = one(
        packed(
            topic=topic, sys_flag=sys_flag, second=second, properties=b"a\x01b\x02c\x01\xc3\xbc\x02"
        )
    )
    assert (found.topic, found.unpack()[0], found.properties) == (
        topic.decode(),
        b"hello",
        {"a": "b", "c": "ü"},
    )
    host = "[::1]:10911" if sys_flag & 32 else "127.0.0.1:10911"
    assert found.store_host == host
    assert read_store_id(found.store_id) == (host, 512)


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=6), st.integers(0, 1000))
def test_messages_of_one_answer_are_told_apart_and_any_cut_is_told(
    messages: list[tuple[bytes, bool]], cut: int
) -> None:
    parts = [packed(body, second=second, offset=at) for at, (body, second) in enumerate(messages)]
    data = b"".join(parts)
    assert [(m.offset, m.unpack()[0]) for m in read_stored(data)] == [
        (at, body) for at, (body, _) in enumerate(messages)
    ]
    ends = {sum(map(len, parts[:n])) for n in range(len(parts) + 1)}
    if (cut := min(cut, len(data))) not in ends:
        with pytest.raises(Malformed):
            read_stored(data[:cut])


@settings(deadline=None)
@given(st.integers(0, 200), st.binary(min_size=1, max_size=8), st.booleans())
def test_whatever_is_wrong_in_a_message_it_is_malformed_or_a_message(
    at: int, wrong: bytes, second: bool
) -> None:
    data = bytearray(packed(properties=b"a\x01b\x02", second=second))
    data[at : at + len(wrong)] = wrong
    with suppress(Malformed):
        read_stored(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        packed(magic=0xCBD43194),
        packed(magic=0),
        b"\x00\x00\x00",
        b"\x7f\xff\xff\xff" + bytes(200),
        bytes(200),
        b"\xff\xff\xff\xff" + bytes(200),
        packed() + b"\x00",
        packed()[:-1],
        packed(topic=b"\xff\xfe"),
    ],
    ids=["end of a file", "zero", "short", "huge", "zeros", "negative", "rest", "cut", "topic"],
)
def test_what_is_no_message_ends_the_trust_in_the_answer(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_stored(data)


def test_a_wrong_checksum_leaves_no_content_and_says_so() -> None:
    found = one(packed(crc=7))
    content, unreadable = found.unpack()
    assert (content, found.body) == (None, b"hello")
    assert unreadable and "checksum" in unreadable
    assert one(packed(b"", crc=7)).unpack()[0] == b"", "of nothing there is no checksum"


def arrow(content: bytes, codec: str) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


CONTENT = b"".join(b"%d " % (i * 7919 % 100_003) for i in range(20_000))
COMPRESSED = {
    "zlib of old clients": (1, zlib.compress(CONTENT)),
    "zlib": (1 | 3 << 8, zlib.compress(CONTENT)),
    "lz4": (1 | 1 << 8, arrow(CONTENT, "lz4")),
    "zstd": (1 | 2 << 8, arrow(CONTENT, "zstd")),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_content_is_unpacked(kind: str) -> None:
    sys_flag, body = COMPRESSED[kind]
    found = one(packed(body, sys_flag=sys_flag))
    assert (*found.unpack(), found.body) == (CONTENT, None, body)


WHOLE = b"UNIQ_KEY\x017F\x02WAIT\x01true\x02backstop-message-id\x01m-12\x02TAGS\x01eu\x02"
CUTS = [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999]
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    **{f"cut at {cut}": (lambda body, cut=cut: body[: int(len(body) * cut)]) for cut in CUTS},
    "wrong": lambda body: b"no such thing",
    "empty": lambda body: b"",
}


@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize("how", BROKEN)
def test_compressed_content_that_is_broken_is_none(kind: str, how: str) -> None:
    sys_flag, body = COMPRESSED[kind]
    found = one(packed(BROKEN[how](body), sys_flag=sys_flag))
    content, unreadable = found.unpack()
    assert content is None and unreadable


@pytest.mark.parametrize("kind", [k for k in COMPRESSED if k != "zlib of old clients"])
def test_of_a_bomb_no_more_is_unpacked_than_a_message_can_hold(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_CONTENT", len(CONTENT) - 1)
    sys_flag, body = COMPRESSED[kind]
    found = one(packed(body, sys_flag=sys_flag))
    content, unreadable = found.unpack()
    assert content is None and unreadable and "larger" in unreadable
    monkeypatch.setattr(unpack, "MAX_CONTENT", len(CONTENT))
    assert one(packed(body, sys_flag=sys_flag)).unpack()[0] == CONTENT


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_without_a_library_the_content_is_none_and_its_name_is_told(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_nothing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", import_nothing)
    sys_flag, body = COMPRESSED[kind]
    found = one(packed(body, sys_flag=sys_flag))
    content, unreadable = found.unpack()
    assert content is None and unreadable and "installed" in unreadable


def test_a_way_of_packing_or_a_batch_that_nobody_knows_leaves_no_content() -> None:
    for sys_flag in (1 | 5 << 8, 1 << 7):
        found = one(packed(zlib.compress(b"x"), sys_flag=sys_flag))
        content, unreadable = found.unpack()
        assert content is None and unreadable


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("a\x01\x02", {"a": ""}),
        ("a\x02b\x01c\x02", {"b": "c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ],
)
def test_properties_are_read_as_the_broker_reads_them(
    text: str, properties: dict[str, str]
) -> None:
    assert read_properties(text) == properties


@pytest.mark.parametrize("written", range(len(WHOLE)))
def test_properties_that_a_killed_broker_did_not_finish_make_no_message_of_anybody(
    written: int,
) -> None:
    """Recovery checks the body alone: what was not written is NUL, and the body is whole."""
    found = one(packed(properties=WHOLE[:written] + bytes(len(WHOLE) - written)))
    content, unreadable = found.unpack()
    assert (content, found.body) == (None, b"hello")
    assert unreadable and "cut off" in unreadable
    letter, ref = read_dead_letter("%DLQ%g", "a", "g", found, None), ref_of("a", "g", found)
    assert letter.message_id == ref.message_id and letter.message_id in (None, "m-12"), (
        "never the beginning of an id"
    )
    assert (letter.content, unreadable in str(letter.invalid)) == (b"hello", True)
    assert one(packed(properties=WHOLE)).unpack() == (b"hello", None)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "7F",
        "C9FCE63C4A0548A0F2D16BD06C6DFFFF0",
        "7F00000100002A9F 0000000000000200",
        "7F000001000000000000000000000200",
        "7F00000100002A9FF000000000000200",
    ],
)
def test_what_is_no_id_of_a_store_names_no_place(wrong: str) -> None:
    assert read_store_id(wrong) is None
