"""Is a letter whose broker id is stored already the same letter? Every row of the rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backstop.brokers.protocol import DeadLetter
from backstop.triage.drain.redrain_match import Met, Stored, redrain_match

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEFORE, SINCE = BEGAN - timedelta(seconds=1), BEGAN + timedelta(seconds=1)
DEATH, ANOTHER_DEATH = BEGAN - timedelta(hours=2), BEGAN - timedelta(hours=1)


@pytest.mark.parametrize(
    ("died", "stored_died", "batch", "acknowledged", "first_batch", "met"),
    [
        # Both deaths are known: they decide, whatever became of the page.
        (DEATH, DEATH, 5, None, None, Met.KNOWN),
        (DEATH, DEATH, 5, BEFORE, None, Met.KNOWN),
        (DEATH, DEATH, 5, SINCE, 5, Met.KNOWN),
        (ANOTHER_DEATH, DEATH, 5, None, None, Met.NEW),
        (ANOTHER_DEATH, DEATH, 5, SINCE, 7, Met.NEW),
        # One is not: a reader hands out each entry once, so what this reading stored was another entry.
        (None, None, 7, None, 7, Met.NEW),
        (None, DEATH, 8, SINCE, 7, Met.NEW),
        # Stored by an earlier reading that died before the acknowledgement, or is at work beside us.
        (None, None, 6, None, 7, Met.KNOWN),
        (DEATH, None, 6, None, None, Met.KNOWN),
        # The broker had removed it before we came: what we were given is another.
        (None, None, 6, BEFORE, None, Met.NEW),
        # It removed it while we were reading: we may hold it, or what died since. The next drain can tell.
        (None, None, 6, SINCE, None, Met.LEFT),
        (None, DEATH, 6, BEGAN, 7, Met.LEFT),
    ],
)
def test_the_rule_of_letters_that_are_met_again(
    died: datetime | None,
    stored_died: datetime | None,
    batch: int,
    acknowledged: datetime | None,
    first_batch: int | None,
    met: Met,
) -> None:
    letter = DeadLetter("q", "id", "g", "t", "m", b"", b"{}", died_at=died)
    assert (
        redrain_match(
            letter,
            Stored("id", "t", "g", "m", stored_died, batch, acknowledged),
            BEGAN,
            first_batch,
        )
        is met
    )


def test_what_another_run_stored_beside_this_reading_may_be_the_same_letter() -> None:
    letter = DeadLetter("q", "id", "g", "t", "m", b"", b"{}")
    theirs = Stored("id", "t", "g", "m", None, 8, None, same_run=False)
    assert redrain_match(letter, theirs, BEGAN, 7) is Met.KNOWN
