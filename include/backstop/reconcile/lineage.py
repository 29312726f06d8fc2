"""Whether the stores whose logs a run scanned are still the servers that it saw: a failover or a restore may have lost what was
done there, and a scan's confirmation with it. Asked before a promotion, and again before each commit in a shard."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any, NamedTuple

from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.sql.named import load
from backstop.stores.protocol import StubOutcomes

_SQL = load("backstop.reconcile", "queries.sql")
RESTS_ON_LOGS = frozenset({"confirmed", "exhausted"})
"""The statuses that a stub may get by work that was found done. As lapse_confirmations has it."""


class Scanned(NamedTuple):
    """What a run knew of a store before it scanned its logs, and the topics that rest on the scan."""

    lineage: str
    topics: frozenset[str]


def read_scanned(cursor: Any, run_id: int) -> dict[str, Scanned]:
    """The stores whose logs the run scanned, by name."""
    cursor.execute(_SQL["scanned_stores"], {"run_id": run_id})
    return {
        subject.removeprefix("store "): Scanned(lineage, frozenset(topics))
        for subject, lineage, topics in cursor.fetchall()
    }


class Confirmations:
    """Takes out of a run's staged outcomes, chunk by chunk, those that rest on a scan which lapsed meanwhile. For one thread."""

    def __init__(
        self, settings: Settings, sources: Sources, scanned: Mapping[str, Scanned]
    ) -> None:
        self._settings, self._sources = settings, sources
        self._good = dict(scanned)
        self.lapsed: dict[str, Scanned] = {}
        """By store; none of them is asked again."""

    def standing(self, chunk: StubOutcomes) -> StubOutcomes:
        """The chunk without them: one question to each store that it rests on."""
        if not self._good and not self.lapsed:
            return chunk
        topics, _, old_statuses, new_statuses, *_ = chunk.columns
        rests = list(map(_rests_on_logs, old_statuses, new_statuses))
        resting = set(compress(topics, rests))
        asked = {
            store: one.lineage
            for store, one in self._good.items()
            if not one.topics.isdisjoint(resting)
        }
        for store in not_continued(self._settings, self._sources, asked):
            self.lapsed[store] = self._good.pop(store)
        gone = frozenset().union(*(one.topics for one in self.lapsed.values()))
        if gone.isdisjoint(resting):
            return chunk
        stays = [
            not (on_logs and topic in gone) for topic, on_logs in zip(topics, rests, strict=True)
        ]
        return StubOutcomes([list(compress(column, stays)) for column in chunk.columns])


def _rests_on_logs(old_status: str, new_status: str) -> bool:
    return new_status in RESTS_ON_LOGS and new_status != old_status


def not_continued(settings: Settings, sources: Sources, lineages: Mapping[str, str]) -> list[str]:
    """Of these stores (name -> lineage before the scan), those that are another server now, went back, or do not answer."""
    return [
        store
        for store, lineage in lineages.items()
        if not _continues(settings, sources, store, lineage)
    ]


def topics_of(settings: Settings, store: str) -> list[str]:
    """The topics that a group of the store owes: those that rest on a scan of it."""
    groups = {name for name, group in settings.groups.items() if group.store == store}
    return sorted(topic for topic in settings.topics if groups & set(settings.groups_of(topic)))


def _continues(settings: Settings, sources: Sources, store: str, lineage: str) -> bool:
    group = next((name for name, group in settings.groups.items() if group.store == store), None)
    try:
        return group is not None and sources.logs_of(group).continues(lineage)
    except Unavailable:
        return False
