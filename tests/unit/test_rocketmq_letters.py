"""An entry of a RocketMQ dead-letter topic is read whole, and acknowledged is never more than what lies below it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstop.brokers.protocol import LETTER_PAGE_BYTES
from backstop.brokers.rocketmq.dead_letters.dead_queue import (
    DeadQueue,
    DeadQueues,
    Refused,
    _in_a_row,
)
from backstop.brokers.rocketmq.dead_letters.drain import Drain, RocketMQLetters
from backstop.brokers.rocketmq.message.read_dead_letter import (
    broker_id_of,
    read_dead_letter,
    ref_of,
    topic_of,
)
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.brokers.rocketmq.routes.find_origins import Dead, Origins, _original
from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.frames import Command, Malformed
from backstop.brokers.rocketmq.wire.session import ConnectionLost
from backstop.model.errors import BrokerUnavailable, ConfigurationError
from backstop.model.records import ID_HEADER, Position

AT = datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=UTC)
QUEUE = "%DLQ%billing"


def entry(offset: int = 0, body: bytes = b"{}", **changes: Any) -> Stored:
    properties = {
        ID_HEADER: f"m-{offset}",
        "UNIQ_KEY": f"U{offset}",
        "RETRY_TOPIC": "orders",
        "colour": "red",
        "DELAY": "0",
    }
    written = Stored(
        QUEUE,
        0,
        offset,
        1000 + offset,
        "127.0.0.1:10911",
        "7F00000100002A9F00000000000003E8",
        AT,
        AT + timedelta(seconds=offset),
        3,
        0,
        0,
        body,
        None,
        properties,
    )
    more = changes.pop("properties", {})
    return replace(
        written,
        properties={n: v for n, v in {**properties, **more}.items() if v is not None},
        **changes,
    )


class TestReading:
    def test_a_letter_has_its_message_apart_from_what_the_broker_wrote(self) -> None:
        one = entry(7, b"\x00whole", properties={"TAGS": "eu", "__SHARDINGKEY": "k 1"})
        letter = read_dead_letter(QUEUE, "broker-a", "billing", one, Position(1, 5, "0"))
        assert (letter.message_id, letter.topic, letter.group, letter.content) == (
            "m-7",
            "orders",
            "billing",
            b"\x00whole",
        )
        assert json.loads(letter.headers) == {ID_HEADER: "m-7", "colour": "red"}
        assert (letter.tag, letter.partition_key, letter.position) == (
            "eu",
            "k 1",
            Position(1, 5, "0"),
        )
        assert (letter.deliveries, letter.cause, letter.died_at) == (
            3,
            "reconsumed 3 times",
            AT + timedelta(seconds=7),
        )
        assert letter.properties["RETRY_TOPIC"] == "orders" and "colour" not in letter.properties
        assert letter.invalid is None
        ref = ref_of("broker-a", "billing", one)
        assert (ref.broker_id, ref.message_id, ref.topic, ref.group, ref.died_at) == (
            letter.broker_id,
            "m-7",
            "orders",
            "billing",
            letter.died_at,
        )

    @pytest.mark.parametrize(
        ("written", "topic"),
        [
            ("orders", "orders"),
            ("%RETRY%billing_orders", "orders"),
            ("%RETRY%billing+orders", "orders"),
            ("%RETRY%billing_a_b", "a_b"),
            ("%C3%BC%20x", "ü x"),
            (
                "%RETRY%billing",
                None,
            ),  # a copy that was sent to the group alone, by somebody who did not say of which topic
            ("%RETRY%other_orders", None),
            ("", None),
            (None, None),
        ],
    )
    def test_the_topic_is_found_however_the_consumer_left_it(
        self, written: str | None, topic: str | None
    ) -> None:
        assert topic_of(entry(properties={"RETRY_TOPIC": written}), "billing") == topic

    def test_an_id_names_another_entry_at_the_same_place_of_another_life(self) -> None:
        ids = {
            broker_id_of("broker-a", one)
            for one in (
                entry(7),
                entry(7, properties={"UNIQ_KEY": "V"}),
                entry(7, queue_id=1),
                entry(8),
                entry(7, properties={"UNIQ_KEY": None}),
                entry(7, properties={"UNIQ_KEY": None}, stored_at=AT),
            )
        } | {broker_id_of("broker-b", entry(7))}
        assert len(ids) == 7
        assert broker_id_of("broker-a", entry(7)) == "broker-a/0/7/U7"
        assert (
            broker_id_of("broker-a", entry(7, properties={"UNIQ_KEY": None}, stored_at=AT))
            == "broker-a/0/7/1795255200123"
        )

    def test_a_content_that_cannot_be_unpacked_is_kept_as_it_is_stored_and_said(self) -> None:
        one = entry(0, b"\x04\x22packed", crc=7)
        letter = read_dead_letter(QUEUE, "broker-a", "billing", one, None)
        assert (letter.content, letter.invalid, letter.message_id) == (
            b"\x04\x22packed",
            "its content is not the one that was stored (the checksum differs)",
            "m-0",
        )

    def test_what_is_missing_is_said(self) -> None:
        letter = read_dead_letter(
            QUEUE, "b", "billing", entry(properties={ID_HEADER: None, "RETRY_TOPIC": None}), None
        )
        assert (letter.message_id, letter.topic) == (None, None)
        assert letter.invalid == f"it has no property {ID_HEADER}; it names no topic"

    def test_the_original_is_named_by_the_brokers_id_and_by_nothing_that_looks_like_it(
        self,
    ) -> None:
        broker_id, unique = "7F00000100002A9F00000000000003E8", "FD000000000000000000000000000248"
        assert _original(entry(properties={"ORIGIN_MESSAGE_ID": broker_id})) == 1000
        assert (
            _original(entry(properties={"ORIGIN_MESSAGE_ID": unique, "UNIQ_KEY": unique})) is None
        )
        assert _original(entry(properties={"ORIGIN_MESSAGE_ID": "odd"})) is None
        assert _original(entry()) is None

    def test_a_group_that_this_broker_cannot_have_hides_no_letter_of_another(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drain = Drain(cast(Any, None), cast(Any, None), seconds=1.0)
        monkeypatch.setattr(DeadQueues, "find", lambda _, topic: [topic])
        too_long = "a" * 121
        assert drain.queues(["billing", too_long]) == ["%DLQ%billing"]
        assert list(drain.letters(too_long, {})) == []

    def test_a_name_that_is_no_dead_letter_topic_is_refused(self) -> None:
        drain = Drain(cast(Any, None), cast(Any, None), seconds=1.0)
        for name in ("orders", "%RETRY%billing", "%DLQ%", ""):
            with pytest.raises(ConfigurationError):
                drain.open(name)


def answer(*offsets: int, code: int = ResponseCode.SUCCESS, after: int | None = None) -> Command:
    """What a broker answers to a pull; the entries travel in `body` as their offsets."""
    ext = {"nextBeginOffset": str(after if after is not None else offsets[-1] + 1)}
    return Command(code, 1, 1, None, ext, bytes(offsets))


@pytest.fixture
def plain_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "backstop.brokers.rocketmq.dead_letters.dead_queue"
    monkeypatch.setattr(f"{module}.read_stored", lambda body: [entry(one) for one in body])


@pytest.mark.usefixtures("plain_bodies")
class TestPullingAhead:
    def pulled(self, answers: Sequence[Command], offsets: Sequence[int]) -> tuple[list[int], int]:
        found, after = _in_a_row(answers, offsets, offsets[0])
        return [one.offset for one in found], after

    def test_answers_that_follow_one_another_are_taken_together(self) -> None:
        assert self.pulled([answer(0, 1), answer(2, 3)], [0, 2]) == ([0, 1, 2, 3], 4)

    def test_behind_an_answer_that_gave_less_nothing_is_taken(self) -> None:
        assert self.pulled([answer(0), answer(2, 3)], [0, 2]) == ([0], 1)

    def test_behind_an_answer_that_gave_nothing_nothing_is_taken(self) -> None:
        nothing = answer(code=ResponseCode.PULL_NOT_FOUND, after=0)
        assert self.pulled([nothing, answer(2, 3)], [0, 2]) == ([], 0)

    def test_what_the_broker_removed_is_passed_and_no_entry_comes_twice(self) -> None:
        removed = answer(code=ResponseCode.PULL_OFFSET_MOVED, after=3)
        assert self.pulled([removed, answer(3, 4), answer(4, 5)], [0, 2, 4]) == ([3, 4, 5], 6)

    def test_offsets_that_go_back_end_the_reading(self) -> None:
        with pytest.raises(Refused, match="went back from 9 to 2"):
            self.pulled([answer(code=ResponseCode.PULL_OFFSET_MOVED, after=2)], [9])

    def test_any_other_answer_ends_the_reading(self) -> None:
        with pytest.raises(Refused, match="NO_PERMISSION"):
            self.pulled([answer(code=ResponseCode.NO_PERMISSION, after=0)], [0])


class TestWhatTwoMastersSayOfAnOrigin:
    """The position is where the message was only when every master that may have it has answered."""

    def find(
        self, monkeypatch: pytest.MonkeyPatch, *answers: Command | Exception
    ) -> Position | None:
        original = entry(5, topic="orders", properties={"UNIQ_KEY": "U7"})

        def read(body: bytes) -> list[Stored]:
            if body == b"odd":
                raise Malformed("no message")
            return [original] if body else []

        monkeypatch.setattr("backstop.brokers.rocketmq.routes.find_origins.read_stored", read)
        routes = SimpleNamespace(
            brokers=("a", "b"),
            route=lambda *_, **__: SimpleNamespace(masters={"a": "a:1", "b": "b:1"}),
        )
        pool = SimpleNamespace(ask_all=lambda asked, deadline: list(answers))
        dead = Dead("orders", "a", "a:1", entry(7))
        return Origins(cast(Any, pool), cast(Any, routes), seconds=1).find([dead])[0]

    def test_one_that_is_away_ends_the_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(BrokerUnavailable):
            self.find(monkeypatch, found(b"one"), ConnectionLost("it broke"))
        with pytest.raises(BrokerUnavailable):
            self.find(monkeypatch, found(b"one"), found(code=1))

    def test_one_whose_answer_cannot_be_read_leaves_no_position(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.find(
            monkeypatch, found(b"one"), found(code=ResponseCode.QUERY_NOT_FOUND)
        ) == Position(0, 5, "0")
        assert self.find(
            monkeypatch, found(code=ResponseCode.QUERY_NOT_FOUND), found(b"one")
        ) == Position(10_000, 5, "0")
        assert self.find(monkeypatch, found(b"one"), found(b"one")) is None
        for unreadable in (found(b"odd"), found(code=ResponseCode.NO_PERMISSION)):
            assert self.find(monkeypatch, found(b"one"), unreadable) is None
            assert self.find(monkeypatch, unreadable, found(b"one")) is None


def found(body: bytes = b"", code: int = ResponseCode.SUCCESS) -> Command:
    return Command(code, 1, 1, None, {}, body)


class Log:
    """A dead-letter topic of two queues in memory, which may fail once, and what was committed there."""

    def __init__(self, entries: Sequence[Sequence[Stored]]) -> None:
        self.entries, self.committed, self.fails = entries, [0] * len(entries), False
        self.queues = [
            DeadQueue(QUEUE, "broker-a", "a:1", number, 0, len(some))
            for number, some in enumerate(entries)
        ]

    def find(self, topic: str) -> list[DeadQueue]:
        return self.queues

    def read(self, queue: DeadQueue, start: int) -> Iterator[list[Stored]]:
        for at in range(start, queue.end, 3):
            self.fail()
            yield list(self.entries[queue.queue_id][at : at + 3])

    def commit(self, queue: DeadQueue, offset: int, stored_at: datetime) -> None:
        self.fail()
        assert stored_at == self.entries[queue.queue_id][offset - 1].stored_at
        assert offset > self.committed[queue.queue_id], "it goes on, or says nothing"
        self.committed[queue.queue_id] = offset

    def fail(self) -> None:
        if self.fails:
            self.fails = False
            raise BrokerUnavailable("It is away.", unaffected="-", next_step="-")


class NoOrigins:
    def find(self, letters: Sequence[Any]) -> list[None]:
        return [None] * len(letters)


def reader_of(log: Log) -> RocketMQLetters:
    return RocketMQLetters(cast(DeadQueues, log), cast(Origins, NoOrigins()), QUEUE, "billing")


class TestAReader:
    @settings(max_examples=150, deadline=None)
    @given(
        counts=st.lists(st.integers(0, 12), min_size=1, max_size=3),
        steps=st.lists(st.integers(0, 2**32), max_size=40),
    )
    def test_in_whatever_order_letters_are_acknowledged_nothing_above_an_open_one_is_committed(
        self, counts: list[int], steps: list[int]
    ) -> None:
        log = Log(
            [
                [entry(offset, queue_id=queue) for offset in range(count)]
                for queue, count in enumerate(counts)
            ]
        )
        reader = reader_of(log)
        out: list[Any] = []
        done: set[str] = set()
        for step in steps:
            log.fails = step % 7 == 0
            try:
                if step % 2:
                    out += reader.read(1 + step // 2 % 5)
                elif out:
                    some = [out[step // 2 % len(out)], out[step // 20 % len(out)]]
                    done |= {letter.broker_id for letter in some}
                    reader.acknowledge(some)
            except BrokerUnavailable:
                pass  # and nothing is lost by it
            log.fails = False
            for queue, committed in enumerate(log.committed):
                below = {broker_id_of("broker-a", one) for one in log.entries[queue][:committed]}
                assert below <= done
        while page := reader.read(4):
            out += page
        assert [letter.broker_id for letter in out] == [
            broker_id_of("broker-a", one) for queue in log.entries for one in queue
        ], "each once, in their order, to the end"
        reader.acknowledge(out)
        reader.acknowledge(out)
        assert log.committed == counts

    def test_an_acknowledgement_that_did_not_arrive_is_made_good_by_the_next(self) -> None:
        log = Log([[entry(offset) for offset in range(4)]])
        reader = reader_of(log)
        letters = reader.read(4)
        log.fails = True
        with pytest.raises(BrokerUnavailable):
            reader.acknowledge(letters[:2])
        assert log.committed == [0]
        reader.acknowledge(letters[2:3])
        assert log.committed == [3]

    def test_letters_of_another_reader_are_not_acknowledged(self) -> None:
        log = Log([[entry(offset) for offset in range(4)]])
        letters = reader_of(log).read(4)
        reader_of(log).acknowledge(letters)
        assert log.committed == [0]

    def test_pages_are_bounded_by_what_they_hold_and_a_larger_letter_comes_alone(self) -> None:
        sizes = [LETTER_PAGE_BYTES // 2, LETTER_PAGE_BYTES // 2, 1, LETTER_PAGE_BYTES + 1, 1]
        log = Log([[entry(offset, bytes(size)) for offset, size in enumerate(sizes)]])
        reader = reader_of(log)
        pages = list(iter(lambda: [len(letter.content) for letter in reader.read(100)], []))
        assert pages == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]

    def test_after_the_end_and_after_closing_there_is_nothing(self) -> None:
        log = Log([[entry(0)], []])
        reader = reader_of(log)
        assert [letter.message_id for letter in reader.read(10)] == ["m-0"]
        assert reader.read(10) == []
        with reader_of(log) as another:
            pass
        assert another.read(10) == []
