"""Publishes batches: one request for each queue and piece, which the broker stores together or not at all, and in this order.

Pieces of one queue go one after another, those of different queues at the same time. Single requests in flight together would
change places (the broker's threads take them in any order), and one by one they are slow.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backstop.brokers.protocol import Receipt
from backstop.brokers.rocketmq.inspect.locks import why_no_retry
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.message.batch import write_batch
from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.brokers.rocketmq.message.names import encode_group, encode_topic, retry_topic
from backstop.brokers.rocketmq.message.properties import (
    RETRY_TOPIC,
    properties_of,
    write_properties,
)
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Queue, Route, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import Result
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.model.errors import BrokerUnavailable, ConfigurationError, ContractBroken
from backstop.model.records import Message, Outcome, Position

PRODUCER_GROUP = "BACKSTOP_PRODUCER"
NO_MODEL = "BACKSTOP_MAKES_NO_TOPIC"
"""The topic after whose model a broker would make a missing one. There is none of this name, so none is made."""

_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        # Stored by the master, and not flushed, or not on a replica, in time: what a crash takes is found later.
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_NOT_STORED = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
"""Answers that a broker gives before it stores."""
_FOR_GOOD = frozenset(
    {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.GROUP_NOT_EXIST}
)
_NOT_STORED_REMARKS = ("create mapped file failed", "broker unable to service, until")
"""What a SYSTEM_ERROR says that is given before anything is stored; any other one tells nothing.

Not among them: `[PC_SYNCHRONIZED]` and `in-sync replicas not enough`, which a broker with a quorum (DLedger) also says of what
its leader has stored and too few others took in time.
"""
_TOO_MUCH = re.compile(
    r"java\.lang\.RuntimeException: message (\w+ )?size exceeded, org\.apache\.rocketmq\.store\.MessageExtEncoder\."
)
"""What it says while it still writes a batch down, for more bytes than one message may have."""
_MOVED = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which the topic's route is asked for again."""


ZLIB = 0x301
"""The flags of a message whose body is packed by zlib."""
PIECE_BYTES = 1024 * 1024
PIECE_MESSAGES = 500
"""The broker takes as many bytes at once as one message may have; smaller pieces let others in between."""
BUSY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""How long is waited before a broker that was busy, and stored nothing, is asked again."""
_MESSAGE_BYTES = 32
"""What a batch adds to a message's content and properties."""


@dataclass(frozen=True, slots=True)
class _One:
    """One message, written: its place in the batch."""

    place: int
    properties: str
    body: bytes
    keyed: bool
    """Its place among those of its partition key counts."""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties.encode()) + _MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one request carries, all of it for one queue; `group`: for this group alone, by way of its retry topic."""

    topic: str
    queue: Queue
    master: str
    ones: Sequence[_One]
    group: str | None

    def request(self) -> Request:
        whole, flags = len(self.ones) > 1, 0
        properties, body = self.ones[0].properties, self.ones[0].body
        if whole:
            # Properties of the request would replace those of every message.
            properties, body = "", write_batch((one.properties, one.body) for one in self.ones)
        elif not body:
            # A request without a body makes the broker stumble; every client unpacks this to nothing.
            flags, body = ZLIB, zlib.compress(b"")
        return Request(
            RequestCode.SEND_BATCH_MESSAGE if whole else RequestCode.SEND_MESSAGE_V2,
            {
                # Who sends to a retry topic is held against the rights of a group: of this one, not of ours for every group.
                "a": PRODUCER_GROUP if self.group is None else encode_group(self.group),
                "b": self.topic if self.group is None else retry_topic(self.group),
                "c": NO_MODEL,
                "d": 4,
                "e": self.queue.queue_id if self.group is None else 0,
                "f": flags,
                "g": int(time.time() * 1000),
                "h": 0,
                "i": properties,
                "j": 0,
                "k": False,
                "m": whole,
            },
            body,
            lane=(self.topic, self.queue.number),
        )

    def split(self) -> list[_Piece]:
        return [_Piece(self.topic, self.queue, self.master, [one], self.group) for one in self.ones]


class Publisher:
    """Publishes for one adapter. Safe to share between threads."""

    def __init__(
        self,
        pool: Pool,
        routes: Routes,
        reader: ProgressReader,
        *,
        send_timeout: float,
        max_bytes: int,
    ) -> None:
        """`send_timeout`: seconds for the whole of one publish; `max_bytes`: of one message's content."""
        self._pool, self._routes, self._reader = pool, routes, reader
        self._seconds, self._max_bytes = send_timeout, max_bytes

    def publish(self, messages: Sequence[Message], group: str | None) -> list[Receipt]:
        deadline = time.monotonic() + self._seconds
        routes = {
            topic: self._route(topic, deadline) for topic in {message.topic for message in messages}
        }
        if group is not None:
            routes = {
                topic: self._unless_unread(topic, route, group, deadline)
                for topic, route in routes.items()
            }
        receipts: dict[int, Receipt] = {}
        waiting: dict[tuple[str, Queue], list[_One]] = {}
        for place, message in enumerate(messages):
            route = routes[message.topic]
            made = route if isinstance(route, Receipt) else self._make(place, message, route, group)
            if isinstance(made, Receipt):
                receipts[place] = made
            else:
                queue, one = made
                waiting.setdefault((message.topic, queue), []).append(one)
        pieces: list[_Piece] = []
        for (topic, queue), ones in waiting.items():
            if queue.master is None:
                away = _refused(
                    f"Nothing was sent: the master of the broker {queue.broker} is away"
                )
                receipts |= dict.fromkeys((one.place for one in ones), away)
            else:
                limit = (
                    1 if group is not None else PIECE_MESSAGES
                )  # a broker takes no batch for a retry topic
                pieces += (
                    _Piece(encode_topic(topic), queue, queue.master, some, group)
                    for some in self._cut(ones, limit)
                )
        self._send(pieces, deadline, receipts)
        return [receipts[place] for place in range(len(messages))]

    def _send(
        self, pieces: Sequence[_Piece], deadline: float, receipts: dict[int, Receipt]
    ) -> None:
        """Sends all; what a busy broker put off is asked again, after a while, as long as there is time.

        Not what would then come behind a later message of its key: that stays refused.
        """
        pauses = iter(BUSY_SECONDS)
        while pieces:
            again: list[tuple[_Piece, bool]] = []
            """In the order of the pieces, which is that of the messages of a key; and whether the broker was busy."""
            results = self._pool.ask_all(
                [(piece.master, piece.request()) for piece in pieces], deadline
            )
            settled = [
                _settle(piece, result) for piece, result in zip(pieces, results, strict=True)
            ]
            overtaken = _overtaken(pieces, settled)
            for place, (piece, result) in enumerate(zip(pieces, results, strict=True)):
                receipts |= settled[place]
                code = result.code if isinstance(result, Answer) else None
                if place in overtaken:
                    if len(piece.ones) > 1:  # it said no to one of them, and nobody knows to which
                        receipts |= {
                            n: replace(receipt, refused_for_good=False)
                            for n, receipt in settled[place].items()
                        }
                    continue
                if len(piece.ones) > 1 and _is_too_much(result):
                    again += (
                        (one, False) for one in piece.split()
                    )  # as above, and it stored none: each by itself then
                elif code == ResponseCode.SYSTEM_BUSY:
                    again.append((piece, True))
                elif code is None or code in _MOVED:
                    self._routes.forget(piece.topic)
            pause = next(pauses, None) if any(busy for _, busy in again) else None
            waits = pause is not None and time.monotonic() + pause < deadline
            if waits and pause is not None:
                time.sleep(pause)  # the broker said what to wait for: its own queue
            pieces = [piece for piece, busy in again if waits or not busy]

    def _route(self, topic: str, deadline: float) -> Route | Receipt:
        """Where the topic lies, or the receipt for every message of a topic that cannot be sent to."""
        try:
            return self._routes.route(encode_topic(topic), deadline=deadline, partial=True)
        except NoSuchTopic:
            return _refused(f"there is no topic {topic!r}", for_good=True)
        except ContractBroken as error:
            return _refused(f"{error.what} {error.unaffected}", for_good=True)
        except (BrokerUnavailable, ConfigurationError) as error:
            return _refused(f"Nothing was sent: the topic could not be looked for: {error.what}")

    def _unless_unread(
        self, topic: str, route: Route | Receipt, group: str, deadline: float
    ) -> Route | Receipt:
        """The route, or a refusal while the group would not read the copy from its retry topic."""
        if isinstance(route, Receipt):
            return route
        try:
            why = why_no_retry(self._pool, self._reader, topic, group, deadline)
        except (BrokerUnavailable, ConfigurationError, ContractBroken) as error:
            why = f"whether the group would read it could not be looked for: {error.what}"
        return route if why is None else _refused(f"Nothing was sent: {why}")

    def _make(
        self, place: int, message: Message, route: Route, group: str | None
    ) -> tuple[Queue, _One] | Receipt:
        try:
            properties = properties_of(message)
            if group is not None:
                retry_topic(group)
                properties[RETRY_TOPIC] = (
                    route.topic
                )  # the group's consumers take it for a message of the topic
            keyed = message.partition_key is not None
            one = _One(place, write_properties(properties), bytes(message.content), keyed)
        except (ContractBroken, UnicodeEncodeError, TypeError, AttributeError) as error:
            return _refused(f"The message cannot be written as a request: {error}", for_good=True)
        if len(one.body) > self._max_bytes:
            return _refused(
                f"It has {len(one.body)} bytes, and {self._max_bytes} are allowed", for_good=True
            )
        queues = route.writable()
        if not queues:
            self._routes.forget(route.topic)
            return _refused("Nothing was sent: no queue of the topic can be written to")
        if message.partition_key is None:
            # Any queue will do: while a master is away, one of the others.
            queues = [queue for queue in queues if queue.master is not None] or queues
            return queues[zlib.crc32(message.message_id.encode()) % len(queues)], one
        if route.missing:
            away = f"the broker {', '.join(route.missing)} is away"
            return _refused(
                f"Nothing was sent: {away}, and without its queues nobody knows the key's"
            )
        return queues[zlib.crc32(message.partition_key.encode()) % len(queues)], one

    def _cut(self, ones: Sequence[_One], limit: int) -> Iterator[Sequence[_One]]:
        piece: list[_One] = []
        size = 0
        for one in ones:
            if piece and (
                size + one.size > min(PIECE_BYTES, self._max_bytes) or len(piece) >= limit
            ):
                yield piece
                piece, size = [], 0
            piece.append(one)
            size += one.size
        if piece:
            yield piece


def _overtaken(pieces: Sequence[_Piece], settled: Sequence[Mapping[int, Receipt]]) -> set[int]:
    """Places of pieces with keyed messages behind which something of the same queue is, or may be, stored."""
    found: set[int] = set()
    stored_behind: set[Queue] = set()
    for place in range(len(pieces) - 1, -1, -1):
        piece = pieces[place]
        if piece.queue in stored_behind and any(one.keyed for one in piece.ones):
            found.add(place)
        if any(receipt.outcome is not Outcome.REFUSED for receipt in settled[place].values()):
            stored_behind.add(piece.queue)
    return found


def _settle(piece: _Piece, result: Result) -> Mapping[int, Receipt]:
    if isinstance(result, Answer) and result.code in _STORED:
        return _stored(piece, result)
    if isinstance(result, NotSent):
        receipt = _refused(f"Nothing was sent: {result}")
    elif isinstance(result, ConnectionLost):
        receipt = Receipt(Outcome.UNKNOWN, error=f"No answer came: {result}")
    elif (
        result.code in _NOT_STORED
        or _is_too_much(result)
        or (result.remark or "").startswith(_NOT_STORED_REMARKS)
    ):
        receipt = _refused(result.said(), for_good=result.code in _FOR_GOOD or _is_too_much(result))
    else:
        receipt = Receipt(Outcome.UNKNOWN, error=result.said())
    return dict.fromkeys((one.place for one in piece.ones), receipt)


def _is_too_much(result: Result) -> bool:
    """Whether the broker says no to what it was given, and would say no again."""
    if not isinstance(result, Answer):
        return False
    return result.code == ResponseCode.MESSAGE_ILLEGAL or bool(_TOO_MUCH.match(result.remark or ""))


def _stored(piece: _Piece, answer: Answer) -> Mapping[int, Receipt]:
    """Each message's place; the answer tells the first one's, and the others follow it without a gap."""
    store_ids: Sequence[str | None] = (answer.ext.get("msgId") or "").split(",")
    if len(store_ids) != len(piece.ones):
        store_ids = [None] * len(piece.ones)
    try:
        first = None if piece.group is not None else answer.number("queueOffset")
    except Malformed:
        first = None  # it is stored; without a position the time rule judges it
    return {
        one.place: Receipt(
            Outcome.SENT,
            None if first is None else Position(piece.queue.number, first + number, EPOCH),
            store_id or None,
        )
        for number, (one, store_id) in enumerate(zip(piece.ones, store_ids, strict=True))
    }


def _refused(why: str, *, for_good: bool = False) -> Receipt:
    return Receipt(Outcome.REFUSED, error=why, refused_for_good=for_good)
