"""Publishes batches: one pipelined script call for each queue and piece, a receipt for each message.

REFUSED is said only of what the server certainly did not store: nothing was sent, or it answered with an
error that it gives before it stores. No answer is UNKNOWN, and so is an error that is not on the list below.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from backstop.brokers.protocol import Receipt
from backstop.brokers.redis_streams.exchange import (
    Command,
    ConnectionLost,
    Exchange,
    NotSent,
    Script,
)
from backstop.brokers.redis_streams.keys import Keys, id_of, queue_of
from backstop.model.errors import ContractBroken
from backstop.model.records import ID_HEADER, Message, Outcome, Position

PUBLISH = Script.load("publish")
CALL_BYTES = 4 * 1024 * 1024
"""One script call holds the server for as long as it stores: pieces of about this size let others in
between."""
CALL_MESSAGES = 1000
TOPIC_SECONDS = 10.0
"""How long the number of a topic's queues is believed; a queue that is gone is noticed at once."""
CLOCK_SECONDS = 60.0

_NOT_STORED = (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
_NOT_STORED_CODES = frozenset(
    {
        "BUSY",
        "LATE",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOPERM",
        "NOREPLICAS",
        "NOSCRIPT",
        "NOSTREAM",
        "NOTOPIC",
        "OOM",
        "READONLY",
        "WRONGTYPE",
    }
)


_quoted = json.encoder.encode_basestring
"""A text as JSON has it, beyond ASCII as it is; raises TypeError for what is none."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One script call and the places in the batch of the messages it carries."""

    queue: int
    places: Sequence[int]
    command: Command


class Publisher:
    """Publishes for one adapter. Safe to share between threads."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange, self._keys = exchange, keys
        self._lock = threading.Lock()
        self._queues: dict[str, tuple[int, float]] = {}
        self._clock: tuple[float, float] | None = None

    def publish(self, messages: Sequence[Message]) -> list[Receipt]:
        begun = time.monotonic()
        receipts: dict[int, Receipt] = {}
        queues = self._queues_of({message.topic for message in messages})
        by_queue: dict[tuple[str, int], list[int]] = {}
        packed: dict[int, tuple[bytes, bytes, bytes, bytes]] = {}
        for place, message in enumerate(messages):
            count = queues[message.topic]
            if isinstance(count, Receipt):
                receipts[place] = count
                continue
            try:
                packed[place] = pack(message)
            except (ContractBroken, UnicodeEncodeError, TypeError, AttributeError) as error:
                receipts[place] = _refused(
                    f"The message cannot be written as an entry: {error}", for_good=True
                )
                continue
            by_queue.setdefault((message.topic, queue_of(_partition(message), count)), []).append(
                place
            )
        if packed:
            deadline = self._deadline(begun)
            if isinstance(deadline, str):
                receipts |= dict.fromkeys(packed, _refused(deadline))
            else:
                calls = [
                    call
                    for at, places in by_queue.items()
                    for call in self._calls(at, places, packed, deadline)
                ]
                answers = self._exchange.run([call.command for call in calls], in_order=True)
                for call, answer in zip(calls, answers, strict=True):
                    receipts |= self._settle(call, answer, messages)
        return [receipts[place] for place in range(len(messages))]

    def forget(self, topic: str) -> None:
        """Believe nothing about this topic that was read before."""
        with self._lock:
            self._queues.pop(topic, None)

    def _calls(
        self,
        at: tuple[str, int],
        places: Sequence[int],
        packed: Mapping[int, tuple[bytes, bytes, bytes, bytes]],
        deadline: int,
    ) -> Iterator[_Call]:
        topic, queue = at
        keys = (self._keys.stream(topic, queue), self._keys.life(topic, queue))
        piece: list[int] = []
        size = 0
        for place in places:
            weight = sum(map(len, packed[place]))
            if piece and (size + weight > CALL_BYTES or len(piece) >= CALL_MESSAGES):
                yield _Call(
                    queue,
                    piece,
                    PUBLISH.call(keys, deadline, *(p for i in piece for p in packed[i])),
                )
                piece, size = [], 0
            piece.append(place)
            size += weight
        yield _Call(
            queue, piece, PUBLISH.call(keys, deadline, *(p for i in piece for p in packed[i]))
        )

    def _settle(self, call: _Call, answer: Any, messages: Sequence[Message]) -> dict[int, Receipt]:
        if isinstance(answer, NotSent):
            return dict.fromkeys(call.places, _refused(f"Nothing was sent: {answer.why}"))
        if isinstance(answer, ConnectionLost):
            return dict.fromkeys(call.places, _unknown(f"No answer came: {answer.why}"))
        if isinstance(answer, ResponseError):
            text = _text_of(answer)
            gone = text.startswith("NOTOPIC")
            if gone:
                self.forget(messages[call.places[0]].topic)
            if text.startswith("LATE"):
                # It lay somewhere for long, or the server's clock moved: then every deadline is wrong until it is asked.
                with self._lock:
                    self._clock = None
            known = isinstance(answer, _NOT_STORED) or text.split(" ", 1)[0] in _NOT_STORED_CODES
            receipt = _refused(text, for_good=gone) if known else _unknown(text)
            return dict.fromkeys(call.places, receipt)
        epoch = answer[0].decode()
        return {
            place: self._one(call.queue, epoch, result)
            for place, result in zip(call.places, answer[1:], strict=True)
        }

    @staticmethod
    def _one(queue: int, epoch: str, result: int | bytes) -> Receipt:
        if isinstance(result, int):
            return Receipt(Outcome.SENT, Position(queue, result, epoch), f"{queue}/{id_of(result)}")
        text = result.decode(errors="replace")
        return _refused(text, for_good=text.startswith("TOOLARGE"))

    def _queues_of(self, topics: set[str]) -> dict[str, int | Receipt]:
        """The number of queues of each topic, or the receipt for every message of a topic that cannot be
        asked."""
        now = time.monotonic()
        answers: dict[str, int | Receipt] = {}
        ask: list[str] = []
        commands: list[Command] = []
        for topic in sorted(topics):
            with self._lock:
                count, read_at = self._queues.get(topic, (0, float("-inf")))
            if now - read_at < TOPIC_SECONDS:
                answers[topic] = count
                continue
            try:
                commands.append(("HGET", self._keys.topic(topic), "queues"))
                ask.append(topic)
            except ContractBroken as error:
                answers[topic] = _refused(str(error), for_good=True)
        for topic, answer in zip(
            ask, self._exchange.run(commands) if commands else [], strict=True
        ):
            if isinstance(answer, bytes):
                answers[topic] = int(answer)
                with self._lock:
                    self._queues[topic] = (int(answer), now)
            elif answer is None:
                answers[topic] = _refused(
                    f"NOTOPIC there is no topic {topic!r}: backstop topics create {topic} --group ... --broker ...",
                    for_good=True,
                )
            else:
                why = (
                    answer.why if isinstance(answer, NotSent | ConnectionLost) else _text_of(answer)
                )
                answers[topic] = _refused(f"Nothing was sent: the topic could not be read: {why}")
        return answers

    def _deadline(self, begun: float) -> int | str:
        """Until when the server may store it, in its own microseconds; or why that cannot be said.

        A command can lie in the buffers of a stalled server long after we gave it up as UNKNOWN. Without this
        instant it would be stored whenever the server wakes up, later than any policy reckons with.
        """
        with self._lock:
            clock = self._clock
        now = time.monotonic()
        if clock is None or now - clock[1] > CLOCK_SECONDS:
            answer = self._exchange.run([("TIME",)])[0]
            if not isinstance(answer, list):
                why = (
                    answer.why if isinstance(answer, NotSent | ConnectionLost) else _text_of(answer)
                )
                return f"Nothing was sent: the broker's clock could not be read: {why}"
            # The server read its clock before we read ours: the deadline is early by the answer's way, never
            # late.
            clock = (int(answer[0]) + int(answer[1]) / 1e6 - time.monotonic(), now)
            with self._lock:
                self._clock = clock
        return int((begun + clock[0] + self._exchange.seconds) * 1e6)


def pack(message: Message) -> tuple[bytes, bytes, bytes, bytes]:
    """Content, headers, tag, partition key as the script takes them. Raises ContractBroken,
    UnicodeEncodeError, ..."""
    if not message.message_id:
        raise ContractBroken(
            "The message has no id.",
            unaffected="It was not sent.",
            next_step="Give it the business key of its stub.",
        )
    headers = {**message.headers, ID_HEADER: message.message_id}
    try:
        # As the library's own encoder writes it, which takes three times as long for a few texts.
        text = ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in headers.items()])
    except TypeError:
        raise ContractBroken(
            "A header is not text.",
            unaffected="The message was not sent.",
            next_step="Write header values as text.",
        ) from None
    # Ids are valid Unicode everywhere, or they could not be keys: `encode` raises for half of a surrogate pair.
    return (
        bytes(message.content),
        b"{%b}" % text.encode(),
        _optional(message.tag),
        _optional(message.partition_key),
    )


def _optional(text: str | None) -> bytes:
    return b"" if text is None else b"=" + text.encode()


def _partition(message: Message) -> str:
    return message.message_id if message.partition_key is None else message.partition_key


def _text_of(error: BaseException) -> str:
    code = getattr(error, "status_code", None)
    text = str(error)
    return text if not code or text.startswith(str(code)) else f"{code} {text}"


def _refused(why: str, *, for_good: bool = False) -> Receipt:
    return Receipt(Outcome.REFUSED, error=why, refused_for_good=for_good)


def _unknown(why: str) -> Receipt:
    return Receipt(Outcome.UNKNOWN, error=why)
