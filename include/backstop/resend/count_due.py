"""Count what a resend run would find, before one is opened or Spark is started."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backstop.config.settings import Settings
from backstop.sql.named import load

_SQL = load("backstop.resend", "queries.sql")


def count_due(control: Any, settings: Settings, wanted: Collection[str] | None = None) -> int:
    """Requests that may go out now, and claims that nobody finished, in the wanted topics (null: all); paused topics and those
    in mode observe wait."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["due"], {"topics": settings.repaired(wanted)})
        return int(cursor.fetchone()[0])


def any_due(control: Any, settings: Settings) -> bool:
    """Whether such a request or claim exists, or a batch is under way, which every run looks at."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["any_due"], {"topics": settings.repaired()})
        return bool(cursor.fetchone()[0])
