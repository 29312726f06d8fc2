"""The queues of a dead-letter topic as logs: where the drain stands in each of them, and what lies there from then on.

Nothing can be deleted from a log, so what is stored elsewhere is what lies below the offset that the drain's group has committed.
A broker that was rebuilt, or whose topic was, counts from the beginning while the committed offset may still be the old one.
So the drain commits a mark too: the time at which the last entry below the offset was stored, as the offset of a queue that no
topic has. Where the entry there has another time, nothing of the queue counts as read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import only_answers
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.requests import NOTHING_THERE, ask_committed, pull
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.brokers.rocketmq.wire.unavailable import unavailable

MARKS = 1_000_000
"""The mark of queue n is committed as the offset of queue n + this."""
PULLS_AT_ONCE = 16
ROUND_BYTES = 8 * 1024 * 1024
WAIT_MILLISECONDS = 1_000
_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadQueue:
    """One queue, as it was when it was looked at: entries from `start` to before `end` are the drain's to read."""

    topic: str
    broker: str
    master: str
    queue_id: int
    start: int
    end: int


class DeadQueues:
    """Looks at dead-letter topics for one adapter. Safe to share between threads. Raises BrokerUnavailable."""

    def __init__(
        self, pool: Pool, routes: Routes, *, drain_group: str, pull_batch: int, seconds: float
    ) -> None:
        self._pool, self._routes, self._group = pool, routes, drain_group
        self._batch, self.seconds = pull_batch, seconds

    def find(self, topic: str) -> list[DeadQueue]:
        """Every queue of the topic that ever held anything.

        Each master is asked, whatever the name servers say: a broker makes the topic when the first message dies, and name
        servers may hear of it later.
        """
        deadline = time.monotonic() + self.seconds
        doing = f"looking for the dead letters in {topic}"
        places = self._places(topic, deadline, doing)
        asked = [
            (master, Request(ask, {"topic": topic, "queueId": queue_id, **more}))
            for _, master, queue_id in places
            for ask, more in (
                (RequestCode.GET_MIN_OFFSET, {}),
                # What is stored and what its consumers can read: the one runs ahead of the other by moments.
                (RequestCode.GET_MAX_OFFSET, {"committed": False}),
                (RequestCode.GET_MAX_OFFSET, {"committed": True}),
            )
        ]
        try:
            numbers = [
                _good(answer).number("offset")
                for answer in only_answers(self._pool.ask_all(asked, deadline))
            ]
            found = []
            for place, (broker, master, queue_id) in enumerate(places):
                first, stored, readable = numbers[3 * place : 3 * place + 3]
                if max(stored, readable) > 0:
                    queue = DeadQueue(
                        topic, broker, master, queue_id, max(first, 0), max(stored, readable)
                    )
                    found.append(self._from_where_the_drain_is(queue, deadline))
        except (ConnectionLost, NotSent, Malformed, Refused) as error:
            raise unavailable(doing, str(error)) from error
        return found

    def read(self, queue: DeadQueue, start: int) -> Iterator[list[Stored]]:
        """The entries from `start` to the queue's end, in their order, some at a time and never none."""
        at, stride, pulls = start, self._batch, 1
        while at < queue.end:
            deadline = time.monotonic() + self.seconds
            offsets = range(at, queue.end, stride)[:pulls]
            try:
                answers = self._pull(
                    queue,
                    [(offset, min(stride, queue.end - offset)) for offset in offsets],
                    0,
                    deadline,
                )
                found, after = _in_a_row(answers, offsets, at)
                while after == at:
                    # Stored, and not yet where consumers read: the broker answers when it is.
                    [answer] = self._pull(queue, [(at, 1)], WAIT_MILLISECONDS, deadline)
                    found, after = _in_a_row([answer], [at], at)
                    if after == at and time.monotonic() >= deadline:
                        raise unavailable(
                            _reading(queue), f"the entry {at} of {queue.end} does not come"
                        )
            except (ConnectionLost, NotSent, Malformed, Refused) as error:
                raise unavailable(_reading(queue), str(error)) from error
            at = after
            found = [one for one in found if one.offset < queue.end]
            if found:
                yield found
                # A broker gives less at once where entries are large, or no longer in memory: ask so that nothing comes twice.
                whole = len(found) >= stride * len(offsets)
                stride = (
                    min(2 * stride, self._batch)
                    if whole
                    else max(1, min(stride, len(found) // len(offsets)))
                )
                size = sum(len(one.body) for one in found) // len(found) + 1
                pulls = max(1, min(PULLS_AT_ONCE, ROUND_BYTES // (size * stride)))

    def commit(self, queue: DeadQueue, offset: int, stored_at: datetime) -> None:
        """Everything below the offset is stored elsewhere; `stored_at`: of the last entry below it. A further one that another
        drain has committed stays."""
        deadline = time.monotonic() + self.seconds
        doing = f"acknowledging dead letters in {queue.topic}"
        try:
            if offset <= self._from_where_the_drain_is(queue, deadline).start:
                return
            if not self._commit(queue, offset, stored_at, deadline):
                self._make_group(queue, deadline)
                if not self._commit(queue, offset, stored_at, deadline):
                    raise Refused(
                        f"{queue.master} does not know the group {self._group} that it has just made"
                    )
        except (ConnectionLost, NotSent, Malformed, Refused) as error:
            raise unavailable(doing, str(error)) from error

    def _places(self, topic: str, deadline: float, doing: str) -> list[tuple[str, str, int]]:
        """(broker, master's address, queue): a broker makes one queue, an operator may make more."""
        masters = self._routes.masters(deadline=deadline)
        places = {
            (name, 0): master
            for name, master in masters.items()
            if name in (self._routes.brokers or masters)
        }
        try:
            route = self._routes.route(topic, deadline=deadline)
        except NoSuchTopic:
            route = None
        for queue in route.queues if route else ():
            places.setdefault((queue.broker, queue.queue_id), queue.master)
        found = []
        for (broker, queue_id), master in sorted(places.items()):
            if master is None:
                raise unavailable(doing, f"the master of the broker {broker} is away")
            found.append((broker, master, queue_id))
        return found

    def _from_where_the_drain_is(self, queue: DeadQueue, deadline: float) -> DeadQueue:
        committed = self._committed(queue, queue.queue_id, deadline)
        if committed is None or not queue.start < committed <= queue.end:
            return queue
        mark = self._committed(queue, MARKS + queue.queue_id, deadline)
        [answer] = self._pull(queue, [(committed - 1, 1)], 0, deadline)
        last = read_stored(answer.body) if answer.code == ResponseCode.SUCCESS else []
        if [(one.offset, _milliseconds(one.stored_at)) for one in last[:1]] != [
            (committed - 1, mark)
        ]:
            return queue
        return DeadQueue(
            queue.topic, queue.broker, queue.master, queue.queue_id, committed, queue.end
        )

    def _committed(self, queue: DeadQueue, queue_id: int, deadline: float) -> int | None:
        answer = self._pool.ask(
            queue.master, ask_committed(self._group, queue.topic, queue_id), deadline
        )
        if answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.GROUP_NOT_EXIST):
            return None
        return _good(answer).number("offset")

    def _pull(
        self,
        queue: DeadQueue,
        wanted: Sequence[tuple[int, int]],
        wait_milliseconds: int,
        deadline: float,
    ) -> list[Answer]:
        requests = [
            pull(queue.topic, queue.queue_id, offset, count, wait_milliseconds=wait_milliseconds)
            for offset, count in wanted
        ]
        return only_answers(self._pool.ask_many(queue.master, requests, deadline))

    def _commit(self, queue: DeadQueue, offset: int, stored_at: datetime, deadline: float) -> bool:
        """False: the broker does not know the group."""
        answers = only_answers(
            self._pool.ask_many(
                queue.master,
                [
                    Request(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        {
                            "consumerGroup": self._group,
                            "topic": queue.topic,
                            "queueId": queue_id,
                            "commitOffset": value,
                        },
                        lane="commit",
                    )
                    for queue_id, value in (
                        (queue.queue_id, offset),
                        (MARKS + queue.queue_id, _milliseconds(stored_at)),
                    )
                ],
                deadline,
            )
        )
        if any(answer.code == ResponseCode.GROUP_NOT_EXIST for answer in answers):
            return False
        for answer in answers:
            _good(answer)
        return True

    def _make_group(self, queue: DeadQueue, deadline: float) -> None:
        """The group is Backstop's own, and nobody consumes by it."""
        body = json.dumps(
            {"groupName": self._group, "consumeEnable": True, "retryMaxTimes": 0}
        ).encode()
        _good(
            self._pool.ask(
                queue.master,
                Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
                deadline,
            )
        )


class Refused(Exception):
    """The broker answered, and not with what was asked for."""


def _good(answer: Answer) -> Answer:
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer.said())
    return answer


def _in_a_row(
    answers: Sequence[Answer], offsets: Sequence[int], at: int
) -> tuple[list[Stored], int]:
    """The entries from `at` on without a gap, and the offset after them. What the broker has removed is passed."""
    found: list[Stored] = []
    for answer, offset in zip(answers, offsets, strict=True):
        if offset > at:
            break  # the one before it gave less than was asked for
        if answer.code == ResponseCode.SUCCESS:
            for one in read_stored(answer.body):
                if one.offset >= at:
                    found.append(one)
                    at = one.offset + 1
        elif answer.code in NOTHING_THERE:
            after = answer.number("nextBeginOffset")
            if after < offset:
                raise Refused(
                    f"its offsets went back from {offset} to {after} while they were read"
                )
            at = max(at, after)
        else:
            raise Refused(answer.said())
    return found, at


def _milliseconds(at: datetime) -> int:
    return (at - _START) // timedelta(milliseconds=1)


def _reading(queue: DeadQueue) -> str:
    return f"reading the dead letters in {queue.topic} on {queue.broker}"
