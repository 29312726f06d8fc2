"""Opens the cases of what reconcile found: one for each kind, topic and group. There may be millions of deliveries in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backstop.cases.open import Member, open_case
from backstop.model.records import Counts

CaseKey = tuple[str, str, str]
"""kind, topic, consumer_group"""

_SUMMARIES = {
    "exhausted": "{n} deliveries of {topic} to {group} used up their sends: decide what becomes of them",
    "mass_loss": "{n} deliveries of {topic} to {group} look lost at once: nothing was resent, a person must decide",
    "new_epoch": "{topic} began a new life in the broker: older copies of {group} cannot be judged until it is accepted",
    "backlog": "{n} deliveries of {topic} to {group} wait in the broker beyond the backlog horizon",
    "unknown": "{n} deliveries of {topic} to {group} could not be judged for too long",
    "overdue": "{n} deliveries of {topic} to {group} are not done beyond the overdue horizon",
    "stalled": "{n} deliveries of {topic} to {group} were received and not finished, and no rule may resend them: the group takes no"
    " duplicates, or their dead letters are forgotten since the control database was restored",
    "refused": "{n} deliveries of {topic} to {group} were refused for good: too large, no such topic, or their content was"
    " erased",
    "no_route": "{n} deliveries of {topic} to {group} cannot be resent without reaching a group that a copy might harm",
}
_SEVERITY = {"mass_loss": "critical", "exhausted": "critical", "new_epoch": "critical"}


def open_cases(
    cursor: Any,
    run_id: int,
    found: Mapping[CaseKey, Sequence[Member]],
    evidence: Mapping[CaseKey, Mapping[str, object]],
) -> Counts:
    """Returns `cases`, and the deliveries of each kind; in the caller's transaction."""
    totals = {case: len(members) for case, members in found.items()}
    return open_in_parts(cursor, run_id, totals, found.items(), evidence)


def open_in_parts(
    cursor: Any,
    run_id: int,
    totals: Mapping[CaseKey, int],
    parts: Iterable[tuple[CaseKey, Sequence[Member]]],
    evidence: Mapping[CaseKey, Mapping[str, object]],
) -> Counts:
    """The same of deliveries that come in parts, of which one is in memory at a time; `totals`: how many each case gets in all."""
    counts = Counts()
    for (kind, topic, group), members in parts:
        open_case(
            cursor,
            kind=kind,
            topic=topic,
            group=group,
            subject="",
            severity=_SEVERITY.get(kind, "warning"),
            summary=_SUMMARIES[kind].format(n=totals[kind, topic, group], topic=topic, group=group),
            evidence=evidence.get((kind, topic, group), {}),
            members=members,
            run_id=run_id,
        )
        counts.add(f"case_{kind}", len(members))
    if totals:
        counts.add("cases", len(totals))
    return counts
