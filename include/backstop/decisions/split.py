"""Takes out of a case what the decision is not about, before the whole case is decided; it becomes a case of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backstop.cases.open import Member, open_case
from backstop.decisions.list_cases import Case
from backstop.sql.named import load

_SQL = load("backstop.decisions", "queries.sql")


def take_out(
    cur: Any, case: Case, shown_at: str | None, ids: Collection[str] | None
) -> list[Member]:
    """Those that were not named; without names, those that came after the person was shown the case."""
    if case.kind == "ramp_stopped":
        return []  # it is about its batch, and its deliveries are examples
    cur.execute(
        _SQL["split"],
        {
            "case_id": case.case_id,
            "shown_at": shown_at,
            "ids": None if ids is None else sorted(ids),
        },
    )
    return list(cur.fetchall())


def open_rest(cur: Any, case: Case, rest: list[Member]) -> int:
    """A case of the same cause for them, once the one they were in is not open any more; returns its id."""
    return open_case(
        cur,
        kind=case.kind,
        topic=case.topic,
        group=case.consumer_group,
        subject=case.subject,
        severity=case.severity,
        summary=f"{len(rest)} deliveries that the decision of case {case.case_id} was not about: {case.summary}",
        evidence={"split_from": case.case_id},
        members=rest,
        run_id=None,
    )
