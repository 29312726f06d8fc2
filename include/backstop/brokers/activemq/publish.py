"""Publishes batches: one broker transaction for each destination and piece, committed in a step of its own.

The messages go first and are answered; only then COMMIT is written. So whatever breaks before that is REFUSED, for certain:
the broker rolls back what a closed connection began. Silence after it is UNKNOWN.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from backstop.brokers.activemq.decode import headers_of
from backstop.brokers.activemq.frames import Frame, encode
from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.session import ConnectionLost, NotSent, Pool, Session, said
from backstop.brokers.protocol import Receipt
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.records import Message, Outcome

PIECE_BYTES = 4 * 1024 * 1024
PIECE_MESSAGES = 1000
"""A transaction is held by the broker until it is committed: pieces of about this size."""
THERE_SECONDS = 10.0
"""How long it is believed that a topic is there."""
_NO_TIME = "Nothing was sent: the time was over"
_Piece = list[tuple[int, dict[str, str], bytes]]
"""Places in the batch, with headers and body."""
_TOO_LARGE = (
    "maximum data length",
    "maximum frame size",
    "maximum header",
    "maximum number of headers",
    "max frame size",
)
_ROLLED_BACK = re.compile(r"commit failed:|(?!.*store commit).*rollback[ -]?only", re.IGNORECASE)
"""What the broker says of a commit that never reached its store. "STORE COMMIT FAILED: Transaction rolled back" is none of it:
the store may have written the commit before it failed."""


class Publisher:
    """Publishes for one adapter. Safe to share between threads."""

    def __init__(
        self,
        pool: Pool,
        names: Names,
        there: Callable[[str], bool] | None,
        *,
        send_timeout: float,
        max_bytes: int,
    ) -> None:
        """`there` tells whether a topic is there; null: it cannot be known, and the broker makes what is missing."""
        self._pool, self._names, self._there = pool, names, there
        self._seconds, self._max_bytes = send_timeout, max_bytes
        self._lock = threading.Lock()
        self._known: dict[str, float] = {}

    def publish(self, messages: Sequence[Message], group: str | None) -> list[Receipt]:
        deadline = time.monotonic() + self._seconds
        receipts: dict[int, Receipt] = {}
        waiting: dict[str, _Piece] = {}
        missing = {
            topic: self._missing(topic, deadline)
            for topic in {message.topic for message in messages}
        }
        for place, message in enumerate(messages):
            refused = missing[message.topic]
            if refused is not None:
                receipts[place] = refused
                continue
            try:
                headers = headers_of(message)
                body = bytes(message.content)
            except (ContractBroken, UnicodeEncodeError, TypeError, AttributeError) as error:
                receipts[place] = _refused(
                    f"The message cannot be written as a frame: {error}", for_good=True
                )
                continue
            size = len(body) + sum(
                len(name) + len(value.encode()) for name, value in message.headers.items()
            )
            if size > self._max_bytes:
                receipts[place] = _refused(
                    f"TOOLARGE {size} bytes, and {self._max_bytes} are allowed", for_good=True
                )
                continue
            names = self._names
            to = (
                names.topic(message.topic)
                if group is None
                else f"/queue/{names.queue(message.topic, group)}"
            )
            waiting.setdefault(to, []).append((place, headers, body))
        for destination, some in waiting.items():
            for piece in _pieces(some):
                receipts |= self._piece(destination, piece, deadline)
        return [receipts[place] for place in range(len(messages))]

    def _missing(self, topic: str, deadline: float) -> Receipt | None:
        """Why nothing can be sent to this topic; null: it can."""
        if self._there is None:
            return None
        with self._lock:
            if time.monotonic() - self._known.get(topic, float("-inf")) < THERE_SECONDS:
                return None
        if time.monotonic() >= deadline:
            return _refused(_NO_TIME)
        try:
            there = self._there(topic)
        except BrokerUnavailable as error:
            return _refused(f"Nothing was sent: the topic could not be looked for: {error.what}")
        if not there:
            return _refused(f"NOTOPIC there is no topic {topic!r}", for_good=True)
        with self._lock:
            self._known[topic] = time.monotonic()
        return None

    def forget(self, topic: str) -> None:
        """Believe nothing about this topic that was read before."""
        with self._lock:
            self._known.pop(topic, None)

    def _piece(self, to: str, piece: _Piece, deadline: float) -> dict[int, Receipt]:
        receipt, by_broker = self._transaction(
            to, [(headers, body) for _, headers, body in piece], deadline
        )
        if by_broker and len(piece) > 1:
            # It said no to one of them, and nothing is stored: each by itself then, so that the others go.
            return {one[0]: self._piece(to, [one], deadline)[one[0]] for one in piece}
        return dict.fromkeys((place for place, _, _ in piece), receipt)

    def _transaction(
        self, to: str, messages: Sequence[tuple[Mapping[str, str], bytes]], deadline: float
    ) -> tuple[Receipt, bool]:
        """One receipt for all of them, which are stored together or not at all; and whether the broker itself said no."""
        # A broker that is silent takes its time for each connection, too.
        if time.monotonic() >= deadline:
            return _refused(_NO_TIME), False
        try:
            session = self._pool.take()
        except NotSent as error:
            return _refused(f"Nothing was sent: {error}"), False
        number = session.number()
        refused = self._send(session, number, to, messages, deadline)
        if refused is not None:
            session.close()  # and the broker rolls back what it began
            return refused
        return self._commit(session, number, deadline)

    def _commit(self, session: Session, number: str, deadline: float) -> tuple[Receipt, bool]:
        try:
            session.write(
                encode("COMMIT", {"transaction": number, "receipt": f"{number}-c"}), deadline
            )
            answer = session.answer(f"{number}-c", deadline)
        except ConnectionLost as error:
            session.close()
            return Receipt(Outcome.UNKNOWN, error=f"No answer came to the commit: {error}"), False
        if answer is None or answer.command == "ERROR":
            session.close()
            receipt = _uncommitted(answer)
            return receipt, receipt.outcome is Outcome.REFUSED
        self._pool.give_back(session)
        return Receipt(Outcome.SENT), False

    def _send(
        self,
        session: Session,
        number: str,
        to: str,
        messages: Sequence[tuple[Mapping[str, str], bytes]],
        deadline: float,
    ) -> tuple[Receipt, bool] | None:
        """Hands the messages to the broker, uncommitted; null: it has taken them."""
        frames = [encode("BEGIN", {"transaction": number})]
        last = len(messages) - 1
        for place, (headers, body) in enumerate(messages):
            # A failure of one that asks for no receipt makes the broker refuse the commit.
            asked = {"receipt": f"{number}-s"} if place == last else {}
            frames.append(
                encode(
                    "SEND",
                    {
                        "destination": to,
                        "persistent": "true",
                        "transaction": number,
                        **asked,
                        **headers,
                    },
                    body,
                )
            )
        try:
            session.write(b"".join(frames), deadline)
            answer = session.answer(f"{number}-s", deadline)
        except ConnectionLost as error:
            answer = session.last_word()
            if answer is None:
                return _refused(
                    f"The connection broke before the commit was written: {error}"
                ), False
        if answer is None:
            return _refused("No answer came in time, and the commit was not written"), False
        if answer.command == "RECEIPT":
            return None
        text = said(answer)
        return _refused(text, for_good=any(sign in text.lower() for sign in _TOO_LARGE)), True


def _pieces(some: _Piece) -> Iterator[_Piece]:
    piece: _Piece = []
    size = 0
    for one in some:
        weight = len(one[2]) + sum(map(len, one[1].values()))
        if piece and (size + weight > PIECE_BYTES or len(piece) >= PIECE_MESSAGES):
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += weight
    if piece:
        yield piece


def _uncommitted(answer: Frame | None) -> Receipt:
    if answer is None:
        return Receipt(Outcome.UNKNOWN, error="No answer to the commit came in time")
    text = said(answer)
    # Not its body: a stack trace names what it was caused by.
    if _ROLLED_BACK.match(answer.headers.get("message", "").strip()):
        return _refused(text)
    return Receipt(Outcome.UNKNOWN, error=f"The commit failed, and may have been stored: {text}")


def _refused(why: str, *, for_good: bool = False) -> Receipt:
    return Receipt(Outcome.REFUSED, error=why, refused_for_good=for_good)
