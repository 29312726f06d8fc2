"""What one run did, for the step that closes it."""

from __future__ import annotations

from typing import Any

from backstop.model.records import Counts
from backstop.sql.named import load

_SQL = load("backstop.reports", "runs.sql")


def counts_of(control: Any, run_id: int, due: int) -> Counts:
    """The run's counts by name: verdicts as they were staged, requests and cases as they were made."""
    counts = Counts(due=due)
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["counts"], {"run_id": run_id})
        for name, number in cursor.fetchall():
            counts[name] = int(number)
    return counts


def proof_of(control: Any, run_id: int) -> tuple[str, str, Counts] | None:
    """(answer, sentence, deliveries by standing) of the proof that the run published; null: it published none."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["proof"], {"run_id": run_id})
        found = cursor.fetchone()
    return None if found is None else (found[0], found[1], Counts(found[2]))
