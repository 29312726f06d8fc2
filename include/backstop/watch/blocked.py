"""Finds queues that one message holds up while the group's consumers run, and makes a case of them, for every broker alike.

A group that stands as a whole is an alert of its own (`group_stands`); this is the one queue that a look at the sum cannot see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstop.brokers.protocol import Holder
from backstop.cases.close import Cause, close_by_cause
from backstop.cases.open import open_case
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.sql.named import load
from backstop.watch import rules
from backstop.watch.judge import limits_of
from backstop.watch.sample_groups import History
from backstop.watch.samples import QueueSample

_SQL = load("backstop.watch", "queries.sql")
KIND, SUBJECT = "queue_blocked", "queues"
SHOWN = 20
"""Queues that one case lists; it counts them all."""
_OVER = (
    "the group has passed what it stood at, or its consumers are gone, or nothing comes any more"
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """One queue that does not move, and who holds it."""

    queue: QueueSample
    holders: Sequence[Holder]


@dataclass(slots=True)
class Blocks:
    """What this run found; a (topic, group) that is not among `looked` could not be told."""

    found: dict[tuple[str, str], list[Blocked]] = field(default_factory=dict)
    looked: set[tuple[str, str]] = field(default_factory=set)
    queues: dict[tuple[str, str], int] = field(default_factory=dict)


def look_for_blocked(sources: Sources, cursor: Any, history: History, as_of: datetime) -> Blocks:
    """Asks stores and brokers only about queues that stand; what does not answer is in `sources.unreachable`.

    It takes two looks: one that asks how far the group has logged, and a later one that sees that it is still there.
    """
    blocks = Blocks()
    for (topic, group), looks in history.queues.items():
        limits = limits_of(sources.settings, sources.settings.policy_for(topic, group))
        suspects = rules.suspects(looks, as_of, limits)
        asking = f"store {sources.settings.groups[group].store}"
        try:
            standing = _standing(sources, cursor, topic, group, suspects) if suspects else []
            asking = f"broker {sources.settings.topics[topic].broker}"
            holders = _holders(sources, topic, group) if standing else []
        except Unavailable as error:
            sources.missed(asking, error)
            continue
        blocks.looked.add((topic, group))
        blocks.queues[topic, group] = len(looks)
        consumers = len({holder.consumer for holder in holders})
        if standing and rules.alive(looks, history.groups[topic, group], consumers, limits):
            blocks.found[topic, group] = [
                Blocked(queue, [holder for holder in holders if holder.queue_id == queue.queue_id])
                for queue in standing
            ]
    return blocks


def tell_of_blocked(
    sources: Sources, cursor: Any, blocks: Blocks, as_of: datetime, run_id: int
) -> Counts:
    """One case for each topic and group, in the caller's transaction; closes those that are over. Counts `blocked` queues."""
    counts = Counts()
    for (topic, group), queues in blocks.found.items():
        cursor.execute(_SQL["open_blocked"], {"topic": topic, "group": group})
        case = cursor.fetchone()
        announced = _announce(cursor, topic, queues, case, as_of)
        open_case(
            cursor,
            kind=KIND,
            topic=topic,
            group=group,
            subject=SUBJECT,
            severity="warning",
            summary=_summary(topic, group, queues, blocks.queues[topic, group]),
            evidence={
                "queues": [_evidence(one) for one in queues[:SHOWN]],
                "blocked": len(queues),
                "announced": announced,
                "seen_at": as_of,
            },
            members=[],
            run_id=run_id,
        )
        counts.add("blocked", len(queues))
    counts.add("blocked_over", close_by_cause(cursor, KIND, _still(sources, cursor, blocks), _OVER))
    return Counts({name: number for name, number in counts.items() if number})


def _announce(
    cursor: Any,
    topic: str,
    queues: Sequence[Blocked],
    case: tuple[int, list[int]] | None,
    as_of: datetime,
) -> list[int]:
    """The blocked queues that an alert has named, this run's included. `case`: the open case and the queues that its alerts named
    before; None: it opens now, and its first alert is about all of them. At most one alert an hour: a queue that comes after
    it is in the next hour's."""
    shown = queues[:SHOWN]
    if case is None:
        return [one.queue.queue_id for one in shown]
    case_id, before = case
    announced = [one.queue.queue_id for one in queues if one.queue.queue_id in before]
    further = [one for one in shown if one.queue.queue_id not in before]
    if further:
        cursor.execute(
            _SQL["tell_of_further"],
            {
                "case_id": case_id,
                "dedup_key": f"case/{case_id}/{as_of:%Y-%m-%dT%H}",
                "title": f"Case {case_id}: more queues of {topic} are blocked",
                "body": f"{'; '.join(_place(one) for one in further)}. See: backstop cases show {case_id}",
            },
        )
        if cursor.rowcount:
            announced += [one.queue.queue_id for one in further]
    return announced


def _still(sources: Sources, cursor: Any, blocks: Blocks) -> Collection[Cause]:
    """Causes that are there, or of which nobody could tell now."""
    still: set[Cause] = {(KIND, topic, group, SUBJECT) for topic, group in blocks.found}
    cursor.execute(_SQL["causes_blocked"])
    for topic, group, subject in cursor.fetchall():
        watched = topic in sources.settings.topics and group in sources.settings.groups_of(topic)
        if watched and (topic, group) not in blocks.looked:
            still.add((KIND, topic, group, subject))
    return still


def _standing(
    sources: Sources, cursor: Any, topic: str, group: str, suspects: Sequence[QueueSample]
) -> list[QueueSample]:
    """Those behind whose place nothing was logged since the look before."""
    # Logs carry the broker's own epoch, without the number that a restored queue gets here.
    ends = {(one.queue_id, one.epoch.partition("~")[0]): one.stored for one in suspects}
    highest = sources.logs_of(group).highest_logged(group, topic, ends)
    logged = {queue_id: highest.get((queue_id, epoch), -1) for queue_id, epoch in ends}
    cursor.execute(
        _SQL["save_logged"],
        {
            "topic": topic,
            "group": group,
            "queues": list(logged),
            "logged": list(logged.values()),
        },
    )
    return [one for one in suspects if rules.blocked(one, logged[one.queue_id])]


def _holders(sources: Sources, topic: str, group: str) -> list[Holder]:
    broker = sources.broker(sources.settings.topics[topic].broker)
    return broker.holders(topic, group) if broker.capabilities.tells_holders else []


def _summary(topic: str, group: str, queues: Sequence[Blocked], of: int) -> str:
    shown = "; ".join(_place(one) for one in queues[:3]) + ("; ..." if len(queues) > 3 else "")
    return (
        f"{len(queues)} of {of} queues of {topic} do not move in {group} while messages arrive and its consumers run: {shown}."
        " A message that is tried again and again, or a handler that hangs, blocks everything behind it. Fix what its"
        " handler needs, or give the handler a limit after which it parks the message"
    )


def _place(one: Blocked) -> str:
    queue = one.queue
    by = (
        f", held by {' and '.join(holder.consumer for holder in one.holders)}"
        if one.holders
        else ""
    )
    return f"queue {queue.queue_id} at offset {queue.passed} since {queue.since:%H:%M} UTC, {queue.stored - queue.passed} wait{by}"


def _evidence(one: Blocked) -> dict[str, Any]:
    queue = one.queue
    return {
        "queue": queue.queue_id,
        "offset": queue.passed,
        "stands_since": queue.since,
        "waiting": queue.stored - queue.passed,
        "came_since": queue.came,
        "oldest_seconds": round(queue.backlog_seconds),
        "held_by": [
            {"consumer": holder.consumer, "locked": holder.locked, "locked_at": holder.locked_at}
            for holder in one.holders
        ],
    }
