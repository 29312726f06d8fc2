"""Lists the alerts of the outbox: which channels took each, and which did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backstop.sql.named import load

_SQL = load("backstop.alerts", "alerts.sql")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `channels`: by name told, waits, given up, or how often it was tried and what kind of failure it was."""

    alert_id: int
    created_at: datetime
    severity: str
    key: str
    title: str
    body: str
    delivered_at: datetime | None
    ended: str | None
    channels: Mapping[str, str]


def any_waiting(conn: Any) -> bool:
    """Whether a deliverer would find something to do now."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["any_waiting"])
        return bool(cursor.fetchone()[0])


def list_alerts(conn: Any, *, undelivered: bool = False, limit: int = 100) -> list[Alert]:
    """The newest first. `undelivered`: only those that no channel has taken yet."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["list"], {"undelivered": undelivered, "limit": limit})
        return [Alert(*row) for row in cursor.fetchall()]
