"""RocketMQ's frames and JSON dialect: what is written is read back however it is cut, and what is no frame is not guessed at."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode, word
from backstop.brokers.rocketmq.wire.frames import (
    MAX_FRAME,
    Command,
    Login,
    Malformed,
    Reader,
    Request,
    decode,
    encode,
)

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=5)

# By hand, from the description of the protocol: length, kind and length of the header, header, body.
ROUTE_HEAD = b'{"code":17,"extFields":{"a":"1"},"flag":1,"language":"JAVA","opaque":7,"remark":"none","version":485}'
BY_JSON = struct.pack(">II", 4 + len(ROUTE_HEAD) + 2, len(ROUTE_HEAD)) + ROUTE_HEAD + b"\x00\xff"
BY_BINARY = bytes.fromhex(
    "00000030"
    "01000026"  # 48 bytes in all, a binary header of 38
    "0011"
    "00"
    "01E5"
    "00000007"
    "00000001"
    "00000004"
    "6E6F6E65"  # 17, Java, 485, opaque 7, an answer, "none"
    "0000000D"
    "0001"
    "61"
    "00000006"
    "C3BC2020C3A9"  # 13 bytes of fields: a = "ü  é"
    "6869"
    "6869"
    "6869"  # a body
)


def whole(data: bytes) -> Command:
    reader = Reader()
    reader.feed(data)
    command = reader.next()
    assert command is not None and reader.next() is None
    return command


def test_a_json_header_written_by_hand_is_read() -> None:
    command = whole(BY_JSON)
    assert command == Command(17, 7, 1, "none", {"a": "1"}, b"\x00\xff")
    assert (command.is_answer, command.wants_answer, command.said()) == (
        True,
        False,
        "TOPIC_NOT_EXIST (17): none",
    )


def test_a_binary_header_written_by_hand_is_read() -> None:
    assert whole(BY_BINARY) == Command(17, 7, 1, "none", {"a": "ü  é"}, b"hihihi")


@settings(deadline=None)
@given(FIELDS, st.binary(max_size=50), st.integers(0, 2**31 - 1), st.booleans(), st.integers(1, 7))
def test_a_request_survives_however_it_arrives(
    ext: dict[str, str], body: bytes, opaque: int, binary: bool, step: int
) -> None:
    sent = encode(
        Request(RequestCode.SEND_MESSAGE_V2, ext, body), opaque, binary=binary, flag=2, remark="ü"
    )
    reader, found = Reader(), []
    for at in range(0, len(sent), step):
        reader.feed(sent[at : at + step])
        while (command := reader.next()) is not None:
            found.append(command)
    assert found == [Command(310, opaque, 2, "ü", ext, body)]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=10), st.integers(1, 200))
def test_frames_that_come_together_are_told_apart(bodies: list[bytes], step: int) -> None:
    sent = b"".join(encode(Request(1, {}, body), number) for number, body in enumerate(bodies))
    reader, found = Reader(), []
    for at in range(0, len(sent), step):
        reader.feed(sent[at : at + step])
        while (command := reader.next()) is not None:
            found.append((command.opaque, command.body))
    assert found == list(enumerate(bodies))


def test_fields_are_text_and_what_is_null_is_left_out() -> None:
    sent = encode(Request(14, {"yes": True, "no": False, "n": -3, "gone": None, "empty": ""}), 1)
    assert whole(sent).ext == {"yes": "true", "no": "false", "n": "-3", "empty": ""}


@pytest.mark.parametrize("length", [0, 3, -1, -(2**31), MAX_FRAME + 1, 2**31 - 1])
def test_a_length_that_no_frame_has_is_refused_before_anything_is_kept_for_it(length: int) -> None:
    reader = Reader()
    reader.feed(struct.pack(">i", length))
    with pytest.raises(Malformed):
        reader.next()


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x05{}",
        b"\x02\x00\x00\x00",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x01\xff",
        b'\x00\x00\x00\x12{"code":"x","o":1}',
        b'\x00\x00\x00\x22{"code":1,"opaque":1,"extFields":3}',
        b'\x00\x00\x00\x1b{"code":1,"opaque":1e999999}',
        b"\x01\x00\x00\x02\x00\x01",
        b"\x01\x00\x00\x15" + struct.pack(">hBhiii", 1, 0, 1, 1, 1, 99) + bytes(4),
        b"\x01\x00\x00\x15" + struct.pack(">hBhiii", 1, 0, 1, 1, 1, 0) + struct.pack(">i", -5),
        b"\x01\x00\x00\x17" + struct.pack(">hBhiii", 1, 0, 1, 1, 1, 0) + struct.pack(">ih", 2, -1),
        b"\x01\x00\x00\x17"
        + struct.pack(">hBhiii", 1, 0, 1, 1, 1, 0)
        + struct.pack(">ih", 2, 30000),
        b"\x00\x0f\x42\x40" + b'{"a":' * 200_000,
        b"\x00\x0f\x42\x40" + b"{{" * 500_000,
    ],
    ids=[
        "header too long",
        "kind",
        "no object",
        "no code",
        "no text",
        "code",
        "fields",
        "opaque",
        "short",
        "remark",
        "fields -5",
        "name -1",
        "name 30000",
        "deep",
        "deep dialect",
    ],
)
def test_what_is_no_frame_is_malformed_and_nothing_else(frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode(frame)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_malformed(frame: bytes) -> None:
    with suppress(Malformed):
        decode(frame)


def test_a_login_signs_the_values_in_the_order_of_their_names_and_the_body() -> None:
    sent = encode(
        Request(310, {"b": "2", "a": "ü", "c": None, "Z": True}, b"body"),
        1,
        login=Login("me", "sec/ret"),
    )
    ext = dict(whole(sent).ext)
    expected = hmac.new(
        b"sec/ret", b"me" + b"true" + "ü2".encode() + b"body", hashlib.sha1
    ).digest()
    assert ext == {
        "b": "2",
        "a": "ü",
        "Z": "true",
        "AccessKey": "me",
        "Signature": base64.b64encode(expected).decode(),
    }
    assert b"sec/ret" not in sent and "sec/ret" not in repr(Login("me", "sec/ret"))


def test_a_field_that_should_be_a_number_and_is_none_says_so() -> None:
    assert Command(0, 1, ext={"offset": "12"}).number("offset") == 12
    for ext in ({}, {"offset": "x"}, {"offset": "9" * 5000}):
        with pytest.raises(Malformed):
            Command(0, 1, ext=ext).number("offset")


def test_codes_have_words_and_unknown_ones_their_number() -> None:
    assert (word(ResponseCode.TOPIC_NOT_EXIST), word(4711)) == ("TOPIC_NOT_EXIST (17)", "code 4711")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:'x'}".replace("'", '"'), {"0": "x"}),
        ('{-1:{"a":[1,2,{3:4}]}, "b" : null }', {"-1": {"a": [1, 2, {"3": 4}]}, "b": None}),
        (
            '{{"brokerName":"b","queueId":0,"topic":"t"}:{"offset":9223372036854775807}}',
            {(("brokerName", "b"), ("queueId", 0), ("topic", "t")): {"offset": 2**63 - 1}},
        ),
        ('{{}:1,{"a":"\\"}{"}:2}', {(): 1, (("a", '"}{'),): 2}),
        ("{true:1,null:2,1.5:3}", {"true": 1, "null": 2, "1.5": 3}),
        ("[]", []),
        (" {} ", {}),
        ("{1:[],2:{}}", {"1": [], "2": {}}),
        ('{1:"a\tb"}', {"1": "a\tb"}),
    ],
)
def test_the_brokers_dialect_is_read(text: str, value: object) -> None:
    assert fastjson.read(text) == value


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


@settings(deadline=None)
@given(JSON)
def test_standard_json_is_read_the_same_by_our_own_reader(value: Any) -> None:
    assert fastjson.read(json.dumps(value)) == value
    # A bare number as a key makes the standard library refuse it, so that ours reads all of the rest too.
    assert fastjson.read(f"{{1:{json.dumps(value, ensure_ascii=False)}}}") == {"1": value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[",
        "{1",
        "{1:",
        "{1:2",
        "{1:2,",
        "{1:2,}",
        "{1 2}",
        "[1,]",
        "[1 2]",
        "{1:2}x",
        "{:1}",
        '{1:"x}',
        "{[1]:2}",
        "{{1:{}}:2}",
        "{{{}:1}:2}",
        "nul",
        "{1:01x}",
        "{1:" + "9" * 5000 + "}",
        "[" * 100_000,
        "{1:" * 100_000,
        "{" * 100_000,
    ],
)
def test_what_is_no_json_is_an_error_of_value_however_deep_or_long(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        fastjson.read(text)
    assert not isinstance(raised.value, RecursionError) and len(str(raised.value)) < 300


def test_a_key_that_was_an_object_is_read_in_both_ways() -> None:
    expected = {"topic": "t", "queueId": 3}
    for text in ('{{"topic":"t","queueId":3}:1}', json.dumps({json.dumps(expected): 1})):
        [key] = fastjson.read(text)
        assert fastjson.members(key) == expected
    for wrong in ("x", "3", 3, None):
        with pytest.raises(ValueError):
            fastjson.members(wrong)
