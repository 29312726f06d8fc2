"""Pulls from this consumer's queues: at once while they give messages, else by a pull that the broker holds until one comes.

So a consumer that waits costs nothing, and what comes is there at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping

from backstop.brokers.budget import has_room
from backstop.brokers.rocketmq.consumer.process_queue import ProcessQueue
from backstop.brokers.rocketmq.consumer.share_queues import QueueShare
from backstop.brokers.rocketmq.message.names import RETRY
from backstop.brokers.rocketmq.message.properties import tag_of
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.connections import MasterConnections
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.requests import SUBSCRIPTION, SUSPEND
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)

SUSPEND_SECONDS = 15.0
LATE_SECONDS = 5.0
"""The broker looks only every 5 s whether a pull that it holds is to be answered."""
MOST_IN_HAND = 10_000
MOST_BYTES_IN_HAND = 64 * 1024 * 1024
"""A consumer that holds more pulls only from queues of which it holds less than their share."""


class Puller:
    """The pulls of one consumer. Not shared between threads."""

    def __init__(
        self,
        connections: MasterConnections,
        share: QueueShare,
        group: str,
        filters: Mapping[str, str],
        tags: Mapping[str, Collection[str]],
        *,
        batch: int,
        seconds: float,
    ) -> None:
        """Topics are RocketMQ's; `filters` as subscribed to, `tags`: the same as tags, where not every message is wanted."""
        self._connections, self._share, self._group, self._filters, self._tags = (
            connections,
            share,
            group,
            filters,
            tags,
        )
        self._batch, self._seconds = batch, seconds
        self._turn = 0
        self._limited = LimitedLog(log)
        self._problem: BrokerUnavailable | None = None
        """What the first queue said that could not be read since the last `pull`."""

    def pull(self, room: int) -> None:
        """Until `room` messages wait to be handed out, or every queue was asked and is empty.

        Raises BrokerUnavailable when a queue could not be read and no other one has anything.
        """
        ready = deque(
            process_queue
            for process_queue in self.in_turn()
            if process_queue.pulling is None and self._may_take(process_queue)
        )
        while ready and room > (
            waiting := sum(
                process_queue.fresh for process_queue in self._share.process_queues.values()
            )
        ):
            some = [ready.popleft() for _ in range(min(len(ready), room - waiting))]
            number = min(self._batch, max(1, (room - waiting) // len(some)))
            requests = [
                (process_queue.queue.broker, self._request(process_queue, number))
                for process_queue in some
            ]
            for process_queue, answer in zip(
                some, self._share.ask(requests, "receiving"), strict=True
            ):
                try:
                    more = self._read(process_queue, answer)
                except BrokerUnavailable as error:
                    self._problem = self._problem or error
                    continue  # it is asked again by the next call; the others go on
                if not more:
                    self._hold(process_queue, min(self._batch, room))
                elif self._may_take(process_queue):
                    ready.append(process_queue)
        problem, self._problem = self._problem, None
        if problem is not None:
            if not any(
                process_queue.fresh for process_queue in self._share.process_queues.values()
            ):
                raise problem
            self._limited.warning(str(problem))

    def pull_of(self, process_queue: ProcessQueue, room: int) -> None:
        """Until `room` messages of this queue wait to be handed out, or it is empty. Raises BrokerUnavailable."""
        while (
            process_queue.pulling is None
            and room > process_queue.fresh
            and self._may_take(process_queue)
        ):
            number = min(self._batch, room - process_queue.fresh)
            [answer] = self._share.ask(
                [(process_queue.queue.broker, self._request(process_queue, number))], "receiving"
            )
            if not self._read(process_queue, answer):
                self._hold(process_queue, min(self._batch, room))

    def arrived(self) -> None:
        """Takes the answers to pulls that were held. Raises BrokerUnavailable."""
        self._connections.pump()
        now = time.monotonic()
        for process_queue in list(self._share.process_queues.values()):
            if process_queue.pulling is None:
                continue
            answer = self._connections.taken(process_queue.queue.broker, process_queue.pulling)
            if answer is not None:
                process_queue.pulling = None
                if process_queue.pulling_from == process_queue.next_offset:
                    try:
                        self._read(process_queue, answer)
                    except BrokerUnavailable as error:
                        self._problem = self._problem or error
            elif now > process_queue.pulling_until:
                self._connections.give_up(
                    process_queue.queue.broker, "did not answer a pull that it held"
                )

    def in_turn(self) -> list[ProcessQueue]:
        """What comes again first; then all others, beginning at another one each time, so that none starves."""
        process_queues = list(self._share.process_queues.values())
        again = [
            process_queue
            for process_queue in process_queues
            if process_queue.queue.topic.startswith(RETRY)
        ]
        first = [
            process_queue
            for process_queue in process_queues
            if not process_queue.queue.topic.startswith(RETRY)
        ]
        self._turn = (self._turn + 1) % max(1, len(first))
        return again + first[self._turn :] + first[: self._turn]

    def _may_take(self, process_queue: ProcessQueue) -> bool:
        held = self._share.process_queues.values()
        return has_room(
            process_queue.size, (one.size for one in held), MOST_IN_HAND, len(held)
        ) and has_room(
            process_queue.bytes, (one.bytes for one in held), MOST_BYTES_IN_HAND, len(held)
        )

    def _request(
        self, process_queue: ProcessQueue, number: int, *, suspend: bool = False
    ) -> Request:
        return Request(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": self._group,
                "topic": process_queue.queue.topic,
                "queueId": process_queue.queue.number,
                "queueOffset": process_queue.next_offset,
                "maxMsgNums": number,
                "commitOffset": 0,
                "sysFlag": SUBSCRIPTION | (SUSPEND if suspend else 0),
                "suspendTimeoutMillis": int(SUSPEND_SECONDS * 1000) if suspend else 0,
                "subscription": self._filters[process_queue.queue.topic],
                "subVersion": self._share.version,
                "expressionType": "TAG",
            },
        )

    def _hold(self, process_queue: ProcessQueue, number: int) -> None:
        process_queue.pulling = self._connections.start(
            process_queue.queue.broker, self._request(process_queue, number, suspend=True)
        )
        process_queue.pulling_from = process_queue.next_offset
        process_queue.pulling_until = (
            time.monotonic() + SUSPEND_SECONDS + LATE_SECONDS + self._seconds
        )

    def _read(self, process_queue: ProcessQueue, answer: Answer) -> bool:
        """Whether the queue may have more at once."""
        doing = f"receiving from {process_queue.queue.topic}"
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return False
        try:
            if answer.code == ResponseCode.SUCCESS:
                found = read_stored(answer.body)
                process_queue.pulled(
                    [one for one in found if self._is_for(process_queue, one)],
                    answer.number("nextBeginOffset"),
                )
                return True
            if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                process_queue.skip_to(answer.number("nextBeginOffset"))
                return True
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                self._moved(process_queue, answer)
                return True
        except Malformed as error:
            raise unavailable(doing, str(error)) from error
        self._share.refresh(process_queue.queue.topic)
        raise unavailable(doing, f"{process_queue.queue.broker} says {answer.said()}")

    def _moved(self, process_queue: ProcessQueue, answer: Answer) -> None:
        """The place is not one of the queue's, or somebody set the group's offset."""
        to, first = answer.number("nextBeginOffset"), answer.number("minOffset")
        if process_queue.next_offset < first and to == first:
            log.warning(
                "%s begins at %d: what lay from %d to it is not there any more.",
                process_queue.queue,
                first,
                process_queue.next_offset,
            )
            process_queue.skip_to(to)
            return
        log.warning(
            "The group's place in %s is %d now, it was %d.",
            process_queue.queue,
            to,
            process_queue.next_offset,
        )
        process_queue.move(to, committed=None)
        self._share.forgot = True
        self._share.commit(
            [process_queue]
        )  # at once: the broker still has the old place, and would lead the next consumer there

    def _is_for(self, process_queue: ProcessQueue, stored: Stored) -> bool:
        """The broker compares the hashes of tags; the tag itself is for the consumer to compare."""
        tags = self._tags.get(process_queue.queue.topic)
        return tags is None or tag_of(stored.properties) in tags
