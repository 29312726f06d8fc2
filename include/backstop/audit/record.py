"""Writes down what one look found: how much was read, how many breaches, the first ids, and an alert where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg2.extras import execute_values

from backstop.audit.day import Day
from backstop.audit.invariants import INVARIANTS, LATE
from backstop.model.records import Counts
from backstop.runs.run import Run, hold
from backstop.sql.named import load

_SQL = load("backstop.audit", "queries.sql")
KEPT = 1_000
"""Breaches of one look that are kept by id; their number is kept in any case."""
SAID = 5
_SUBJECT_BYTES = 2_000


class Breach(NamedTuple):
    """One row that breaks an invariant, by ids."""

    subject: str
    topic: str | None = None
    message_id: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True)
class Look:
    """One invariant at one place. `missed`: why not everything was read, null: it was."""

    invariant: str
    place: str = "control"
    rows_read: int = 0
    by_database: bool = False
    """The database looked by itself, and answered only with what breaks the invariant: how much it read is not known."""
    breaches: list[Breach] = field(default_factory=list)
    more: int = 0
    """Breaches beyond those that are listed."""
    missed: str | None = None
    cut: list[str] = field(default_factory=list)
    """What was only looked at in part, as was meant; it is written down, and the look is whole."""


def record(control: Any, run: Run, day: Day, looks: Sequence[Look]) -> Counts:
    """One transaction, which holds the run. The alert is written with the finding it tells of."""
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for look in looks:
            number = len(look.breaches) + look.more
            where = {"run_id": run.run_id, "invariant": look.invariant, "place": look.place}
            cursor.execute(
                _SQL["record_look"],
                {
                    **where,
                    "rows_read": None if look.by_database else look.rows_read,
                    "breaches": number,
                    "complete": look.missed is None,
                    "detail": look.missed or "; ".join(look.cut) or None,
                },
            )
            cursor.execute(_SQL["forget_findings"], where)
            rows = [
                (run.run_id, look.invariant, look.place, _indexable(subject), *ids)
                for subject, *ids in look.breaches[:KEPT]
            ]
            if rows:
                execute_values(cursor, _SQL["record_findings"], rows)
                cursor.execute(_SQL["alert"], _alert(run, day, look, number))
            counts.add("looks")
            counts.add("rows_read", look.rows_read)
            counts.add("breaches", number)
            counts.add("not_read", int(look.missed is not None))
    return counts


def _indexable(subject: str) -> str:
    """As it is, or its SHA-256 where no index could hold it: a stub's id may be longer than the contract allows."""
    text = subject.encode()
    return subject if len(text) <= _SUBJECT_BYTES else f"sha256:{sha256(text).hexdigest()}"


def _alert(run: Run, day: Day, look: Look, number: int) -> dict[str, str]:
    named = ", ".join(breach.subject for breach in look.breaches[:SAID])
    return {
        # The two parts of a key up to its second slash are the thread, which is one incident on call: each place has its own.
        "dedup_key": f"audit-{day.name}/{look.invariant} {look.place.replace('%', '%25').replace('/', '%2F')}",
        "severity": "warning" if look.invariant in LATE else "critical",
        "title": f"The audit of {day.name} found {number} breaches of {look.invariant} in {look.place}",
        "body": f"What must hold: {INVARIANTS[look.invariant]}. It does not for {named}{' and others' if number > SAID else ''}."
        f" Nothing was changed by the audit. See: backstop runs show {run.run_id}; docs/how-to/retention-and-audit.md",
    }
