"""Publishes batches: one request for each message, all in flight at once, each with an answer of its own.

So one message that the broker refuses does not make the fate of the others unknown. Messages of one partition key go one after
another: the broker's threads would change their order. RocketMQ's own batches are not used: they give all of them one unique
key more, by which a dead letter's origin is no longer found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from backstop.brokers.protocol import Receipt
from backstop.brokers.rocketmq.codes import Ask, Said
from backstop.brokers.rocketmq.epoch import EPOCH
from backstop.brokers.rocketmq.exchange import Result
from backstop.brokers.rocketmq.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.names import encode_topic, retry_topic
from backstop.brokers.rocketmq.pool import Pool
from backstop.brokers.rocketmq.properties import properties_of, write_properties
from backstop.brokers.rocketmq.route import NoSuchTopic, Queue, Route, Routes
from backstop.brokers.rocketmq.session import Lost, NotSent
from backstop.errors import BrokerUnavailable, ConfigurationError, ContractBroken
from backstop.records import Message, Outcome, Position

PRODUCER_GROUP = "BACKSTOP_PRODUCER"
NO_MODEL = "BACKSTOP_MAKES_NO_TOPIC"
"""The topic after whose model a broker would make a missing one. There is none of this name, so none is made."""

_STORED = frozenset({
    Said.SUCCESS,
    # Stored by the master, and not flushed, or not on a replica, in time: what a crash takes is found later.
    Said.FLUSH_DISK_TIMEOUT, Said.FLUSH_SLAVE_TIMEOUT, Said.SLAVE_NOT_AVAILABLE,
})  # fmt: skip
_NOT_STORED = frozenset({
    Said.SYSTEM_BUSY, Said.NOT_SUPPORTED, Said.MESSAGE_ILLEGAL, Said.SERVICE_NOT_AVAILABLE, Said.VERSION_NOT_SUPPORTED,
    Said.NO_PERMISSION, Said.TOPIC_NOT_EXIST, Said.GROUP_NOT_EXIST, Said.INVALID_PARAMETER, Said.FLOW_CONTROL, Said.GO_AWAY,
})  # fmt: skip
"""Answers that a broker gives before it stores."""
_FOR_GOOD = frozenset({Said.MESSAGE_ILLEGAL, Said.TOPIC_NOT_EXIST, Said.GROUP_NOT_EXIST})
_NOT_STORED_REMARKS = (
    "[PC_SYNCHRONIZED]", "in-sync replicas not enough", "create mapped file failed", "broker unable to service, until",
)  # fmt: skip
"""What a SYSTEM_ERROR says that is given before anything is stored; any other one tells nothing."""
_MOVED = frozenset({Said.TOPIC_NOT_EXIST, Said.INVALID_PARAMETER, Said.NO_PERMISSION, Said.SERVICE_NOT_AVAILABLE, Said.GO_AWAY})
"""Answers after which the topic's route is asked for again."""


@dataclass(frozen=True, slots=True)
class _Send:
    """One message on its way: its place in the batch, the master it goes to, and its queue by our numbers (null: its offset
    will not be one of the topic's)."""

    place: int
    to: str
    request: Request
    queue: int | None


class Publisher:
    """Publishes for one adapter. Safe to share between threads."""

    def __init__(self, pool: Pool, routes: Routes, *, send_timeout: float, max_bytes: int) -> None:
        self._pool, self._routes = pool, routes
        self._seconds, self._max_bytes = send_timeout, max_bytes

    def publish(self, messages: Sequence[Message], group: str | None) -> list[Receipt]:
        deadline = time.monotonic() + self._seconds
        routes = {topic: self._route(topic, deadline) for topic in {message.topic for message in messages}}
        receipts: dict[int, Receipt] = {}
        sends: list[_Send] = []
        for place, message in enumerate(messages):
            route = routes[message.topic]
            made = route if isinstance(route, Receipt) else self._make(place, message, route, group)
            if isinstance(made, Receipt):
                receipts[place] = made
            else:
                sends.append(made)
        results = self._pool.ask_all([(send.to, send.request) for send in sends], deadline) if sends else []
        for send, result in zip(sends, results, strict=True):
            receipts[send.place] = _settle(send, result)
            if not isinstance(result, Answer) or result.code in _MOVED:
                self.forget(messages[send.place].topic)
        return [receipts[place] for place in range(len(messages))]

    def forget(self, topic: str) -> None:
        """Believe nothing about this topic that was read before."""
        self._routes.forget(encode_topic(topic))

    def _route(self, topic: str, deadline: float) -> Route | Receipt:
        """Where the topic lies, or the receipt for every message of a topic that cannot be sent to."""
        try:
            return self._routes.route(encode_topic(topic), deadline=deadline)
        except NoSuchTopic:
            return _refused(f"there is no topic {topic!r}", for_good=True)
        except ContractBroken as error:
            return _refused(f"{error.what} {error.kept}", for_good=True)
        except (BrokerUnavailable, ConfigurationError) as error:
            return _refused(f"Nothing was sent: the topic could not be looked for: {error.what}")

    def _make(self, place: int, message: Message, route: Route, group: str | None) -> _Send | Receipt:
        try:
            written = write_properties(properties_of(message))
            to_topic = route.topic if group is None else retry_topic(group)
            body = bytes(message.content)
        except (ContractBroken, UnicodeEncodeError, TypeError, AttributeError) as error:
            return _refused(f"The message cannot be written as a request: {error}", for_good=True)
        if len(body) > self._max_bytes:
            return _refused(f"It has {len(body)} bytes, and {self._max_bytes} are allowed", for_good=True)
        queue = _queue_of(message, route)
        if queue is None:
            return _refused("Nothing was sent: no queue of the topic can be written to")
        if queue.master is None:
            return _refused(f"Nothing was sent: the master of the broker {queue.broker} is away")
        if group is not None:
            written += f"RETRY_TOPIC\x01{route.topic}\x02"  # the group's consumers take it for a message of the topic
        request = Request(
            Ask.SEND,
            {
                "a": PRODUCER_GROUP, "b": to_topic, "c": NO_MODEL, "d": 4, "e": 0 if group is not None else queue.queue_id,
                "f": 0, "g": int(time.time() * 1000), "h": 0, "i": written, "j": 0, "k": False, "m": False,
            },
            body,
            # The broker's threads change the order of what is in flight together.
            lane=None if message.partition_key is None else (route.topic, message.partition_key),
        )  # fmt: skip
        return _Send(place, queue.master, request, None if group is not None else queue.number)


def _queue_of(message: Message, route: Route) -> Queue | None:
    """By the hash of the partition key, else of the message id, as every client of ours has it."""
    queues = route.writable()
    key = message.message_id if message.partition_key is None else message.partition_key
    return queues[crc32(key.encode()) % len(queues)] if queues else None


def _settle(send: _Send, result: Result) -> Receipt:
    if isinstance(result, NotSent):
        return _refused(f"Nothing was sent: {result}")
    if isinstance(result, Lost):
        return Receipt(Outcome.UNKNOWN, error=f"No answer came: {result}")
    if result.code in _STORED:
        return _stored(send, result)
    said = result.said()
    known = result.code in _NOT_STORED or (result.remark or "").startswith(_NOT_STORED_REMARKS)
    return _refused(said, for_good=result.code in _FOR_GOOD) if known else Receipt(Outcome.UNKNOWN, error=said)


def _stored(send: _Send, answer: Answer) -> Receipt:
    store_id = answer.ext.get("msgId")
    if send.queue is None:
        return Receipt(Outcome.SENT, broker_message_id=store_id)
    try:
        offset = answer.number("queueOffset")
    except Malformed:
        return Receipt(Outcome.SENT, broker_message_id=store_id)  # it is stored; where, the time rule does without
    return Receipt(Outcome.SENT, Position(send.queue, offset, EPOCH), store_id)


def _refused(why: str, *, for_good: bool = False) -> Receipt:
    return Receipt(Outcome.REFUSED, error=why, refused_for_good=for_good)
