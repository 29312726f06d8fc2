"""What the one notifier has told and has still to tell: the alerts of the watch, and one of each duty that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstop.named_sql import load

_SQL = load("backstop.health", "queries.sql")


@dataclass(frozen=True, slots=True)
class Unsaid:
    """An alert that no channel has taken."""

    key: str
    severity: str
    title: str
    body: str


def note_failure(conn: Any, duty: str, title: str, body: str) -> Unsaid | None:
    """Stores the alert of a duty that fails and commits; null when somebody was already told of it since its last success."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["last_success_of"], {"duty": duty})
        key = f"duty/{duty}/failed/{cursor.fetchone()[0]}"
        cursor.execute(_SQL["alert"], {"dedup_key": key, "severity": "warning", "title": title, "body": body})
        cursor.execute(_SQL["unsaid_alert"], {"dedup_key": key})
        row = cursor.fetchone()
    return None if row is None else Unsaid(*row)


def unsaid(conn: Any) -> list[Unsaid]:
    """Alerts of the watch and of failed duties that no channel has taken, oldest first; those of a day ago are given up."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["unsaid_alerts"])
        return [Unsaid(*row) for row in cursor.fetchall()]


def said(conn: Any, alert: Unsaid) -> None:
    """A channel has taken it; commits."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["said"], {"dedup_key": alert.key})
