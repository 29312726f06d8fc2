"""Reads what a broker will deliver to a group again, for all groups of a broker by one look where it can.

Call it after progress and queues were read: what failed since is in the retries, or ahead of the group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from backstop.brokers.protocol import Broker, Places, ProgressMeans, Retries, RetryLister
from backstop.evidence.require_possible import require_possible_positions
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import LATEST
from backstop.sql.named import load
from backstop.stores.lake.stores import LakeLogs

_SQL = load("backstop.evidence", "queries.sql")
_NEVER = datetime(1970, 1, 1, tzinfo=LATEST.tzinfo)
"""Before anything that was ever recorded."""


def read_retries_together(
    sources: Sources,
    cursor: Any,
    as_of: datetime,
    brokers: Mapping[str, str],
    groups: Mapping[str, Collection[str]],
) -> dict[tuple[str, str], Retries]:
    """What waits for another delivery, by (topic, group), of each broker that lists it for many groups by one look; `groups`: by
    topic. One that cannot be read leaves all of its broker out: each is then asked for by itself (`read_retries`)."""
    found: dict[tuple[str, str], Retries] = {}
    for name in sorted({brokers[topic] for topic in groups}):
        try:
            broker = sources.broker(name)
            if not broker.capabilities.lists_retries_together:
                continue
            wanted = {
                (topic, group): _retry_places(broker, sources, cursor, as_of, name, topic, group)
                for topic, its in groups.items()
                if brokers[topic] == name and sources.settings.ids_on_the_wire(topic)
                for group in its
            }
            if len(wanted) > 1:
                found |= cast(RetryLister, broker).list_retries_together(wanted)
        except Unavailable:
            continue
    return found


def read_retries(
    broker: Broker,
    sources: Sources,
    cursor: Any,
    as_of: datetime,
    name: str,
    topic: str,
    group: str,
) -> Retries:
    """What waits for another delivery."""
    if not broker.capabilities.lists_retries or not sources.settings.ids_on_the_wire(topic):
        # Without ids any of them may be any message: they hold back what is settled.
        return Retries(broker.retry_pending(topic, group), None, {})
    since = _retry_places(broker, sources, cursor, as_of, name, topic, group)
    seen = broker.list_retries(topic, group, since)
    require_possible_positions(f"what comes to {group} of {topic} again", seen.but_for_them or ())
    return seen


def _retry_places(
    broker: Broker,
    sources: Sources,
    cursor: Any,
    as_of: datetime,
    name: str,
    topic: str,
    group: str,
) -> Places | None:
    """From where on retries are listed: where the group was a settle grace ago, because what it took from its retry queue since then
    may come again. None: from where it is."""
    grace, until = settle_grace(broker, sources, topic, group), log_until(sources, as_of, group)
    if grace <= timedelta(0) and until is None:
        return None
    cursor.execute(
        _SQL["retry_place"],
        {
            "group": group,
            "broker": name,
            "topic": topic,
            "until": (until or as_of) - grace,
        },
    )
    return next((row[0] for row in cursor.fetchall()), {})


def settle_grace(broker: Broker, sources: Sources, topic: str, group: str) -> timedelta:
    """How old recorded progress must be to be settled, by what it counts."""
    policy = sources.settings.policy_for(topic, group)
    declared = ProgressMeans(sources.settings.groups[group].progress)
    if declared is ProgressMeans.LOGGED:
        return policy.consume_timeout
    # A group may call its progress acknowledged only where the broker's means that much.
    exact = declared is broker.capabilities.progress_means is ProgressMeans.ACKNOWLEDGED
    return timedelta(0) if exact else policy.redelivery_horizon


def log_until(
    sources: Sources, as_of: datetime, group: str, *, to_judge: bool = True
) -> datetime | None:
    """Up to when the group's log can deny, where it is a lake table: nothing that was passed later counts. None: it is asked after
    the progress was read, and has all of it. Who does not judge may run no Spark, and takes nothing of a lake's group for settled."""
    settings = sources.settings
    if not settings.is_lake_log(group):
        return None
    if not to_judge:
        return _NEVER
    try:
        return cast(LakeLogs, sources.logs_of(group)).complete_until(as_of)
    except Unavailable as error:
        sources.missed(f"store {settings.groups[group].store}", error)
        return _NEVER
