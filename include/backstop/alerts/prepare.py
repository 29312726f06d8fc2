"""Says of every alert in the outbox where it goes, and which need not be sent any more; tells undecided cases again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstop.config.alerts import SEVERITIES, AlertsSettings, ChannelSettings
from backstop.model.records import Counts
from backstop.sql.named import load

_SQL = load("backstop.alerts", "alerts.sql")
_AT_ONCE = 50_000
"""Alerts that one look routes: bounded, the gravest first, the rest by the next look."""


def prepare(conn: Any, alerts: AlertsSettings, channels: Mapping[str, ChannelSettings]) -> Counts:
    """In one transaction, which commits; counts `escalated`, `spared`, `given_up` and `unrouted`. Safe to run at any time."""
    names = list(channels)
    values: dict[str, Any] = {
        "severities": list(SEVERITIES),
        "channels": names,
        "at_least": [channels[name].at_least for name in names],
        "give_up": alerts.give_up_after.total_seconds(),
        "limit": _AT_ONCE,
    }
    steps = [
        (severity, after.total_seconds())
        for severity in SEVERITIES
        for after in getattr(alerts.escalate, severity)
    ]
    counts = Counts()
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["one_at_a_time"])
        cursor.execute(
            _SQL["escalate"],
            {
                "severities": list(SEVERITIES),
                "owners": [step[0] for step in steps],
                "afters": [step[1] for step in steps],
            },
        )
        counts.add("escalated", cursor.rowcount)
        cursor.execute(_SQL["spare"])
        counts.add("spared", cursor.rowcount)
        if names:
            cursor.execute(_SQL["forget_channels"], values)
            cursor.execute(_SQL["route"], values)
            cursor.execute(_SQL["end_unrouted"], values)
            counts.add("unrouted", cursor.rowcount)
            cursor.execute(_SQL["route_closings"], values)
        cursor.execute(_SQL["spare_on_channels"])
        cursor.execute(_SQL["give_up"], values)
        cursor.execute(_SQL["end_given_up"], values)
        counts.add("given_up", cursor.rowcount)
        cursor.execute(_SQL["spare_closings"])
        counts.add("spared", cursor.rowcount)
    return Counts({name: number for name, number in counts.items() if number})
