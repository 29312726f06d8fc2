"""The suites as data: one SQL file each, in which every check is a query that returns the ids of what breaks
it.

A check starts with a line `-- name: <name>: <what must hold>` and reads `FROM {batch} AS run`, one row
(run_id, stage, started_at, as_of, repair_topics) that is the run being audited; it says JOIN, because that is
how Great Expectations knows that the query names {batch} itself. It selects ids only: never a payload,
because results are kept and shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from backstop.sql.named import load_queries

SUITES = (
    "stubs_at_the_door",
    "logs_at_the_door",
    "verdicts",
    "requests",
    "attempts",
    "proof",
    "leases_before",
    "leases_after",
    "letters_drained",
    "causes",
    "letters_decided",
    "audit",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation: `sql` returns a row of ids for each breach, and none when `must_hold` does."""

    name: str
    must_hold: str
    sql: str


@cache
def checks_of(suite: str) -> tuple[Check, ...]:
    """The checks of one of SUITES, in the order of its file. Unknown names raise KeyError."""
    if suite not in SUITES:
        raise KeyError(f"{suite} is none of {', '.join(SUITES)}")
    found = load_queries(__name__, f"{suite}.sql")
    return tuple(Check(query.name, query.sentence, query.sql) for query in found)
