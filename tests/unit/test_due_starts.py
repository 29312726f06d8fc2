"""When a duty with something to do is started: at once, never beside itself, and no more often than its runs may begin."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backstop.due.starts import AGAIN, UNRECORDED, DutySeen, Starts

MINUTE = timedelta(minutes=1)
DUE = DutySeen(MINUTE, began=3600.0)


def test_what_becomes_due_after_a_quiet_hour_starts_at_once_and_once() -> None:
    starts = Starts()
    assert not starts.now(DutySeen(None, began=3600.0), 0.0)
    assert starts.now(DUE, 1.0)
    assert not any(
        starts.now(DutySeen(MINUTE, began=3600.0 + second), second) for second in range(2, 60)
    )


def test_nothing_starts_beside_a_run_that_works_nor_sooner_after_it_than_runs_may_begin() -> None:
    starts = Starts()
    assert not starts.now(DutySeen(MINUTE, began=5000.0, alive=True), 0.0)
    assert not starts.now(DutySeen(MINUTE, began=59.9), 0.0)
    assert starts.now(DutySeen(MINUTE, began=60.0), 0.0)


def test_what_is_still_due_after_the_run_that_was_asked_for_starts_the_next_one_in_its_time() -> (
    None
):
    starts = Starts()
    assert starts.now(DUE, 0.0)
    assert not starts.now(DutySeen(MINUTE, began=2.0, alive=True), 4.0)
    assert not starts.now(DutySeen(MINUTE, began=30.0), 32.0)
    assert starts.now(DutySeen(MINUTE, began=60.0), 62.0)
    assert not starts.now(DutySeen(MINUTE, began=61.0), 63.0)


@pytest.mark.parametrize(
    ("began", "again"), [(3600.0, AGAIN), (None, UNRECORDED)], ids=["some run", "no run ever"]
)
def test_a_start_that_no_run_came_of_is_asked_for_again_much_later(
    began: float | None, again: timedelta
) -> None:
    starts, seconds = Starts(), again.total_seconds()

    def seen(at: float) -> DutySeen:
        return DutySeen(timedelta(seconds=10), None if began is None else began + at)

    assert starts.now(seen(0.0), 0.0)
    assert not starts.now(seen(seconds - 0.1), seconds - 0.1)
    assert starts.now(seen(seconds), seconds)
    assert not starts.now(seen(seconds + 1), seconds + 1)


def test_one_that_remembers_nothing_asks_once_more_and_not_for_a_run_that_works() -> None:
    assert Starts().now(DUE, 100.0)
    assert not Starts().now(DutySeen(MINUTE, began=2.0, alive=True), 100.0)
