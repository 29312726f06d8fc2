"""Reads who owns the queues of a topic, and how far behind each is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from backstop.evidence.sources import Sources, guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.stores.open import open_parking


class OwnedQueueNow(NamedTuple):
    """One queue of a group that owns its queues."""

    group: str
    queue: int
    state: str
    """FREE, OWNED, DRAINING (its owner hands it over), EXPIRED (anybody may take it), or GONE (FREE or EXPIRED, and the broker has
    no such queue)."""
    owner: str | None
    since: datetime
    waiting: int | None
    """Messages that the group has not passed; null: its broker did not answer."""
    waits_since: datetime | None
    """When the oldest of them was stored; null: none waits, or the broker did not answer."""


def read_queues(sources: Sources, topic: str) -> list[OwnedQueueNow]:
    """All queues of the topic that have owners; what does not answer is in `sources.unreachable`."""
    found: list[OwnedQueueNow] = []
    for group in sources.settings.groups_of(topic):
        if not sources.settings.parks_keys(group):
            continue  # nobody owns its queues here
        store = sources.settings.groups[group].store
        try:
            with (
                guarded(f"store {store}", StoreFailed),
                open_parking(sources.settings, sources.connections, store) as parked,
            ):
                owners = parked.owners([group], topic)
        except Unavailable as error:
            sources.missed(f"store {store}", error)
            continue
        waiting = _waiting(sources, topic, group) if owners else None
        for one in owners:
            behind: tuple[int | None, datetime | None] = (None, None)
            state = one.state_now
            if waiting is not None and one.queue_id in waiting:
                behind = waiting[one.queue_id]
            elif waiting is not None and state in ("FREE", "EXPIRED"):
                state = "GONE"
            found.append(OwnedQueueNow(group, one.queue_id, state, one.owner, one.since, *behind))
    return found


def _waiting(
    sources: Sources, topic: str, group: str
) -> dict[int, tuple[int | None, datetime | None]] | None:
    """Of each queue that the broker has; null: it did not answer."""
    name = sources.settings.topics[topic].broker
    try:
        broker = sources.broker(name)
        stored = {state.queue_id: state.next_offset for state in broker.queues(topic)}
        passed = {
            one.queue_id: one.next_offset
            for one in broker.progress(topic, group)
            if one.queue_id in stored
        }
        behind = {queue: max(0, stored[queue] - offset) for queue, offset in passed.items()}
        since = broker.passed_until(
            topic, {queue: passed[queue] for queue, number in behind.items() if number}
        )
    except Unavailable as error:
        sources.missed(f"broker {name}", error)
        return None
    return {queue: (behind.get(queue), since.get(queue)) for queue in stored}
