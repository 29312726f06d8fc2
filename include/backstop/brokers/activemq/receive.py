"""Receives for one consumer of a group, each message acknowledged by itself.

What is handed back stays in this consumer's hands until it is due, as the Java client does it: the broker's queue still
holds it, so that progress does not pass it, and a consumer that dies gives it to the others. The broker's own way, its
scheduler, takes a message out of the queue, and nobody sees whose it is.
"""

from __future__ import annotations

import heapq
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Self

from backstop.brokers.activemq.decode import (
    CAUSE,
    DELIVERIES,
    ERROR,
    ORIGIN,
    headers_of,
    message_of,
)
from backstop.brokers.activemq.frames import Frame, encode
from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.activemq.session import (
    SILENCE_SECONDS,
    ConnectionLost,
    NotSent,
    Pool,
    Refused,
    Session,
    said,
)
from backstop.brokers.activemq.unavailable import unavailable
from backstop.brokers.protocol import Received
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.log_limit import LimitedLog
from backstop.model.records import Message

log = logging.getLogger(__name__)

_SEQUENCE = re.compile(r"(ID:\S+):([0-9]{1,18})")
"""The broker's id of a message: its producer's, and that one's number of it."""
PREFETCH = 100
"""Messages in this consumer's hands at most; what it does not acknowledge counts, too."""
QUEUES_SECONDS = 5.0
"""How often it looks for a queue that was not there."""
REFUSED_SECONDS = 60.0
"""How often it asks again for a queue that the broker refused: a refusal ends the connection."""
ERROR_CHARACTERS = 1000


class ActiveMQSubscription:
    """One consumer of a group over the queues of its topics. Not shared between threads."""

    def __init__(
        self,
        pool: Pool,
        names: Names,
        reader: ProgressReader | None,
        *,
        group: str,
        topics: Sequence[str],
        seconds: float,
        delivery_limit: int | None,
        prefetch: int = PREFETCH,
    ) -> None:
        self._pool, self._names, self._reader = pool, names, reader
        self._group, self.topics, self._prefetch = group, tuple(topics), prefetch
        self._seconds, self._limit = seconds, delivery_limit
        self._session: Session | None = None
        self._acks: dict[str, str] = {}
        """broker's id of an unacknowledged message -> what an ACK of it names"""
        self._taken: dict[str, Received] = {}
        self._missing: dict[int, str] = {}
        """place of a topic -> its queue, which was not there when it was looked for last"""
        self._refused: dict[int, float] = {}
        """place of a topic whose queue the broker refused -> from when on it is asked for again"""
        self._look_at = float("-inf")
        self._limited = LimitedLog(log)
        self._later: list[tuple[float, int, str]] = []
        self._unreadable: set[str] = set()
        """Of these, by the broker's id, STOMP does not show the content."""
        self._unburied: set[str] = set()
        """Messages that could not be written to the dead letters."""
        self._order = count()

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
        """Up to `limit` messages; BrokerUnavailable when the connection is over: what it held comes again."""
        deadline = time.monotonic() + wait.total_seconds()
        try:
            session = self._connected()
            while True:
                found = self._due(limit)
                found += self._arrived(session, limit - len(found), time.monotonic())
                now = time.monotonic()
                if found or now >= deadline:
                    return found
                if now - session.heard_at > SILENCE_SECONDS:
                    raise ConnectionLost("it gave no sign of life")
                until = min(deadline, self._later[0][0] if self._later else deadline)
                found = self._arrived(session, 1, until)
                if found:  # the first one woke us up; others may have come with it
                    return found + self._arrived(session, limit - len(found), time.monotonic())
        except ConnectionLost as error:
            self._forget()
            raise unavailable("receiving", str(error)) from error

    def acknowledge(self, received: Sequence[Received]) -> None:
        acks = [self._acks[one.broker_id] for one in received if one.broker_id in self._acks]
        if not acks:
            self._check(received)
            return
        session = self._held("acknowledging")
        number = session.number()
        frames = [encode("BEGIN", {"transaction": number})]
        frames += [encode("ACK", {"id": ack, "transaction": number}) for ack in acks]
        frames.append(encode("COMMIT", {"transaction": number, "receipt": number}))
        self._ask(session, b"".join(frames), number, "acknowledging")
        for one in received:
            self._drop(one.broker_id)

    def hand_back(
        self, received: Received, *, after: timedelta, counts: bool, error: str | None = None
    ) -> None:
        self._check([received])
        held = self._taken.get(received.broker_id)
        if held is None or held.deliveries != received.deliveries:
            return  # acknowledged, or delivered again meanwhile
        if counts and received.broker_id in self._unreadable | self._unburied:
            self._refuse(received)
            return
        if counts and self._limit is not None and received.deliveries >= self._limit:
            self._bury(received, error)
            return
        if self._session is None:
            raise unavailable(
                "handing a message back", "the connection ended; the broker delivers it again"
            )
        self._ask_life(self._session)
        again = replace(held, deliveries=held.deliveries + 1) if counts else held
        self._taken[received.broker_id] = again
        heapq.heappush(
            self._later,
            (time.monotonic() + after.total_seconds(), next(self._order), received.broker_id),
        )

    def close(self) -> None:
        """Every unacknowledged message goes back to the broker, which delivers it to the others at once."""
        session = self._session
        self._forget()
        if session is not None:
            session.close()

    def _connected(self) -> Session:
        """The connection, with a subscription to each queue that is there; those that are missing are looked for again."""
        session = self._session
        if session is None:
            topics = enumerate(self.topics)
            self._missing = {place: self._names.queue(one, self._group) for place, one in topics}
        elif not self._missing or time.monotonic() < self._look_at:
            return session
        try:
            there = [place for place, queue in self._missing.items() if self._is_there(queue)]
        except BrokerUnavailable:
            if session is None:
                raise
            return session  # what is subscribed to goes on
        finally:
            self._look_at = time.monotonic() + QUEUES_SECONDS
        now = time.monotonic()
        allowed = [place for place in there if self._refused.get(place, now) <= now]
        if session is not None or allowed:  # else the broker's error is the answer
            there = allowed
        if session is None:
            if self._missing and not there:
                raise unavailable("subscribing", self._no_queue())
            try:
                session = self._session = self._pool.new()
            except NotSent as error:
                raise unavailable("subscribing", str(error)) from error
        for place in there:
            number = session.number()
            frame = encode(
                "SUBSCRIBE",
                {
                    "destination": f"/queue/{self._missing[place]}",
                    "id": str(place),
                    "ack": "client-individual",
                    "activemq.prefetchSize": str(self._prefetch),
                    "receipt": number,
                },
            )
            try:
                self._ask(session, frame, number, "subscribing")
            except BrokerUnavailable as error:
                if isinstance(error.__cause__, Refused):  # the next connection begins without it
                    self._refused[place] = time.monotonic() + REFUSED_SECONDS
                raise
            self._refused.pop(place, None)
            del self._missing[place]
        if self._missing:
            self._limited.warning(f"{self._no_queue()}; its other topics go on.")
        return session

    def _is_there(self, queue: str) -> bool:
        """Subscribing would make a queue that is not."""
        return self._reader is None or self._reader.depth(queue) is not None

    def _no_queue(self) -> str:
        return f"the group {self._group!r} has no queue {', '.join(map(repr, self._missing.values()))}, or may not read it"

    def _arrived(self, session: Session, room: int, until: float) -> list[Received]:
        """New messages, up to `room`; waits until then for the first one."""
        found: list[Received] = []
        while len(found) < room:
            frame = session.read(until if not found else time.monotonic())
            if frame is None:
                break
            if frame.command == "ERROR":
                raise ConnectionLost(said(frame))
            if frame.command == "MESSAGE":
                found.append(self._take(frame))
        return found

    def _take(self, frame: Frame) -> Received:
        broker_id = frame.headers.get("message-id", "")
        if broker_id in self._taken:
            # A property of this name, which clients in Java may write, stands in place of the broker's id.
            broker_id = f"{broker_id} {frame.headers['ack']}"
        topic = self.topics[int(frame.headers["subscription"])]
        # The broker tells that it was delivered before, and not how often.
        deliveries = 2 if frame.headers.get("redelivered") == "true" else 1
        message = message_of(frame, topic)
        if not self._whole(self._names.queue(topic, self._group), frame):
            log.error(
                "The content of %s in %s cannot be read over STOMP: a JMS map, object or stream message, or an empty text. It is "
                "left to the broker's dead letters.",
                broker_id,
                topic,
            )
            # Without an id the consumer's contract check refuses it.
            message = Message(topic, "", b"")
            self._unreadable.add(broker_id)
        said = _SEQUENCE.fullmatch(broker_id)
        sequence = (said[1], int(said[2])) if said else None
        received = Received(message, None, broker_id, deliveries, sequence)
        self._acks[broker_id] = frame.headers["ack"]
        self._taken[broker_id] = received
        return received

    def _due(self, limit: int) -> list[Received]:
        found: list[Received] = []
        while self._later and len(found) < limit and self._later[0][0] <= time.monotonic():
            _, _, broker_id = heapq.heappop(self._later)
            if broker_id in self._taken:
                found.append(self._taken[broker_id])
        return found

    def _bury(self, received: Received, error: str | None) -> None:
        """Moves it to the dead-letter queue in one transaction, with what its consumer said."""
        try:
            headers = headers_of(received.message)
        except (ContractBroken, UnicodeEncodeError) as cannot:
            log.warning(
                "%s is left to the broker's dead letters, without its error: %s",
                received.broker_id,
                cannot,
            )
            self._refuse(received)
            return
        session = self._held("burying a message")
        number = session.number()
        queue = self._names.queue(received.message.topic, self._group)
        death_headers = {
            ORIGIN: f"queue://{queue}",
            DELIVERIES: str(received.deliveries),
            CAUSE: f"Delivery[{received.deliveries}] exceeds redelivery policy limit: given up by its consumer",
            **({ERROR: _writable(error[:ERROR_CHARACTERS])} if error else {}),
        }
        to = f"/queue/{self._names.dead_letter_queues(queue)[0]}"
        frames = [
            encode("BEGIN", {"transaction": number}),
            encode(
                "SEND",
                {
                    "destination": to,
                    "persistent": "true",
                    "transaction": number,
                    **headers,
                    **death_headers,
                },
                received.message.content,
            ),
            encode("ACK", {"id": self._acks[received.broker_id], "transaction": number}),
            encode("COMMIT", {"transaction": number, "receipt": number}),
        ]
        self._unburied.add(received.broker_id)
        self._ask(session, b"".join(frames), number, "burying a message")
        self._unburied.discard(received.broker_id)
        self._drop(received.broker_id)

    def _refuse(self, received: Received) -> None:
        """Lets the broker put it into its dead-letter queue: whole, whatever it is, and without a cause."""
        session = self._held("refusing a message")
        number = session.number()
        frame = encode("NACK", {"id": self._acks[received.broker_id], "receipt": number})
        self._ask(session, frame, number, "refusing a message")
        self._unburied.discard(received.broker_id)
        self._drop(received.broker_id)

    def _whole(self, queue: str, frame: Frame) -> bool:
        """Whether the frame shows the content. Where the broker cannot be asked, an empty text is taken for a message without."""
        try:
            return ProgressReader.shows_content(frame) or (
                self._reader is not None and self._reader.whole(queue, frame)
            )
        except BrokerUnavailable as error:
            log.warning("%s", error)
            return False

    def _held(self, doing: str) -> Session:
        if self._session is None:
            raise unavailable(doing, "the connection ended; the broker delivers it again")
        return self._session

    def _ask(self, session: Session, frames: bytes, receipt: str, doing: str) -> None:
        try:
            session.ask(frames, receipt, time.monotonic() + self._seconds)
        except ConnectionLost as error:
            session.close()
            self._forget()
            raise unavailable(doing, str(error)) from error

    def _ask_life(self, session: Session) -> None:
        """Whether the connection that holds the message still is: without it the broker has delivered it anew."""
        number = session.number()
        frames = encode("BEGIN", {"transaction": number}) + encode(
            "ABORT", {"transaction": number, "receipt": number}
        )
        self._ask(session, frames, number, "handing a message back")

    def _check(self, received: Sequence[Received]) -> None:
        if any(one.position is not None for one in received):
            raise ContractBroken(
                "This message was not received from an ActiveMQ subscription.",
                unaffected="Nothing was acknowledged or handed back.",
                next_step="Give back the objects that `fetch` returned.",
            )
        if received and self._session is None:
            raise unavailable("acknowledging", "the connection ended; the broker delivers it again")

    def _drop(self, broker_id: str) -> None:
        self._acks.pop(broker_id, None)
        self._taken.pop(broker_id, None)
        self._unreadable.discard(broker_id)

    def _forget(self) -> None:
        self._session = None
        self._acks, self._taken, self._later, self._unreadable = {}, {}, [], set()


def _writable(text: str) -> str:
    """As a header can hold it: a handler's error may have NUL, and halves of surrogate pairs."""
    return text.replace("\x00", "").encode(errors="replace").decode()
