"""Asks the control database for everything in it that breaks an invariant."""

from __future__ import annotations

from typing import Any

from backstop.audit.day import Day
from backstop.audit.record import KEPT, Breach, Look
from backstop.config.settings import Settings
from backstop.requests.policy import NOT_CLAIMED
from backstop.sql.named import load

_SQL = load("backstop.audit", "control.sql")


def audit_control(settings: Settings, control: Any, day: Day) -> list[Look]:
    """One look for each query of control.sql. A run on the day is asked of the duties of watch.allowed_age."""
    values = {
        "day_from": day.start,
        "day_to": day.end,
        "patient_since": day.patient_since,
        "as_of": day.as_of,
        "duties": sorted(settings.watch.allowed_age),
        "not_claimed": NOT_CLAIMED,
        "alerts_wanted": bool(settings.channels()) or not settings.alerts.none_wanted,
    }
    looks = []
    for invariant, query in _SQL.items():
        with control, control.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*) OVER (), found.* FROM ({query}) AS found LIMIT {KEPT:d}", values
            )
            rows = cursor.fetchall()
        number = rows[0][0] if rows else 0
        looks.append(
            Look(
                invariant,
                by_database=True,
                breaches=[Breach(*row[1:]) for row in rows],
                more=number - len(rows),
            )
        )
    return looks
