"""Which deliveries a parked ordering key keeps the content of: its release processes them, whatever else was decided of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from backstop.evidence.read_by_key import Delivery
from backstop.evidence.sources import Sources
from backstop.model.records import Key


def kept_contents(sources: Sources, deliveries: Iterable[Delivery]) -> set[Delivery]:
    """Asked of the contents and not of the logs: a log stays PARKED after its key was answered. Raises StoreUnavailable."""
    settings, by_group = sources.settings, defaultdict[str, set[Key]](set)
    for topic, message_id, group in deliveries:
        if (
            group in settings.groups
            and settings.keeps_own_log(group)
            and settings.parks_keys(group)
        ):
            by_group[group].add(Key(topic, message_id))
    return {
        (*key, group)
        for group, keys in by_group.items()
        for key in sources.parking_of(group).kept(group, sorted(keys))
    }
