"""Writes the alert of a duty that fails: once since its last success, and again in steps while it goes on failing; of what a
person began, for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from backstop.sql.named import load

_SQL = load("backstop.watch", "queries.sql")
_EACH_DAY = timedelta(days=1)
EACH_RUN = frozenset({"decide_case", "replay_incident", "prove"})
"""DAGs whose runs are a person's: each failed one is told, because no later one makes up for it."""


def note_failure(
    conn: Any,
    duty: str,
    title: str,
    body: str,
    facts: Mapping[str, str],
    again: Sequence[timedelta] = (),
) -> bool:
    """Stores the alert of a duty that fails and commits; false when there is nothing new to tell.

    `facts`: names only, for channels that take fields. `again`: how long after the first alert it is told again while the duty
    goes on failing; after the last of them once a day.
    """
    with conn, conn.cursor() as cursor:
        if duty.partition("__")[0] in EACH_RUN:  # of each team, too
            # Not the name of the run last, which a person chooses: a key that ends in /over or /closed ends a story.
            key = f"duty/{duty}/{facts.get('run', '')}/failed"
            return _write(cursor, key, "warning", title, body, facts)
        cursor.execute(_SQL["last_success_of"], {"duty": duty})
        first = f"duty/{duty}/failed/{cursor.fetchone()[0]}"
        cursor.execute(_SQL["told_since"], {"dedup_key": first})
        announced = cursor.fetchone()
        if announced is None:
            return _write(cursor, first, "warning", title, body, facts)
        if (number := steps_passed(timedelta(seconds=announced[0]), again)) == 0:
            return False
        title = f"The duty {duty} still fails"
        body = f"It has not succeeded since the first alert, {int(announced[0] // 3600)} hours ago. {body}"
        return _write(cursor, f"{first}/again/{number}", "critical", title, body, facts)


def steps_passed(since: timedelta, again: Sequence[timedelta]) -> int:
    """How many of the steps are over, with one a day after the last (pure)."""
    passed = sum(since >= step for step in again)
    return passed + (since - again[-1]) // _EACH_DAY if passed and passed == len(again) else passed


def note_success(conn: Any, duty: str) -> None:
    """Keeps that a duty without runs of its own went well; commits. Its next failure is told as a new one."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["went_well"], {"duty": duty})


def note_back(conn: Any, since: str, failed: int, unsaid: Sequence[str]) -> None:
    """Stores, and commits, that the control database answers again. `failed`: so many notices were not sent meanwhile; `unsaid`:
    those of runs that people began."""
    body = f"It had not since {since}. {failed} failed runs had no alert of their own; the duties continue by themselves."
    if unsaid:
        body += f" Runs that people began, and that failed: {', '.join(unsaid)}."
    with conn, conn.cursor() as cursor:
        _write(
            cursor,
            f"duty/control_database/back/{since}",
            "warning",
            "The control database answers again",
            body,
            {},
        )


def _write(
    cursor: Any, key: str, severity: str, title: str, body: str, facts: Mapping[str, str]
) -> bool:
    cursor.execute(
        _SQL["failure"],
        {
            "dedup_key": key,
            "severity": severity,
            "title": title,
            "body": body,
            "facts": json.dumps(dict(facts)),
        },
    )
    return bool(cursor.rowcount)
