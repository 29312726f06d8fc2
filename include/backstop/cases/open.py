"""Opens a case for what a person must decide, or joins the open one of the same cause; its alert is written with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg2.extras import execute_values

from backstop.cases.close import closing_key
from backstop.sql.named import load

_SQL = load("backstop.cases", "queries.sql")

Member = tuple[str, str, str, str]
"""shard, topic, message_id, consumer_group"""


def open_case(
    cur: Any,
    *,
    kind: str,
    topic: str,
    group: str,
    subject: str,
    severity: str,
    summary: str,
    evidence: Mapping[str, object],
    members: Sequence[Member],
    run_id: int | None,
    reopens: bool = False,
) -> int:
    """Returns the case's id; everything is written in the caller's transaction.

    One cause (kind, topic, group, subject) has one open case and one alert, however often it is found. Members that a
    person left on purpose, or whose resend a person asked for and which is still on its way, open nothing again.
    `reopens`: a cause that comes back opens its last case again, and the caller sees to it that what a person left stays left.
    """
    where: dict[str, Any] = {"kind": kind, "topic": topic, "group": group, "subject": subject}
    fresh, left = list(members), None
    # A decision of it that is being made is waited for, so that what follows sees it.
    cur.execute(_SQL["hold"], where)
    if reopens:
        _reopen(cur, where, severity, summary)
    elif members:
        cur.execute(
            _SQL["covered"],
            {
                **where,
                "topics": [m[1] for m in members],
                "ids": [m[2] for m in members],
                "groups": [m[3] for m in members],
            },
        )
        covered = {tuple(row[:3]): row[3] for row in cur.fetchall()}
        fresh = [member for member in members if member[1:] not in covered]
        left = max(covered.values(), default=None)
    else:
        cur.execute(_SQL["left_without_members"], where)
        found = cur.fetchone()
        left = found[0] if found else None
    if left is not None and not fresh:
        return int(left)
    cur.execute(
        _SQL["open"],
        {
            **where,
            "severity": severity,
            "summary": summary,
            "run_id": run_id,
            "evidence": json.dumps(dict(evidence), default=str),
        },
    )
    case_id, reopened = cur.fetchone()
    if fresh:
        once = {member[1:]: (case_id, *member) for member in fresh}
        execute_values(cur, _SQL["add_members"], sorted(once.values()), page_size=5_000)
    thread = f"case/{case_id}" + (f"/reopened/{reopened}" if reopened else "")
    cur.execute(
        _SQL["alert"],
        {
            "case_id": case_id,
            "dedup_key": thread,
            "severity": severity,
            "title": f"Case {case_id}: {kind} in {topic}",
            "body": f"{summary}. See: backstop cases show {case_id}",
        },
    )
    if severity == "critical":
        cur.execute(
            _SQL["alert_worse"],
            {
                "case_id": case_id,
                "thread": thread,
                "severity": severity,
                "title": f"Case {case_id} is critical now: {kind} in {topic}",
                "body": f"{summary}. See: backstop cases show {case_id}",
            },
        )
    return int(case_id)


def _reopen(cur: Any, where: Mapping[str, Any], severity: str, summary: str) -> None:
    """Opens the last case of the cause again, where none is open; what was decided of it stays in its evidence.

    One that was decided and not closed has a story that nobody was told the end of: it ends here, and another begins.
    """
    cur.execute(_SQL["reopen"], where)
    for case_id, times in cur.fetchall():
        cur.execute(
            _SQL["alert"],
            {
                "case_id": case_id,
                "dedup_key": closing_key(case_id, times - 1),
                "severity": "info",
                "title": f"Case {case_id} closed: {where['kind']} in {where['topic']}",
                "body": "It was decided, and has come back since: see the next alert.",
            },
        )
        cur.execute(
            _SQL["alert"],
            {
                "case_id": case_id,
                "dedup_key": f"case/{case_id}/reopened/{times}",
                "severity": severity,
                "title": f"Case {case_id} came back: {where['kind']} in {where['topic']}",
                "body": f"{summary}. It was decided or closed before. See: backstop cases show {case_id}",
            },
        )
