"""What a proof answers, the gravest first, and that it says what it does not know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backstop.reconcile.answer_proof import Answer, Counted, Window, answer

START = datetime(2030, 1, 2, tzinfo=UTC)
WINDOW = Window("orders", START, START + timedelta(hours=1))


def counted(**standings: int) -> list[Counted]:
    return [
        Counted("billing", name, "CONFIRMED", "r", number) for name, number in standings.items()
    ]


def test_stubs_that_no_group_owes_are_proven_by_nobody() -> None:
    said, sentence = answer(WINDOW, 10, 8, counted(done=8), 0, {})
    assert said is Answer.INCOMPLETE
    assert "2 stubs are owed by no group" in sentence
    # Broken ones are said as what they are, and not twice.
    said, sentence = answer(WINDOW, 10, 8, counted(done=8), 2, {})
    assert said is Answer.INCOMPLETE
    assert "owed by no group" not in sentence and "2 stubs break their contract" in sentence


@pytest.mark.parametrize(
    ("counts", "missed", "expected"),
    [
        (counted(done=9, confirmed_earlier=1), {}, Answer.NOTHING_LOST),
        (counted(done=9, unfinished=1), {}, Answer.UNFINISHED),
        (counted(done=8, unfinished=1, unknown=1), {}, Answer.INCOMPLETE),
        (counted(done=9, not_proven=1), {}, Answer.INCOMPLETE),
        (counted(done=10), {"shard shop_b": "it did not answer"}, Answer.INCOMPLETE),
        (counted(done=8, unknown=1, lost=1), {"shard shop_b": "it did not answer"}, Answer.LOST),
    ],
)
def test_the_gravest_of_what_was_found_is_the_answer(
    counts: list[Counted], missed: dict[str, str], expected: Answer
) -> None:
    said, sentence = answer(WINDOW, 10, 10, counts, 0, missed)
    assert said is expected
    assert all(why in sentence for why in missed.values()), "a gap is told beside a loss, too"
