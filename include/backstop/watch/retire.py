"""Ends findings that no rule is asked about any more: their topic, group, duty or heartbeat has left the settings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.watch.due_trigger import NOBODY_LOOKS
from backstop.watch.owners import RULE as BOOKS
from backstop.watch.parked import NO_DECISION, STANDS
from backstop.watch.samples import Answer
from backstop.watch.size import RULE as SIZE

_SQL = load("backstop.watch", "queries.sql")


def retired(cursor: Any, settings: Settings, as_of: datetime) -> list[Answer]:
    """An answer for each open finding whose subject is not watched any more; it says why it ends, and not that all is well."""
    cursor.execute(_SQL["subjects_found"])
    found = [
        (rule, topic, group, _why(settings, rule, topic, group, as_of))
        for rule, topic, group in cursor.fetchall()
    ]
    return [
        Answer(rule, topic, group, None, f"{why}. Whether it is still so is not known.")
        for rule, topic, group, why in found
        if why is not None
    ]


def _why(settings: Settings, rule: str, topic: str, group: str, as_of: datetime) -> str | None:
    """As a sentence without its end; null: it is watched."""
    if rule == "duty_overdue":
        return (
            None
            if topic in settings.watched_duties()
            else f"The duty {topic} is not in watch.allowed_age any more"
        )
    if rule == "heartbeat":
        return None if settings.heartbeat is not None else "No heartbeat is configured any more"
    if rule == NOBODY_LOOKS:
        return None  # its own answer says when it is over
    if rule in (SIZE, BOOKS, NO_DECISION, STANDS):
        return (
            None
            if group in ("*", *settings.groups)
            else f"The group {group} is not in backstop.yaml any more"
        )
    if topic not in settings.topics:
        return f"The topic {topic} is not in backstop.yaml any more"
    if rule in ("offsets_stopped", "stubs_stopped") and not settings.counts_stubs(topic):
        return f"The stubs of {topic} are in a lake table, and nobody can count them without Spark"
    if group == "*":
        return None
    if group not in settings.groups_of(topic):
        return f"The group {group} does not take {topic} any more, by backstop.yaml"
    ended = settings.groups[group].active_until
    if ended is not None and ended <= as_of:
        return f"The group {group} has ended (active_until)"
    if rule == "logging_stopped" and settings.groups[group].progress == "logged":
        return f"The progress of {group} is derived from its logs now: without them it stands still"
    if rule == "logging_stopped" and not settings.dates_receipts(group):
        return f"The inbox of {group} does not say when messages were received, so nobody can count them"
    return None
