"""Receives for one consumer of a group, as RocketMQ's own pull consumers do, and shares the queues with them.

The group's progress is the lowest offset that is not acknowledged, so that a queue never passes what somebody still has. What is
handed back without counting stays in this consumer's hands; what failed is sent back to the broker, which stores it in the
group's retry topic before the queue may pass it, and makes the dead letter after the last delivery.
"""

from __future__ import annotations

import heapq
import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Self

from backstop.brokers.protocol import Received
from backstop.brokers.rocketmq.consumer.committed import committed
from backstop.brokers.rocketmq.consumer.members import EVERY_TAG, MessageQueue, subscription
from backstop.brokers.rocketmq.consumer.process_queue import Held, ProcessQueue
from backstop.brokers.rocketmq.consumer.pull import Puller
from backstop.brokers.rocketmq.consumer.push_handler import PushHandler
from backstop.brokers.rocketmq.consumer.share_queues import QueueShare
from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.brokers.rocketmq.message.names import (
    RETRY,
    decode,
    encode_group,
    encode_topic,
    queue_number,
    retry_topic,
)
from backstop.brokers.rocketmq.message.properties import RETRY_TOPIC, message_of
from backstop.brokers.rocketmq.routes.find_origins import Dead, Origins
from backstop.brokers.rocketmq.routes.route import Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.connections import MasterConnections
from backstop.brokers.rocketmq.wire.frames import Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.log_limit import LimitedLog
from backstop.model.records import Message, Position

log = logging.getLogger(__name__)

PULSE_SECONDS = 2.0
"""How often it is seen to, while a handler works, that signs of life go out and questions are answered."""
COMMIT_SECONDS = 5.0
"""How late a queue may tell of messages that the filter left out: nothing is acknowledged for them."""
MOST_BYTES_AT_ONCE = 64 * 1024 * 1024
"""Of contents that one fetch hands out, and one message more: packed ones may be large."""
ORIGINS_AGAIN_SECONDS = 30.0
AT_ONCE_DEAD = -1
"""The delay level of what is to be a dead letter without another try."""
_BROKER_ID = re.compile(r"[^/@]+/\d+/\d+@(.+)#\d+", re.DOTALL)


class RocketMQSubscription:
    """One consumer of a group over its share of the topics' queues. Not shared between threads."""

    def __init__(
        self,
        pool: Pool,
        routes: Routes,
        *,
        group: str,
        topics: Sequence[str],
        consumer: str,
        seconds: float,
        delivery_limit: int,
        levels: Sequence[timedelta],
        pull_batch: int = 32,
        tags: Mapping[str, Sequence[str]] | None = None,
        in_order: bool = False,
    ) -> None:
        """`seconds`: for one answer. `levels`: the broker's delay levels. `tags`: the group's filter for a topic; none: every
        message. `in_order`: without the group's retry topic, whose messages have lost their place, and a queue that is another's
        now is kept until it is released. All consumers of a group must have the same topics and filters, as everywhere
        with RocketMQ."""
        self._group, self._limit, self._levels = encode_group(group), delivery_limit, list(levels)
        self.topics = tuple(topics)
        self._brokers, self._origins = routes.brokers, Origins(pool, routes, seconds=seconds)
        wanted = {
            encode_topic(topic): frozenset(some)
            for topic in topics
            if (some := (tags or {}).get(topic))
        }
        filters = {name: subscription(wanted.get(name, ())) for name in map(encode_topic, topics)}
        if not in_order:
            filters[retry_topic(group)] = EVERY_TAG
        client = f"{encode_group(consumer[:40])}@{os.getpid()}#{secrets.token_hex(6)}"
        self._push_handler = PushHandler()
        self._connections = MasterConnections(pool, self._push_handler.handle)
        self._share = QueueShare(
            self._connections,
            routes,
            self._push_handler,
            client=client,
            group=self._group,
            filters=filters,
            seconds=seconds,
        )
        self._share.waits_for_drain = in_order
        self._push_handler.answer_with(self._share.running_info)
        self._puller = Puller(
            self._connections,
            self._share,
            self._group,
            filters,
            wanted,
            batch=pull_batch,
            seconds=seconds,
        )
        self._out: dict[str, Held] = {}
        """What was handed out and is not done with, by its broker_id."""
        self._later: list[tuple[float, int, Held]] = []
        self._order = count()
        self._crowded = False
        """The fetch before this one had room for what was due again only."""
        self._commit_at = 0.0
        self._origins_at = 0.0
        """When origins are looked up again, after a look-up that failed."""
        self._limited = LimitedLog(log)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._alive: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fetch(self, limit: int, wait: timedelta) -> list[Received]:
        """Up to `limit` messages; BrokerUnavailable when a broker does not answer: what it held of it comes again."""
        deadline = time.monotonic() + wait.total_seconds()
        with self._lock:
            self._begin()
            while True:
                self._share.keep()
                self._follow_resets()
                # What is handed back again and again without a delay would leave no room for anything else.
                found = [] if self._crowded else self._due(limit)
                crowded = len(found) == limit
                try:
                    self._puller.arrived()
                    self._puller.pull(limit - len(found))
                    found += self._fresh(limit - len(found))
                    if self._crowded:
                        found += self._due(limit - len(found))
                    self._crowded = crowded
                    self._commit_left_out()
                except BrokerUnavailable as error:
                    found = [held for held in found if self._has(held)]
                    if not found:
                        raise
                    self._limited.warning(
                        str(error)
                    )  # pulled messages go first; the next call meets the error again
                if found or time.monotonic() >= deadline:
                    return [held.received for held in found if held.received is not None]
                self._connections.wait(
                    min(
                        deadline, self._share.due_at, self._later[0][0] if self._later else deadline
                    )
                )

    def assigned(self) -> list[MessageQueue]:
        """The queues that are this consumer's now; those that are another's and not yet released are not among them."""
        with self._lock:
            self._begin()
            self._share.keep()
            self._follow_resets()
            self._commit_left_out()
            return [
                queue for queue in self._share.process_queues if queue not in self._share.leaving
            ]

    def fetch_of(self, queue: MessageQueue, limit: int) -> list[Received]:
        """As `fetch`, of one queue and without waiting. Raises BrokerUnavailable."""
        with self._lock:
            self._share.pulse()
            process_queue = self._share.process_queues.get(queue)
            if process_queue is None or queue in self._share.leaving:
                return []
            self._puller.arrived()
            self._puller.pull_of(process_queue, limit)
            return [
                held.received
                for held in self._fresh(limit, process_queue)
                if held.received is not None
            ]

    def restart(self, queue: MessageQueue) -> None:
        """The queue is taken again: from the place that the group has committed. Raises BrokerUnavailable."""
        with self._lock:
            process_queue = self._share.process_queues.get(queue)
            if process_queue is not None:
                [offset] = committed(self._share.ask, self._group, [queue], "taking a queue over")
                process_queue.move(offset or 0, committed=offset)
                self._out = {
                    broker_id: held for broker_id, held in self._out.items() if self._has(held)
                }

    def release(self, queue: MessageQueue) -> None:
        """Nothing of the queue is in work: others may have it."""
        with self._lock:
            try:
                self._share.release(queue)
            except BrokerUnavailable as error:
                self._limited.warning(str(error))  # what was acknowledged last comes again
            self._out = {
                broker_id: held for broker_id, held in self._out.items() if self._has(held)
            }

    def bury(self, received: Received) -> bool:
        """Moves it to the group's dead letters at once; false: it is not in hand any more."""
        with self._lock:
            held = self._held(received)
            if held is None:
                return False
            if not self._send_back(held, None):
                raise unavailable(
                    "moving a message to the dead letters", "the broker did not take it"
                )
            return True

    def acknowledge(self, received: Sequence[Received]) -> None:
        with self._lock:
            process_queues = []
            for one in received:
                held = self._held(one)
                if held is not None:
                    self._drop(held)
                    process_queues.append(held.process_queue)
            self._share.commit(dict.fromkeys(process_queues))

    def hand_back(
        self, received: Received, *, after: timedelta, counts: bool, error: str | None = None
    ) -> None:
        """`error` is not kept: RocketMQ has no place for it."""
        with self._lock:
            held = self._held(received)
            if (
                held is None
                or held.received is None
                or held.received.deliveries != received.deliveries
            ):
                return  # acknowledged, or delivered again meanwhile
            if counts and self._send_back(held, after):
                return
            if counts:
                held.received = replace(held.received, deliveries=held.received.deliveries + 1)
            held.due_at = time.monotonic() + max(0.0, after.total_seconds())
            heapq.heappush(self._later, (held.due_at, next(self._order), held))

    def close(self) -> None:
        """Leaves the group; its messages are delivered to the others at once."""
        self._closed.set()
        with self._lock:
            if self._connections.brokers:
                self._share.leave()
            self._connections.close()
            self._out.clear()
            self._later.clear()

    def _begin(self) -> None:
        """A thread that keeps it a member while a handler works; it ends with the subscription, closed or dropped."""
        if self._alive is None:
            self._alive = threading.Thread(
                target=_keep_alive,
                args=(weakref.ref(self), self._closed),
                name=f"alive-{self._group}",
                daemon=True,
            )
            self._alive.start()

    def pulse(self) -> None:
        """Says that it lives, unless the consumer's own thread is here and does so."""
        if self._lock.acquire(blocking=False):
            try:
                self._share.pulse()
            finally:
                self._lock.release()

    def _due(self, limit: int) -> list[Held]:
        found: list[Held] = []
        while self._later and len(found) < limit and self._later[0][0] <= time.monotonic():
            due_at, _, held = heapq.heappop(self._later)
            if held.due_at == due_at and self._has(held):
                held.due_at = None
                found.append(held)
        return found

    def _fresh(self, limit: int, only: ProcessQueue | None = None) -> list[Held]:
        """What was pulled and not handed out, up to `limit`, and fewer where they are large."""
        found: list[Held] = []
        room = MOST_BYTES_AT_ONCE
        for process_queue in self._puller.in_turn() if only is None else [only]:
            taken = process_queue.take(limit - len(found))
            room -= self._hand_out(taken, room)
            found += [held for held in taken if held.received is not None]
            process_queue.put_back([held for held in taken if held.received is None])
        for held in found:
            if held.received is not None:
                self._out[held.received.broker_id] = held
        return found

    def _hand_out(self, taken: Sequence[Held], room: int) -> int:
        """Reads those that fit, the first of all in any case, and returns their bytes."""
        again = [held for held in taken if held.process_queue.queue.topic.startswith(RETRY)]
        letters = [
            Dead(
                _topic_of(held),
                held.process_queue.queue.broker,
                self._connections.address(held.process_queue.queue.broker),
                held.stored,
            )
            for held in again
        ]
        positions = dict(zip(map(id, again), self._find_origins(letters), strict=True))
        size = 0
        for held in taken:
            if size >= room:
                break
            queue, stored, topic = held.process_queue.queue, held.stored, _topic_of(held)
            position: Position | None = Position(
                queue_number(queue.broker, queue.number, self._brokers), stored.offset, EPOCH
            )
            if id(held) in positions:
                position = positions[id(held)]
            message = message_of(stored, topic)
            if isinstance(message, str):
                # Without an id the consumer's contract check refuses it: it becomes a dead letter, as it was stored.
                log.error("A message of %s cannot be read: %s", queue, message)
                message = Message(topic, "", b"")
            size += len(message.content)
            broker_id = f"{queue.topic}/{queue.number}/{stored.offset}@{queue.broker}#{held.process_queue.life}"
            held.received = Received(message, position, broker_id, stored.reconsume_times + 1)
        return size

    def _find_origins(self, letters: Sequence[Dead]) -> list[Position | None]:
        """The positions of what comes again in its topic. Where a broker does not tell, they have none: a handler's work does not
        wait for it, nor do the other queues."""
        if letters and time.monotonic() >= self._origins_at:
            try:
                return self._origins.find(letters)
            except BrokerUnavailable as error:
                self._origins_at = time.monotonic() + ORIGINS_AGAIN_SECONDS
                self._limited.warning(str(error))
        return [None] * len(letters)

    def _send_back(self, held: Held, after: timedelta | None) -> bool:
        """Whether the broker has it in the retry topic, or among the dead letters, now. `after` null: it is a dead letter."""
        queue, stored = held.process_queue.queue, held.stored
        request = Request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "offset": stored.physical_offset,
                "group": self._group,
                # What the broker writes again has lost the sign that it is cut off: it must not come again, and is a dead letter now.
                "delayLevel": AT_ONCE_DEAD
                if stored.cut_off or after is None
                else _level(self._levels, after),
                "originMsgId": stored.unique_key or stored.store_id,
                "originTopic": stored.topic,
                "unitMode": False,
                "maxReconsumeTimes": self._limit - 1,
            },
        )
        [answer] = self._share.ask([(queue.broker, request)], "handing a message back")
        if answer.code != ResponseCode.SUCCESS:
            log.error(
                "The broker %s did not take back a message of %s: %s",
                queue.broker,
                queue,
                answer.said(),
            )
            return False
        self._drop(held)
        self._share.commit([held.process_queue])
        return True

    def _commit_left_out(self) -> None:
        """A queue also moves by what nobody acknowledges: left out by the filter, not there any more."""
        now = time.monotonic()
        if now >= self._commit_at:
            self._commit_at = now + COMMIT_SECONDS
            self._share.commit(self._share.process_queues.values())

    def _follow_resets(self) -> None:
        moved = []
        for queue, offset in self._push_handler.take_resets():
            process_queue = self._share.process_queues.get(queue)
            if process_queue is not None:
                log.warning("The group's place in %s was set to %d.", queue, offset)
                process_queue.move(offset, committed=None)
                self._share.forgot = True
                moved.append(process_queue)
        if self._share.forgot:
            self._share.forgot = False
            self._out = {
                broker_id: held for broker_id, held in self._out.items() if self._has(held)
            }
        self._share.commit(moved)

    def _held(self, received: Received) -> Held | None:
        """The message as this consumer holds it; None: not any more. What a broker that is away had lent comes again: only when
        no other broker is there is that an error, or one of many would stop the others."""
        named = _BROKER_ID.fullmatch(received.broker_id)
        if named is None:
            raise ContractBroken(
                "This message was not received from a RocketMQ subscription.",
                unaffected="Nothing was acknowledged or handed back.",
                next_step="Give back the objects that `fetch` returned.",
            )
        held = self._out.get(received.broker_id)
        if held is not None and self._has(held):
            return held
        why = self._share.away.get(named[1])
        if why is not None and not self._connections.brokers:
            raise unavailable(
                "acknowledging or handing back",
                f"{why}; unacknowledged messages are delivered again",
            )
        return None

    def _has(self, held: Held) -> bool:
        return self._share.process_queues.get(
            held.process_queue.queue
        ) is held.process_queue and held.process_queue.has(held)

    def _drop(self, held: Held) -> None:
        held.process_queue.done(held)
        held.due_at = None
        if held.received is not None:
            self._out.pop(held.received.broker_id, None)


def _keep_alive(subscription: weakref.ref[RocketMQSubscription], closed: threading.Event) -> None:
    while not closed.wait(PULSE_SECONDS):
        its = subscription()
        if its is None:
            return
        its.pulse()
        del its


def _topic_of(held: Held) -> str:
    """Ours; one that comes again tells its own. In the topic itself anybody may have written that property."""
    topic = held.process_queue.queue.topic
    return decode(
        held.stored.properties.get(RETRY_TOPIC, topic) if topic.startswith(RETRY) else topic
    )


def _level(levels: Sequence[timedelta], after: timedelta) -> int:
    """The smallest delay level that is not below it; the longest, if all are."""
    fitting = [(delay, place) for place, delay in enumerate(levels, start=1) if delay >= after]
    return (
        min(fitting)[1]
        if fitting
        else max((delay, place) for place, delay in enumerate(levels, start=1))[1]
    )
