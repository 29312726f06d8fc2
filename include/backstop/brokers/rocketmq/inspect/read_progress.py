"""Reads topics and groups: the ends of queues, committed offsets, and the time at an offset. Nothing is changed.

The order makes it safe: the time; then messages that are due and not delivered, and whether the queues hold all that was stored
before it; then committed offsets; then the ends of the queues; then the messages at the committed offsets. Whatever arrives in
between can only make a group appear farther behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from backstop.brokers.protocol import GroupPosition, QueueState
from backstop.brokers.rocketmq.inspect.clock import Clock, as_datetime
from backstop.brokers.rocketmq.inspect.schedule import Schedule, Times
from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.brokers.rocketmq.message.names import encode_group, encode_topic, queue_number
from backstop.brokers.rocketmq.message.stored import read_stored
from backstop.brokers.rocketmq.routes.group_configs import group_configs
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.requests import (
    NOTHING_THERE,
    ask_committed,
    number,
    pull,
    read_stats,
)
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import ContractBroken

PULLS = 50
"""Messages of up to 4 MiB each are in the answers at once."""
_STEPS = 10


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """One queue of a topic as its master has it now: the first offset still there and the next one to be stored."""

    number: int
    broker: str
    address: str
    queue_id: int
    first: int
    next: int


class ProgressReader:
    """Reads for one adapter. `seconds`: how long one call may take. Every method raises BrokerUnavailable rather than leave a
    queue out. Safe to share between threads."""

    def __init__(
        self, pool: Pool, routes: Routes, clock: Clock, schedule: Schedule, *, seconds: float
    ) -> None:
        self._pool, self._routes, self._clock, self._schedule, self._seconds = (
            pool,
            routes,
            clock,
            schedule,
            seconds,
        )

    def clock(self) -> datetime:
        """The time of the master that is behind the others."""
        deadline = self._deadline()
        return as_datetime(
            min(self._clock.read(self.masters("reading its clock", deadline), deadline).values())
        )

    def masters(self, doing: str, deadline: float) -> dict[str, str]:
        """broker name -> its master's address: those of the settings, else all that the name servers know."""
        known = self._routes.masters(deadline=deadline)
        return _there(
            {name: known[name] for name in self._routes.brokers or known if name in known}, doing
        )

    def servers(self, topic: str) -> frozenset[str]:
        """As the protocol has it; none of a topic whose name RocketMQ cannot have."""
        try:
            name = encode_topic(topic)
        except ContractBroken:
            return frozenset()
        return self._routes.servers(name, deadline=self._deadline())

    def queues(self, topic: str) -> list[QueueState]:
        """By their numbers."""
        deadline, doing = self._deadline(), f"looking at the queues of {topic!r}"
        name, masters, _ = self.find(topic, doing, deadline)
        times = self._clock.read(masters, deadline)
        return [
            QueueState(
                place.number, EPOCH, place.first, place.next, as_datetime(times[place.broker])
            )
            for place in self.places(name, masters, doing, deadline)
        ]

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        """What the group committed. A queue for which it never did counts as passed only when nothing was ever stored there;
        a commit beyond the queue's end is of an earlier life, and says nothing about this one.

        `pending` is 0: the broker does not know what consumers hold.
        """
        deadline, doing = self._deadline(), f"looking at the group {group!r} of {topic!r}"
        name, masters, queues = self.find(topic, doing, deadline)
        try:
            group_name = encode_group(group)
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        times = self._schedule.times(name, masters, doing, deadline)
        # By the route that was just read: a queue that came since is found below, by its master's own word.
        committed = self.committed(group_name, name, queues, doing, deadline)
        places = self.places(name, masters, doing, deadline)
        if any((place.broker, place.queue_id) not in committed for place in places):
            self._require_group(group_name, masters, doing, deadline)
        found: dict[int, int] = {}
        for place in places:
            offset = committed.get((place.broker, place.queue_id))
            found[place.number] = place.first if offset is None or offset > place.next else offset
        until = self._passed_until(name, places, found, times, doing, deadline)
        return [
            GroupPosition(place.number, EPOCH, found[place.number], until[place.number], 0)
            for place in places
        ]

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        """As the protocol has it; only what was asked for."""
        if not offsets:
            return {}
        deadline, doing = self._deadline(), f"looking for times in {topic!r}"
        name, masters, _ = self.find(topic, doing, deadline)
        times = self._schedule.times(name, masters, doing, deadline)
        places = [
            place
            for place in self.places(name, masters, doing, deadline)
            if place.number in offsets
        ]
        if len(places) < len(offsets):
            strange = sorted(set(offsets) - {place.number for place in places})
            raise unavailable(doing, f"it has no queue {', '.join(map(str, strange))}")
        return self._passed_until(name, places, offsets, times, doing, deadline)

    def delivered_until(self, topic: str) -> datetime:
        """As the protocol has it: of delay levels, and of messages with a time of their own."""
        deadline, doing = self._deadline(), f"looking for what is delayed in {topic!r}"
        name, masters, _ = self.find(topic, doing, deadline)
        return self._schedule.times(name, masters, doing, deadline).all_delivered

    def places(
        self, name: str, masters: Mapping[str, str], doing: str, deadline: float
    ) -> list[QueueEnds]:
        """Every queue that these masters have of a topic (RocketMQ's name), by their numbers."""
        requests = [
            (address, Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}))
            for address in masters.values()
        ]
        found: list[QueueEnds] = []
        for (broker, address), answer in zip(
            masters.items(), require_answers(self._pool, requests, deadline, doing), strict=True
        ):
            for queue_id, first, following in read_stats(answer, doing):
                number = queue_number(broker, queue_id, self._routes.brokers)
                found.append(QueueEnds(number, broker, address, queue_id, first, following))
        return sorted(found, key=lambda place: place.number)

    def committed(
        self,
        group: str,
        topic: str,
        queues: Iterable[tuple[str, str, int]],
        doing: str,
        deadline: float,
    ) -> dict[tuple[str, int], int]:
        """(broker, queue) -> what the group committed, by RocketMQ's names; without those for which it never did."""
        asked = list(queues)
        requests = [
            (address, ask_committed(group, topic, queue_id)) for _, address, queue_id in asked
        ]
        answers = require_answers(
            self._pool, requests, deadline, doing, also=(ResponseCode.QUERY_NOT_FOUND,)
        )
        return {
            (broker, queue_id): number(answer, "offset", doing)
            for (broker, _, queue_id), answer in zip(asked, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }

    def find(
        self, topic: str, doing: str, deadline: float
    ) -> tuple[str, dict[str, str], list[tuple[str, str, int]]]:
        """RocketMQ's name for the topic, its masters and its queues. Never from memory: a queue that is new would be missing."""
        try:
            name = encode_topic(topic)
            route = self._routes.route(name, deadline=deadline, fresh=True)
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        except NoSuchTopic as error:
            raise unavailable(doing, "there is no such topic") from error
        masters = _there(route.masters, doing)
        return (
            name,
            masters,
            [(queue.broker, masters[queue.broker], queue.queue_id) for queue in route.queues],
        )

    def _require_group(
        self, group: str, masters: Mapping[str, str], doing: str, deadline: float
    ) -> None:
        """BrokerUnavailable when no master knows the group, or it may not be known."""
        known = group_configs(self._pool, list(masters.values()), deadline, doing)
        if any(groups is None for groups in known):
            raise unavailable(doing, "this login may not read which groups there are")
        if not any(group in (groups or {}) for groups in known):
            raise unavailable(doing, "there is no such group")

    def _passed_until(
        self,
        name: str,
        places: Sequence[QueueEnds],
        offsets: Mapping[int, int],
        times: Times,
        doing: str,
        deadline: float,
    ) -> dict[int, datetime]:
        """For each place: the time of the first message at or above its offset, or the time of the look.

        Of several brokers it is all told by the clock of the one that is behind, which is the one that `clock` tells: a message
        on a broker whose clock is fast would else make more look passed than is.
        """
        found = {place.number: times.all_delivered for place in places}
        behind = [(place, max(offsets[place.number], place.first)) for place in places]
        behind = [(place, offset) for place, offset in behind if offset < place.next]
        for start in range(0, len(behind), PULLS):
            some = behind[start : start + PULLS]
            found |= self._stored_at(name, some, times, doing, deadline)
        return found

    def _stored_at(
        self,
        name: str,
        wanted: Sequence[tuple[QueueEnds, int]],
        times: Times,
        doing: str,
        deadline: float,
    ) -> dict[int, datetime]:
        found: dict[int, datetime] = {}
        for _ in range(_STEPS):
            requests = [
                (place.address, pull(name, place.queue_id, offset, 1)) for place, offset in wanted
            ]
            answers = require_answers(self._pool, requests, deadline, doing, also=NOTHING_THERE)
            again: list[tuple[QueueEnds, int]] = []
            for (place, offset), answer in zip(wanted, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    stored_at = _first_stored_at(answer, doing) - times.ahead(place.broker)
                    found[place.number] = min(stored_at, times.all_delivered)
                    continue
                following, end = (
                    number(answer, "nextBeginOffset", doing),
                    number(answer, "maxOffset", doing),
                )
                if max(offset, following) >= end:
                    found[place.number] = times.all_delivered
                else:
                    again.append(
                        (place, max(offset, following))
                    )  # removed meanwhile: the next one that is there
            if not again:
                return found
            wanted = again
        place, offset = wanted[0]
        raise unavailable(doing, f"the queue {place.number} does not give its message at {offset}")

    def _deadline(self) -> float:
        return time.monotonic() + self._seconds


def _first_stored_at(answer: Answer, doing: str) -> datetime:
    try:
        return read_stored(answer.body)[0].stored_at
    except (Malformed, IndexError) as error:
        raise unavailable(doing, f"a message that cannot be read: {error}") from error


def _there(masters: Mapping[str, str | None], doing: str) -> dict[str, str]:
    found = {name: address for name, address in masters.items() if address is not None}
    if len(found) < len(masters):
        raise unavailable(
            doing,
            f"the master of the broker {', '.join(sorted(set(masters) - set(found)))} is away",
        )
    return found
