"""The set of finished offsets: exact against a plain set, flat in memory, fast."""

from __future__ import annotations

import random
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from backstop.brokers.protocol import Received
from backstop.client.done_set import DoneSet
from backstop.client.finished import MOST_NOTED, FinishedDeliveries, FinishedOffsets
from backstop.model.records import Message, Position

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=40)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(watermark=st.integers(0, 10), ranges=RANGES)
def test_it_knows_exactly_what_was_added_however_it_came(
    watermark: int, ranges: list[tuple[int, int]]
) -> None:
    done, oracle = DoneSet(watermark), set(range(watermark))
    for start, length in ranges:
        done.add_range(start, start + length)
        oracle |= set(range(start, start + length))
        assert [offset in done for offset in range(80)] == [
            offset in oracle for offset in range(80)
        ]
        intervals = list(zip(done._starts, done._ends, strict=True))
        assert done.watermark == min(set(range(81)) - oracle), (
            "all below it is finished, and it is not"
        )
        ends = [done.watermark] + [end for _, end in intervals]
        assert all(end < start for end, (start, _) in zip(ends, intervals, strict=False)), (
            "apart and in order"
        )
        assert done.gaps == len(intervals)


def test_a_million_messages_with_one_in_a_hundred_redelivered_need_memory_for_the_gaps_only() -> (
    None
):
    """The window of messages in work moves on: what is finished below it costs nothing."""
    done, chance = DoneSet(), random.Random(1)
    doubles = stopped = most = 0
    for first in range(0, 1_000_000, 100):
        window = list(range(first, first + 100))
        chance.shuffle(window)
        for offset in window:
            done.add(offset)
        again = chance.randrange(first + 100)
        doubles, stopped = doubles + 1, stopped + (again in done)
        most = max(most, sys.getsizeof(done._starts) + sys.getsizeof(done._ends))
    assert (doubles, stopped) == (10_000, 10_000)
    assert (done.watermark, done.gaps) == (1_000_000, 0)
    assert most < 4_000


def test_it_answers_within_two_microseconds_with_ten_thousand_gaps() -> None:
    done = DoneSet()
    for offset in range(1, 20_000, 2):
        done.add(offset)
    assert done.gaps == 10_000
    asked = [random.Random(2).randrange(20_000) for _ in range(10_000)]
    best = min(_seconds(done, asked) for _ in range(7)) / len(asked)
    assert best < 2e-6, f"{best * 1e6:.2f} us"


def _seconds(done: DoneSet, asked: list[int]) -> float:
    begun = time.perf_counter()
    for offset in asked:
        offset in done  # noqa: B015 - what is measured
    return time.perf_counter() - begun


def delivered(number: int, message_id: str, content: bytes = b"{}") -> Received:
    return Received(Message("orders", message_id, content), None, "", 1, ("ID:host-1:1", number))


def test_of_deliveries_without_offsets_the_newest_are_known_by_number_id_and_content() -> None:
    done = FinishedDeliveries(most=100)
    done.add([delivered(number, f"m-{number}") for number in range(1_000)])
    assert len(done) == 100
    assert done.knows(delivered(999, "m-999")) and not done.knows(delivered(0, "m-0"))
    assert not done.knows(delivered(999, "another"))
    assert not done.knows(delivered(999, "m-999", b"another"))
    assert not done.knows(Received(Message("orders", "m-999", b"{}"), None, "", 1))
    done.forget()
    assert not done.knows(delivered(999, "m-999"))


def test_the_filter_over_many_offsets_stays_small_and_answers_in_under_two_microseconds() -> None:
    done = FinishedOffsets()
    again = []
    for offset in range(100_000):
        message = Message("orders", f"m-{offset}", b"")
        received = Received(message, Position(0, offset, "e"), "", 1)
        done.fetched(received)
        done.add(received)
        if offset % 100 == 0 and offset >= 90_000:
            again.append(received)
        if offset % 5_000 == 0:
            assert done.size() <= MOST_NOTED + 1 and done.gaps(("orders", 0)) == 0
    known = [one for one in again if done.knows(one)]
    assert len(known) > 1, "what was finished last is known"
    fastest = min(_each(done, again) for _ in range(50))
    assert fastest < 2e-6, f"{fastest * 1e6:.2f} us"


def _each(done: FinishedOffsets, asked: list[Received]) -> float:
    begun = time.perf_counter()
    for one in asked:
        done.knows(one)
    return (time.perf_counter() - begun) / len(asked)


def test_an_owner_that_read_nothing_of_a_queue_saves_what_it_adopted() -> None:
    finished, queue = FinishedOffsets(), ("orders", 3)
    finished.adopt(queue, '{"e": {"7": "x", "9": "y"}}')
    assert finished.saved(queue) == '{"e": {"7": "x", "9": "y"}}'
    finished.fetched(delivered_at(8, "z"))
    assert finished.saved(queue) == '{"e": {"9": "y"}}', "the group's place is above the first one"
    finished.leave(queue)
    assert finished.saved(queue) is None


def test_an_id_or_epoch_that_no_database_holds_is_finished_and_never_saved() -> None:
    """Foreign ones, of messages that became dead letters behind an unfinished one; of any length, too."""
    finished, queue = FinishedOffsets(), ("orders", 3)
    odd = [delivered_at(n, text) for n, text in enumerate(["a\x00", "\ud800", "x" * 1025], 2)]
    for epoch in ("\x00", "\ud800", "x" * 1025):
        place = Position(3, 1, epoch)
        odd += [Received(Message("orders", text, b"{}"), place, "", 1) for text in ("b", "c")]
    head = delivered_at(1, "head")
    for one in [head, *odd]:
        finished.fetched(one)
    for one in odd:
        finished.add(one)
    assert finished.size() == finished.gaps(queue) == 1, "the head alone is open, no id is kept"
    assert finished.saved(queue) is None
    last = delivered_at(5, "last")
    finished.fetched(last)
    finished.add(last)
    assert finished.saved(queue) == '{"e": {"5": "last"}}'


def delivered_at(offset: int, message_id: str) -> Received:
    return Received(Message("orders", message_id, b"{}"), Position(3, offset, "e"), "", 1)
