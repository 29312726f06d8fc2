"""ActiveMQ's names and frames: whatever is written is read back, however it is cut on the way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstop.brokers.activemq.decode import (
    content_of,
    headers_of,
    letter_of,
    message_of,
    stored_at,
)
from backstop.brokers.activemq.frames import Frame, Malformed, Reader, encode
from backstop.brokers.activemq.names import Names
from backstop.model.records import ID_HEADER, Message
from backstop.triage.drain.storable import make_storable

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)
NAME = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), min_size=1, max_size=30
)


@given(NAME, NAME)
def test_a_queue_name_says_its_topic_and_group_and_nothing_else_of_the_broker(
    topic: str, group: str
) -> None:
    names = Names()
    queue = names.queue(topic, group)
    assert names.read_queue(queue) == (topic, group)
    assert not set(queue) & set("*>,?:= \n\"'")
    for dead in names.dead_letter_queues(queue)[:1]:
        assert names.source_of_dead_letters(dead) == queue


def test_two_groups_or_topics_never_share_a_queue() -> None:
    names = Names()
    pairs = [
        ("a.b", "c"),
        ("b", "c.VirtualTopic.a"),
        ("a%2Eb", "c"),
        ("VirtualTopic.b", "c"),
        ("b", "c"),
        ("B", "c"),
    ]
    assert len({names.queue(*pair) for pair in pairs}) == len(pairs)


def test_a_queue_of_another_pattern_is_of_nobody_known() -> None:
    assert Names().read_queue("orders") == (None, None)
    plain = Names("/queue/q.{topic}", "q.{topic}", ("DLQ.{queue}",), {"orders": "billing"})
    assert plain.wrong() is None
    assert (plain.read_queue("q.orders"), plain.read_queue("q.else")) == (
        ("orders", "billing"),
        ("else", None),
    )


@given(
    NAME,
    st.binary(max_size=50),
    st.dictionaries(TEXT.filter(lambda name: name != ID_HEADER), TEXT, max_size=4),
    st.none() | TEXT,
    st.none() | TEXT,
    st.integers(1, 7),
)
def test_a_message_survives_its_frame_however_it_arrives(
    message_id: str,
    content: bytes,
    headers: dict[str, str],
    tag: str | None,
    key: str | None,
    step: int,
) -> None:
    message = Message("orders", message_id, content, headers, tag, key)
    sent = encode("MESSAGE", headers_of(message), content)
    reader, found = Reader(), []
    for at in range(0, len(sent), step):
        reader.feed(b"\n" + sent[at : at + step] if at == 0 else sent[at : at + step])
        if (frame := reader.next()) is not None:
            found.append(frame)
    [frame] = found
    assert message_of(frame, "orders") == Message(
        "orders", message_id, content, {**headers, ID_HEADER: message_id}, tag, key
    )


@pytest.mark.parametrize(
    ("written", "deliveries"),
    [
        ({"backstop-deliveries": "16"}, 16),
        ({"dlqDeliveryFailureCause": "of Delivery[7] exceeds"}, 7),
        ({}, None),
        ({"backstop-deliveries": "9" * 5000}, None),
        ({"dlqDeliveryFailureCause": f"Delivery[{'9' * 5000}]"}, None),
        ({"backstop-deliveries": "4294967296"}, None),
        ({"backstop-deliveries": "-1"}, None),
        ({"backstop-deliveries": "²"}, None),
    ],
)
def test_a_foreign_count_of_deliveries_that_is_no_number_of_ours_makes_no_letter_unreadable(
    written: dict[str, str], deliveries: int | None
) -> None:
    letter = letter_of(
        Frame("MESSAGE", {"message-id": "1", **written}, b""), Names(), "ActiveMQ.DLQ"
    )
    assert letter.deliveries == deliveries


ANY = st.text(st.characters(), max_size=20) | st.sampled_from(["\ud800", "\udfff", "\x00"])
OURS = ["backstop-headers", "backstop-tag", "backstop-key", "backstop-error"]


@given(
    st.dictionaries(st.sampled_from(OURS), st.dictionaries(ANY, ANY)),
    st.binary(max_size=20),
    ANY,
)
def test_whatever_a_program_wrote_into_our_headers_the_letter_is_read_and_keeps_it(
    ours: dict[str, dict[str, str]], content: bytes, message_id: str
) -> None:
    """Half a surrogate among them is no text that can be encoded, and stopped its queue for ever."""
    more = {**ours.get("backstop-headers", {}), ID_HEADER: message_id}
    frame = Frame(
        "MESSAGE",
        {
            "message-id": "1",
            **{name: json.dumps(value) for name, value in ours.items()},
            "backstop-headers": json.dumps(more),
        },
        content,
    )
    letter = letter_of(frame, Names(), "DLQ.Consumer.billing.VirtualTopic.orders")
    assert (letter.content, json.loads(letter.headers), letter.message_id) == (
        content,
        more,
        message_id or None,
    )
    assert (letter.topic, letter.group) == ("orders", "billing")
    stored = make_storable(letter)
    assert stored.headers == letter.headers
    assert (stored.message_id is None) == (stored.invalid is not None)


@pytest.mark.parametrize("written", ["9" * 5000, "9" * 15, "soon", ""])
def test_a_foreign_time_that_is_none_is_none(written: str) -> None:
    assert stored_at(Frame("MESSAGE", {"timestamp": written}, b"")) is None


def test_frames_that_come_together_are_told_apart_and_the_first_of_two_equal_headers_counts() -> (
    None
):
    reader = Reader()
    reader.feed(
        b"\n\nRECEIPT\r\nreceipt-id:1\r\n\r\n\x00\n\nMESSAGE\na:1\na:2\ncontent-length:3\n\n\x00\x01\x02\x00ERROR\n\ntext\x00"
    )
    assert [reader.next() for _ in range(4)] == [
        Frame("RECEIPT", {"receipt-id": "1"}),
        Frame("MESSAGE", {"a": "1", "content-length": "3"}, b"\x00\x01\x02"),
        Frame("ERROR", {}, b"text"),
        None,
    ]


@pytest.mark.parametrize(
    ("length", "beats"),
    [("x", 0), ("-1", 0), ("1", 0), ("7", 0), ("900", 2), ("9" * 30, 0)],
    ids=["no number", "negative", "shorter", "into the next frame", "longer", "too large"],
)
def test_a_text_ends_where_it_ends_whatever_property_stands_in_place_of_its_length(
    length: str, beats: int
) -> None:
    reader = Reader()
    reader.feed(f"MESSAGE\ncontent-length:{length}\n\nab\0\nMESSAGE\na:1\n\nc\0\n".encode())
    for _ in range(beats):
        assert reader.next() is None, "bytes that are still on their way"
        reader.feed(b"\n")
    found = [reader.next(), reader.next()]
    assert [one.body for one in found if one] == [b"ab", b"c"]
    assert [one.text for one in found if one] == [True, True]


def test_a_frame_without_an_end_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstop.brokers.activemq.frames.LARGEST", 1_000)
    for begins in (
        b"MESSAGE\ncontent-length:999999999999999999\n\n",
        b"MESSAGE\n\n",
        b"MESSAGE\na:",
    ):
        reader = Reader()
        reader.feed(begins)
        for _ in range(9):
            reader.feed(b"x" * 100)
            assert reader.next() is None
        reader.feed(b"x" * 100)
        with pytest.raises(Malformed, match="more than 1000 bytes"):
            reader.next()


def test_what_java_writes_into_a_text_is_the_text_that_was_sent() -> None:
    for text in ("a\0b", "😀", "\0😀ü", "plain ü"):
        javas = b"".join(
            b"\xc0\x80"
            if one == "\0"
            else one.encode()
            if one < "\uffff"
            else (
                one.encode("utf-16-be")[:2]
                .decode("utf-16-be", "surrogatepass")
                .encode("utf-8", "surrogatepass")
                + one.encode("utf-16-be")[2:]
                .decode("utf-16-be", "surrogatepass")
                .encode("utf-8", "surrogatepass")
            )
            for one in text
        )
        assert content_of(Frame("MESSAGE", {}, javas, text=True)) == text.encode()
        assert content_of(Frame("MESSAGE", {}, javas)) == javas, "bytes stay as they are"
    for odd in (b"\xed\xa0\xbd", b"\xff\xc0\x80"):
        assert content_of(Frame("MESSAGE", {}, odd, text=True)) == odd


def test_what_is_no_frame_is_not_guessed_at() -> None:
    reader = Reader()
    reader.feed(b"MESSAGE\n\xff:1\n\n\x00")
    with pytest.raises(Malformed):
        reader.next()
