"""Keeps one consumer's share of its group's queues: joins, takes what is allotted to it, lets go of what is another's.

A queue is let go after its commit, and taken when the one that had it says that it has let it go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from backstop.brokers.rocketmq.consumer.committed import commit, committed, take_queues
from backstop.brokers.rocketmq.consumer.hand_over import Handover
from backstop.brokers.rocketmq.consumer.members import (
    MessageQueue,
    allocate,
    ask_members,
    heartbeat,
    leave,
    running_info,
)
from backstop.brokers.rocketmq.consumer.process_queue import ProcessQueue
from backstop.brokers.rocketmq.consumer.push_handler import PushHandler
from backstop.brokers.rocketmq.message.names import RETRY
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Route, Routes
from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.connections import MasterConnections
from backstop.brokers.rocketmq.wire.exchange import Result
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.session import NotSent
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 20.0
"""The broker keeps a member that says nothing for 120 s."""
REBALANCE_SECONDS = 20.0
"""How often it computes its share again without being told that a member came or went."""
RETRY_SECONDS = 1.0
AWAY_SECONDS = 10.0
"""How soon a broker or a topic that could not be reached is tried again while others can."""


class QueueShare:
    """The share of one consumer. Not shared between threads; whoever shares it holds a lock."""

    def __init__(
        self,
        connections: MasterConnections,
        routes: Routes,
        push_handler: PushHandler,
        *,
        client: str,
        group: str,
        filters: Mapping[str, str],
        seconds: float,
    ) -> None:
        """Names are RocketMQ's; `filters`: what is subscribed to, topic -> tags. `seconds`: for one answer."""
        self._connections, self._routes, self._push_handler, self._seconds = (
            connections,
            routes,
            push_handler,
            seconds,
        )
        self._client, self._group, self._filters = client, group, dict(filters)
        self.version = time.time_ns() // 1_000_000
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        self.away: dict[str, str] = {}
        """Brokers whose connection was lost and was not made again, and why."""
        self.waits_for_drain = False
        """A queue that is another member's now is kept until `release`, and the others wait for it (HANDOVER_SECONDS)."""
        self.leaving: set[MessageQueue] = set()
        """Queues of other members that this one has not released yet."""
        self.forgot = False
        """A queue was given up or lost since the last call."""
        self._handover = Handover(connections, group)
        self._members: dict[str, list[str]] = {}
        self._rebalance_at = self._heartbeat_at = 0.0
        self._pulses: list[tuple[str, int]] = []
        self._limited = LimitedLog(log)

    def keep(self) -> None:
        """Does what is due. Raises BrokerUnavailable when a connection is over, or nothing can be taken."""
        self._forget_broken()
        now = time.monotonic()
        if self._push_handler.members_changed or now >= self._rebalance_at:
            self._push_handler.members_changed, self._rebalance_at = False, now + REBALANCE_SECONDS
            try:
                self._rebalance(now + self._seconds)
            except BrokerUnavailable as error:
                self._rebalance_at = time.monotonic() + RETRY_SECONDS
                self._forget_broken()
                if not self.process_queues:
                    raise
                self._limited.warning(f"The queues are shared as before. {error}")
        elif self._handover.queues:
            self._take_over()
        self.pulse()

    @property
    def due_at(self) -> float:
        """When `keep` has something to do, unless a push comes before."""
        if self._push_handler.members_changed:
            return 0.0
        handover = self._handover.due_at
        return min(
            self._rebalance_at,
            self._heartbeat_at,
            self._rebalance_at if handover is None else handover,
        )

    def pulse(self) -> None:
        """Says that it lives, without waiting for an answer."""
        self._connections.pump()
        self._take_pulses()
        now = time.monotonic()
        if now < self._heartbeat_at:
            return
        self._heartbeat_at = now + HEARTBEAT_SECONDS
        started = [
            (broker, self._connections.start(broker, self._heartbeat()))
            for broker in self._connections.brokers
        ]
        self._pulses += [(broker, number) for broker, number in started if number is not None]

    def _take_pulses(self) -> None:
        waiting: list[tuple[str, int]] = []
        for broker, number in self._pulses:
            answer = self._connections.taken(broker, number)
            if answer is None:
                waiting.append((broker, number))
            elif answer.code != ResponseCode.SUCCESS:
                log.warning("The broker %s did not take a sign of life: %s", broker, answer.said())
                self._push_handler.members_changed = True
        self._pulses = waiting if len(waiting) < 1000 else []

    def commit(self, process_queues: Iterable[ProcessQueue]) -> None:
        """What was acknowledged in these queues, where it moved their place. Raises BrokerUnavailable."""
        commit(self.ask, self._group, list(process_queues))

    def ask(self, requests: Sequence[tuple[str, Request]], doing: str) -> list[Answer]:
        """The answers, whatever they say. Raises BrokerUnavailable; the queues of a lost broker are dropped."""
        results: list[Result] = (
            self._connections.ask(requests, time.monotonic() + self._seconds) if requests else []
        )
        answers = [result for result in results if isinstance(result, Answer)]
        if len(answers) < len(results):
            self._forget_broken(doing)
            raise unavailable(
                doing, str(next(result for result in results if not isinstance(result, Answer)))
            )
        return answers

    def running_info(self) -> bytes:
        """What an administrator gets to see of this consumer."""
        rows = {
            queue: (process_queue.lowest, process_queue.next_offset, process_queue.size)
            for queue, process_queue in self.process_queues.items()
        }
        return running_info(
            self._filters, self.version, {**dict.fromkeys(self._handover.queues, (0, 0, 0)), **rows}
        )

    def refresh(self, topic: str) -> None:
        """Something is wrong with a queue of the topic: look where it is before anything else."""
        self._routes.forget(topic)
        self._push_handler.members_changed = True

    def leave(self) -> None:
        """Commits, lets all queues go and leaves the group, as far as the brokers answer. Never raises."""
        try:
            self.commit(self.process_queues.values())
        except BrokerUnavailable as error:
            log.warning("What was acknowledged last may come again. %s", str(error))
        deadline = time.monotonic() + self._seconds
        # A sign of life that the broker works on later than on the end of the connection makes it a member again, of no use.
        while self._pulses and not self._connections.broken() and self._connections.wait(deadline):
            self._take_pulses()
        self._connections.ask(
            [(broker, leave(self._client, self._group)) for broker in self._connections.brokers],
            deadline,
        )
        self.process_queues.clear()
        self._handover.want({}, ())

    def _rebalance(self, deadline: float) -> None:
        doing = "sharing the group's queues"
        routes, unread = self._read_routes(deadline)
        masters = {
            queue.broker: queue.master
            for route in routes.values()
            for queue in route.readable()
            if queue.master
        }
        self._connect(masters, deadline, leaves=not unread)
        if any(topic.startswith(RETRY) and topic not in routes for topic in self._filters):
            self._rebalance_at = (
                time.monotonic() + RETRY_SECONDS
            )  # the broker makes it when it hears of the first member
        members = self._read_members(doing)
        if unread or len(members) < len(masters):
            self._rebalance_at = min(self._rebalance_at, time.monotonic() + AWAY_SECONDS)
        wanted: dict[MessageQueue, str | None] = {
            queue: None for queue in self.process_queues if queue.topic in unread
        }
        for topic, route in routes.items():
            # All of them, also those of a broker that is away: the others of the group reckon with them too.
            queues = [MessageQueue(topic, one.broker, one.queue_id) for one in route.readable()]
            reachable = [queue.broker for queue in queues if queue.broker in members]
            if not reachable:
                continue
            now_in = members[min(reachable)]
            before = self._members.get(topic, [one for one in now_in if one != self._client])
            had = {queue: one for one in before for queue in allocate(queues, before, one)}
            self._members[topic] = now_in
            mine = allocate(queues, now_in, self._client)
            wanted |= {queue: had.get(queue) for queue in mine if queue.broker in members}
        self._let_go(
            [
                process_queue
                for queue, process_queue in self.process_queues.items()
                if queue not in wanted
            ]
        )
        everybody = {one for ids in members.values() for one in ids} - {self._client}
        self._handover.want(
            {queue: had for queue, had in wanted.items() if queue not in self.process_queues},
            everybody,
        )
        self._follow_moves(doing)
        self._take_over()

    def _read_routes(self, deadline: float) -> tuple[dict[str, Route], set[str]]:
        """The routes, and the topics whose route cannot be read: their queues stay as they are. Raises where no route can be."""
        routes: dict[str, Route] = {}
        unread: dict[str, BrokerUnavailable] = {}
        for topic in self._filters:
            try:
                # As the other members see it: the queues of a broker that the name servers do not know now are nobody's.
                routes[topic] = self._routes.route(topic, deadline=deadline, partial=True)
            except NoSuchTopic:
                if not topic.startswith(RETRY):
                    unread[topic] = unavailable("subscribing", f"there is no topic {topic}")
            except BrokerUnavailable as error:
                unread[topic] = error
        for why in unread.values():
            if all(topic.startswith(RETRY) for topic in routes):
                raise why
            self._limited.warning(str(why))
        return routes, set(unread)

    def _connect(self, masters: Mapping[str, str], deadline: float, *, leaves: bool) -> None:
        """Connects to every master that answers and is a member there; `leaves` those that have no queue of ours any more.

        One that does not answer holds up no other's queues. Raises BrokerUnavailable when none answers.
        """
        for broker in self._connections.brokers:
            if broker not in masters and leaves:
                self._connections.ask([(broker, leave(self._client, self._group))], deadline)
                self._forget(broker)
        new: list[str] = []
        for broker, address in masters.items():
            try:
                if self._connections.connect(broker, address, deadline):
                    self._forget_hands(broker)
                    new.append(broker)
            except NotSent as error:
                self.away[broker] = str(error)
        for broker, result in zip(
            new,
            self._connections.ask([(one, self._heartbeat()) for one in new], deadline),
            strict=True,
        ):
            if isinstance(result, Answer) and result.code == ResponseCode.SUCCESS:
                self.away.pop(broker, None)
            else:
                self.away[broker] = (
                    f"{broker} says {result.said()}" if isinstance(result, Answer) else str(result)
                )
                self._forget(broker)
        for broker in masters:
            if (why := self.away.get(broker)) is not None:
                if not self._connections.brokers:
                    raise unavailable("subscribing", why)
                self._limited.warning(f"{broker} is away, and its queues wait: {why}")
        if len(new) == len(masters):
            self._heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS

    def _read_members(self, doing: str) -> dict[str, list[str]]:
        """The group's members as each broker knows them."""
        brokers = self._connections.brokers
        found: dict[str, list[str]] = {}
        for broker, answer in zip(
            brokers,
            self.ask([(one, ask_members(self._group)) for one in brokers], doing),
            strict=True,
        ):
            if answer.code != ResponseCode.SUCCESS:
                raise unavailable(doing, f"{broker} says {answer.said()}")
            try:
                found[broker] = [str(one) for one in answer.json()["consumerIdList"]]
            except (Malformed, KeyError, TypeError) as error:
                raise unavailable(
                    doing, f"{broker} sent a list of members that cannot be read: {error}"
                ) from error
            if self._client not in found[broker]:
                self._heartbeat_at = 0.0
                raise unavailable(doing, f"{broker} does not know this consumer as a member")
        return found

    def release(self, queue: MessageQueue) -> None:
        """Nothing of the queue is in work any more. Raises BrokerUnavailable; it is let go in any case."""
        process_queue = self.process_queues.pop(queue, None)
        self.forgot = True
        if queue not in self.leaving:
            self._push_handler.members_changed = (
                True  # it is ours still: to be taken from the place that was committed
            )
        self.leaving.discard(queue)
        if process_queue is not None:
            self.commit([process_queue])

    def _let_go(self, process_queues: Sequence[ProcessQueue]) -> None:
        if self.waits_for_drain:
            self.leaving = {process_queue.queue for process_queue in process_queues}
            return
        if not process_queues:
            return
        self.commit(process_queues)
        for process_queue in process_queues:
            self.process_queues.pop(process_queue.queue, None)
        self.forgot = True

    def _follow_moves(self, doing: str) -> None:
        """Somebody who sets the group's offset by hand does not tell the consumers: they look."""
        process_queues = list(self.process_queues.values())
        offsets = committed(
            self.ask, self._group, [process_queue.queue for process_queue in process_queues], doing
        )
        for process_queue, offset in zip(process_queues, offsets, strict=True):
            if process_queue.moved:
                continue  # the broker has not been told yet
            if offset is not None and offset != process_queue.committed:
                log.warning(
                    "The group's place in %s was set to %d by somebody else; going on from there.",
                    process_queue.queue,
                    offset,
                )
                process_queue.move(offset, committed=offset)
                self.forgot = True

    def _take_over(self) -> None:
        for process_queue in take_queues(
            self.ask, self._group, self._handover.ready(), "taking queues over"
        ):
            self.process_queues[process_queue.queue] = process_queue
            self._handover.taken(process_queue.queue)

    def _heartbeat(self) -> Request:
        return heartbeat(self._client, self._group, self._filters, self.version)

    def _forget_broken(self, doing: str = "receiving") -> None:
        """Raises BrokerUnavailable when a connection is over: what it held comes again."""
        broken = self._connections.broken()
        for broker, why in broken.items():
            self._forget(broker)
            self.away[broker] = why
        if broken:
            self._push_handler.members_changed = True
            raise unavailable(doing, "; ".join(broken.values()))

    def _forget(self, broker: str) -> None:
        self._connections.drop(broker)
        self._forget_hands(broker)
        self._pulses = [(one, number) for one, number in self._pulses if one != broker]
        self._handover.forget(broker)

    def _forget_hands(self, broker: str) -> None:
        self.forgot = True
        self.process_queues = {
            queue: process_queue
            for queue, process_queue in self.process_queues.items()
            if queue.broker != broker
        }
