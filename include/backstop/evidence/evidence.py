"""What was read besides stubs and logs, as the rule takes it: queues, groups, shards' clocks and dead letters.

`read_evidence` fills it; everything here is a value, or makes rows of `frames` from one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from backstop.brokers.protocol import Places, QueueState
from backstop.evidence.settle import Progress
from backstop.model.records import EARLIEST, LATEST
from backstop.verdicts.frames import DEAD_LETTER, Row, micros

if TYPE_CHECKING:
    import pyarrow as pa

_PACK = 10_000


@dataclass(frozen=True, slots=True)
class QueueReading:
    """One queue as seen now, beside what the run before saw."""

    state: QueueState
    epoch: str
    accepted: bool
    previous_next_offset: int | None
    previous_read_at: datetime | None


class DelayReading(NamedTuple):
    """Whatever was due before `delivered_until` had come to the topic's queues by `recorded_at`."""

    recorded_at: datetime
    delivered_until: datetime


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far one group is in one topic; `problems` say what could not be read."""

    topic: str
    group: str
    broker: str
    read_at: datetime | None = None
    """The control database's clock once `live` was read; null: it was not read."""
    live: Mapping[int, Progress] = field(default_factory=dict)
    settled: Mapping[int, Progress] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)
    progress_read: bool = False
    """Whether the broker answered for this group."""
    retry_pending: int | None = None
    waiting: frozenset[str] | None = None
    """The ids of what the broker will deliver to the group again, or later; null: they are not known, and as long as any wait,
    only what was passed when none did is settled."""
    retry_places: Places = field(default_factory=dict)
    """How far the group was in its retry queues; recorded for later looks."""
    log_floor: datetime | None = None
    clock_good: bool = False
    dead_letters_read: bool = False
    log_until: datetime | None = None
    """Where the group's log is a lake table's snapshot: up to when it can deny; null: up to when it is asked."""


class DeadLetters:
    """Rows of frames.DEAD_LETTER for the judged topics and messages alone, packed: there may be millions of others."""

    def __init__(self, topics: Collection[str], ids: Collection[str] | None = None) -> None:
        """`ids`: of these messages; null: of all."""
        self._topics, self._ids = frozenset(topics), None if ids is None else frozenset(ids)
        self._packed: list[pa.Table] = []
        self._rows: list[Row] = []

    def add(self, topics: Iterable[str], message_id: str, group: str | None) -> None:
        """`topics`: those that the dead letter may be of."""
        if self._ids is None or message_id in self._ids:
            self._rows += [
                {"topic": topic, "message_id": message_id, "consumer_group": group}
                for topic in topics
                if topic in self._topics
            ]
            if len(self._rows) >= _PACK:
                self._pack()

    def table(self) -> pa.Table:
        """All of them."""
        import pyarrow as pa

        self._pack()
        return pa.concat_tables(self._packed)

    def _pack(self) -> None:
        from backstop.verdicts.evaluate import table

        self._packed.append(table(DEAD_LETTER, self._rows))
        self._rows = []


@dataclass(slots=True)
class Readings:
    """All that one run, or one judgement by key, saw besides stubs and logs."""

    as_of: datetime
    to_judge: bool = True
    brokers: dict[str, str] = field(default_factory=dict)
    """By topic: the broker that was asked; a topic without groups has one, too."""
    queues: dict[str, dict[int, QueueReading]] = field(default_factory=dict)
    gone: dict[str, dict[int, QueueReading]] = field(default_factory=dict)
    """By topic: queues of earlier looks that the broker does not name any more, as a life that a person must accept."""
    delays: dict[str, list[DelayReading] | None] = field(default_factory=dict)
    """By topic: how far earlier looks found its delay storage emptied; null: the broker keeps nothing back."""
    delivered: dict[str, DelayReading] = field(default_factory=dict)
    """By topic: what this look found, to be remembered."""
    servers: dict[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    """(broker, its kind, topic) -> the servers that this look found, to be remembered."""
    groups: dict[tuple[str, str], GroupProgress] = field(default_factory=dict)
    shards: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """shard -> (clock is good, attempts were read)"""
    dead: DeadLetters = field(default_factory=lambda: DeadLetters(()))
    unread: set[tuple[str, str, str]] = field(default_factory=set)
    """(topic, group, how `sources.unreachable` names it), where a broker answers, but not about this group"""
    away: set[str] = field(default_factory=set)
    """Stores and brokers ("store billing_db", "broker main") that did not answer at all: each further wait for their time-out
    would tell nothing new."""
    others: list[Readings] = field(default_factory=list)
    """The same at each other configured broker that copies went to."""
    removed: set[tuple[str, str]] = field(default_factory=set)
    """(topic, broker) of copies whose broker is not configured any more, or is drained."""
    unaddressed: set[tuple[str | None, str | None]] = field(default_factory=set)
    """(topic, group) of dead letters without an id; null: of any."""
    drained: set[tuple[str, str]] = field(default_factory=set)
    """(topic, broker) of which a person states that nothing comes from there any more."""

    @property
    def unlisted(self) -> int:
        """Groups of which it is not known by id what comes again: one such message may hide the loss of others."""
        here = sum(look.progress_read and look.waiting is None for look in self.groups.values())
        return here + sum(other.unlisted for other in self.others)

    def waiting_rows(self) -> list[Row]:
        """Rows of frames.WAITING."""
        rows: list[Row] = [row for other in self.others for row in other.waiting_rows()]
        rows += [
            {"topic": look.topic, "consumer_group": look.group, "message_id": message_id}
            for look in self.groups.values()
            for message_id in look.waiting or ()
        ]
        return rows

    def delay_rows(self) -> list[Row]:
        """Rows of frames.DELAY_LOOK. From a broker that was removed nothing comes any more: a person says so, or nothing that went
        there is judged by time."""
        rows: list[Row] = [row for other in self.others for row in other.delay_rows()]
        for topic, readings in self.delays.items():
            rows += _delay_rows(topic, self.brokers[topic], readings)
        for topic, broker in self.removed:
            rows += _delay_rows(topic, broker, None)
        return rows

    def lives(self, topic: str) -> dict[int, QueueReading]:
        """The topic's queues, and those that are gone."""
        return self.queues.get(topic, {}) | self.gone.get(topic, {})

    def passed_until(self, look: GroupProgress) -> datetime | None:
        """The settled instant over every queue of the topic; null when one queue is not known, or is gone and not accepted."""
        queues = self.queues.get(look.topic)
        if queues is None or set(look.settled) != set(queues):
            return None
        if not all(queue.accepted for queue in self.gone.get(look.topic, {}).values()):
            return None
        return min((progress.passed_until for progress in look.settled.values()), default=None)

    def group_state_rows(self) -> list[Row]:
        """Rows of frames.GROUP_STATE: at these brokers, at the others that were looked at, and at those that were removed.

        Only a person who stated that a removed broker is drained has spoken for what it had: its copies then go by the time of the
        topic's own broker. That the lives of the queues there are accepted says nothing of it: first lives are accepted unasked.
        """
        rows: list[Row] = [
            {
                "topic": look.topic,
                "consumer_group": look.group,
                "broker": look.broker,
                "removed": False,
                "lives_accepted": all(queue.accepted for queue in self.lives(look.topic).values()),
                "passed_until": micros(self.passed_until(look)),
                "log_floor": micros(look.log_floor),
                "clock_good": look.clock_good,
                "offsets_read": look.topic in self.queues and look.progress_read,
                "retry_read": look.retry_pending is not None,
                "dead_letters_read": look.dead_letters_read,
            }
            for look in self.groups.values()
        ]
        gone = [
            {
                **row,
                "broker": broker,
                "removed": True,
                "lives_accepted": (topic, broker) in self.drained,
            }
            for row in rows
            for topic, broker in self.removed
            if row["topic"] == topic
        ]
        return [*rows, *gone, *(row for other in self.others for row in other.group_state_rows())]

    def shard_state_rows(self) -> list[Row]:
        """Rows of frames.SHARD_STATE."""
        return [
            {"shard": shard, "clock_good": clock, "attempts_read": attempts}
            for shard, (clock, attempts) in self.shards.items()
        ]

    def progress_rows(self) -> list[Row]:
        """Rows of frames.PROGRESS: every queue of every group looked at, its offsets known even where progress is not."""
        rows: list[Row] = [row for other in self.others for row in other.progress_rows()]
        for look in self.groups.values():
            for queue_id, queue in self.lives(look.topic).items():
                settled = look.settled.get(queue_id)
                # What the queue lacks now may have been done after the snapshot: only what was passed before it counts.
                ends = look.log_until is None
                rows.append(
                    {
                        "topic": look.topic,
                        "consumer_group": look.group,
                        "broker": look.broker,
                        "queue_id": queue_id,
                        "epoch": queue.epoch,
                        "epoch_accepted": queue.accepted,
                        "settled_offset": settled.next_offset if settled else None,
                        "first_offset": queue.state.first_offset if ends else None,
                        "next_offset": queue.state.next_offset if ends else None,
                        "previous_next_offset": queue.previous_next_offset if ends else None,
                        "previous_read_at": micros(queue.previous_read_at) if ends else None,
                        "rate": look.rates.get(queue_id),
                    }
                )
        return rows


def _delay_rows(topic: str, broker: str, readings: Sequence[DelayReading] | None) -> list[Row]:
    """One row for each interval of due instants, with the first look that found nothing of it left."""
    readings = [DelayReading(EARLIEST, LATEST)] if readings is None else readings
    by_due = sorted(readings, key=lambda look: look.delivered_until)
    first_seen = list(accumulate((look.recorded_at for look in reversed(by_due)), min))[::-1]
    after: int | None = None
    rows: list[Row] = []
    for look, seen_at in zip(by_due, first_seen, strict=True):
        until = micros(look.delivered_until)
        rows.append(
            {
                "topic": topic,
                "broker": broker,
                "due_after": after,
                "due_until": until,
                "seen_at": micros(seen_at),
            }
        )
        after = until
    return rows
