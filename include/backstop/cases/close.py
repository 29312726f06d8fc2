"""Closes the cases that are over: every delivery in them was done, withdrawn or discarded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from backstop.sql.named import load

_SQL = load("backstop.cases", "queries.sql")

Delivery = tuple[str, str, str]
"""topic, message_id, consumer_group"""
Cause = tuple[str, str, str, str]
"""kind, topic, consumer_group, subject"""


def close_satisfied(cur: Any, run_id: int, done: Sequence[Delivery] = ()) -> int:
    """Returns how many cases it closed, in the caller's transaction; each gets a closing alert, once.

    Settled are members of messages that the run's present stage found confirmed or voided, discarded deliveries, and
    `done`: deliveries that the caller judged CONFIRMED or VOIDED by key. A case without members is only closed by a person.
    """
    cur.execute(_SQL["by_hash"])
    cur.execute(_SQL["settle_by_run"], {"run_id": run_id})
    cur.execute(_SQL["by_any_plan"])
    cur.execute(_SQL["settle_discarded"])
    if done:
        settle(cur, done)
    return close_settled(cur)


def close_settled(cur: Any) -> int:
    """Closes every case all of whose members have settled; returns how many. One of dead letters of which a person left all that
    is undecided is theirs: left, and no longer open."""
    # Two statements: the second one sees what was committed while the first one waited for a case that somebody added to.
    cur.execute(_SQL["lock_cases_with_all_settled"])
    cur.execute(_SQL["close_settled"], {"cases": [case_id for (case_id,) in cur.fetchall()]})
    closed = cur.fetchall()
    for case_id, kind, topic, group, decision, reopened in closed:
        how = f"after the decision to {decision}" if decision else "by itself"
        body = f"Every delivery to {group} in it was done, withdrawn or discarded, {how}."
        if kind == "dead_letters" and not decision:
            # Letters leave a case for a replay, too, and for the case of another cause.
            body = f"No dead letter of {group} in it is undecided: each is discarded, is being replayed, or is in another case."
        cur.execute(
            _SQL["alert"],
            {
                "case_id": case_id,
                "dedup_key": closing_key(case_id, reopened),
                "severity": "info",
                "title": f"Case {case_id} closed: {kind} in {topic}",
                "body": body,
            },
        )
    _leave_rest(cur)
    return len(closed)


def _leave_rest(cur: Any) -> None:
    cur.execute(_SQL["lock_cases_left"])
    cur.execute(_SQL["leave_rest"], {"cases": [case_id for (case_id,) in cur.fetchall()]})
    for case_id, kind, topic, reopened in cur.fetchall():
        cur.execute(
            _SQL["alert"],
            {
                "case_id": case_id,
                "dedup_key": closing_key(case_id, reopened),
                "severity": "info",
                "title": f"Case {case_id} closed: {kind} in {topic}",
                "body": "All that is undecided of it was left on purpose.",
            },
        )


def close_by_cause(
    cur: Any, kind: str, still: Collection[Cause], why: str, groups: Collection[str] | None = None
) -> int:
    """Closes the cases of a kind (of these groups; null: all) whose cause is not found any more; returns how many.

    One that a person left is closed with them: when its cause comes back, it is a new case.
    """
    cur.execute(_SQL["of_kind"], {"kind": kind, "groups": None if groups is None else list(groups)})
    over = [row for row in cur.fetchall() if tuple(row[1:5]) not in still]
    for case_id, _, topic, group, subject, reopened in over:
        cur.execute(_SQL["close"], {"case_id": case_id})
        cur.execute(
            _SQL["alert"],
            {
                "case_id": case_id,
                "dedup_key": closing_key(case_id, reopened),
                "severity": "info",
                "title": f"Case {case_id} closed: {kind} in {topic}",
                "body": f"{subject} of {group}: {why}.",
            },
        )
    return len(over)


def closing_key(case_id: int, reopened: int) -> str:
    """The key of a case's closing alert: each time that it was reopened is a story with a closing of its own."""
    return f"case/{case_id}/reopened/{reopened}/closed" if reopened else f"case/{case_id}/closed"


def settle(cur: Any, done: Sequence[Delivery]) -> None:
    """Marks these deliveries as settled in every case that is not closed."""
    cur.execute(
        _SQL["settle_members"],
        {
            "topics": [d[0] for d in done],
            "ids": [d[1] for d in done],
            "groups": [d[2] for d in done],
        },
    )
