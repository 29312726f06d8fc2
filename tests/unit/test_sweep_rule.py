"""What becomes of a lease: the whole truth table, and what stands in front of the database."""

from __future__ import annotations

import pytest

from backstop.sweep.decide import Decision, Truth, decide, decide_done

TABLE = {
    (False, Truth.DONE): Decision.KEEP,
    (False, Truth.ALIVE): Decision.KEEP,
    (False, Truth.FREE): Decision.KEEP,
    (False, Truth.UNREAD): Decision.KEEP,
    (False, Truth.NO_LOG): Decision.KEEP,
    (True, Truth.DONE): Decision.REPAIR,
    (True, Truth.ALIVE): Decision.KEEP,
    (True, Truth.FREE): Decision.RECLAIM,
    (True, Truth.UNREAD): Decision.KEEP,
    (True, Truth.NO_LOG): Decision.RECLAIM,
}


def test_the_table_has_a_row_for_every_case() -> None:
    assert set(TABLE) == {(expired, truth) for expired in (False, True) for truth in Truth}


@pytest.mark.parametrize(("case", "decision"), TABLE.items(), ids=str)
def test_a_lease_is_decided_as_the_table_says(case: tuple[bool, Truth], decision: Decision) -> None:
    assert decide(*case) is decision


@pytest.mark.parametrize("truth", Truth)
def test_a_done_in_front_stands_only_while_the_log_says_the_same_or_nothing(truth: Truth) -> None:
    expected = Decision.REPAIR if truth in (Truth.ALIVE, Truth.FREE) else Decision.KEEP
    assert decide_done(truth) is expected
