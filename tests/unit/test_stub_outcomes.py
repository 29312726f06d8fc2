"""Outcomes by column are the same outcomes, also where a promotion has to halve them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from backstop.evidence.apply_apart import apply_apart
from backstop.model.errors import StoreFailed
from backstop.model.records import Key, StubStatus
from backstop.stores.protocol import StubOutcome, StubOutcomes

LOOK = datetime(2026, 11, 24, tzinfo=UTC)
OUTCOMES = [
    StubOutcome(Key("orders", "a"), "pending", "confirmed", 1, None),
    StubOutcome(Key("orders", 'b"{},'), "exhausted", "pending", 2, LOOK),
    StubOutcome(Key("payments", "a"), StubStatus.PENDING, StubStatus.CONFIRMED, 0, None),
]


def test_outcomes_by_column_are_those_that_were_given() -> None:
    by_column = StubOutcomes.of(OUTCOMES)
    assert list(by_column) == OUTCOMES and len(by_column) == 3
    assert list(by_column[1:]) == OUTCOMES[1:] and by_column[-1] == OUTCOMES[-1]
    assert StubOutcomes.of(by_column) is by_column
    assert by_column.columns[:2] == [("orders", "orders", "payments"), ("a", 'b"{},', "a")]
    assert list(StubOutcomes.of([]).columns) == [()] * 6 and len(StubOutcomes.of([])) == 0
    # As the driver writes them fastest: plain texts.
    assert {type(status) for status in by_column.columns[3]} == {str}


def test_an_outcome_that_a_store_refuses_is_found_among_the_others() -> None:
    applied: list[StubOutcome] = []

    def promote(some: Sequence[StubOutcome]) -> int:
        if OUTCOMES[1] in some:
            raise StoreFailed("no", unaffected="", next_step="")
        applied.extend(some)
        return len(some)

    refused: list[tuple[StubOutcome, StoreFailed]] = []
    assert sum(apply_apart(StubOutcomes.of(OUTCOMES), promote, refused)) == 2
    assert applied == [OUTCOMES[0], OUTCOMES[2]]
    assert [outcome for outcome, _ in refused] == [OUTCOMES[1]]
