"""Whether the stores whose logs a run scanned are still the servers that it saw: a failover or a restore may have lost what was
done there, and a scan's confirmation with it."""

from __future__ import annotations

from collections.abc import Mapping

from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable


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
