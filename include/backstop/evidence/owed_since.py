"""From when each group owes a topic's messages: a group that comes to a live topic owes nothing of its history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.verdicts.frames import OwedFrom

_SQL = load("backstop.evidence", "queries.sql")


def read_owed_since(cursor: Any, settings: Settings, topics: Iterable[str]) -> OwedFrom:
    """By (topic, group), what the control database knows; `active_from` in backstop.yaml wins over it.

    A group that no run has seen yet owes from now on, unless its topic is new as well.
    """
    wanted = [topic for topic in topics if topic in settings.topics]
    cursor.execute(_SQL["owed_since"], {"topics": wanted})
    known = {(topic, group): owed_from for topic, group, owed_from in cursor.fetchall()}
    cursor.execute(_SQL["control_clock"])
    now = cursor.fetchone()[0]
    live = {topic for topic, _ in known}
    return {
        (topic, group): known.get((topic, group), now if topic in live else None)
        for topic in wanted
        for group in settings.groups_of(topic)
    }
