"""Reads a dead-letter queue for draining: a consumer of it that acknowledges only what was stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from backstop.brokers.activemq.decode import letter_of
from backstop.brokers.activemq.frames import Frame, encode
from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.activemq.session import ConnectionLost, NotSent, Pool, Session, said
from backstop.brokers.activemq.unavailable import unavailable
from backstop.brokers.protocol import LETTER_PAGE_BYTES, LETTERS_IN_HAND, DeadLetter

PREFETCH = 2 * LETTERS_IN_HAND
"""Letters in this reader's hands at most, not yet acknowledged; as many again where those that stay there have filled it."""
QUIET_SECONDS = 0.05
"""When nothing more came for so long, the broker is asked how much there is: the answer decides, not the silence."""


class ActiveMQLetters:
    """One reader of one dead-letter queue. What it holds, another reader does not get until this one is closed."""

    def __init__(
        self, pool: Pool, reader: ProgressReader, names: Names, queue: str, *, seconds: float
    ) -> None:
        self._pool, self._reader, self._names, self._queue, self._seconds = (
            pool,
            reader,
            names,
            queue,
            seconds,
        )
        self._doing = f"reading the dead letters in {queue!r}"
        self._session: Session | None = None
        self._arrived: deque[Frame] = deque()
        # By the letter itself: a message of two groups lies under one broker id twice in a queue that they share.
        self._acks: dict[int, tuple[DeadLetter, str]] = {}
        self._lost: dict[int, DeadLetter] = {}
        """Handed out over a connection that ended before they were acknowledged: the broker has them still, perhaps."""
        self._left = 0
        self._room = 0
        """How many letters the broker gives before it wants some acknowledged."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, limit: int) -> list[DeadLetter]:
        deadline = time.monotonic() + self._seconds
        try:
            while limit > 0:
                session = self._connected()
                arrived = sum(len(frame.body) for frame in self._arrived)
                while (
                    session is not None
                    and len(self._arrived) < limit
                    and arrived <= LETTER_PAGE_BYTES
                ):
                    frame = session.read(time.monotonic() + QUIET_SECONDS)
                    if frame is None:
                        break
                    if frame.command == "ERROR":
                        raise ConnectionLost(said(frame))
                    if frame.command != "MESSAGE":
                        continue
                    if not self._reader.whole(self._queue, frame):
                        self._left += 1
                        # To ask about each takes its time; the broker was not silent.
                        deadline = time.monotonic() + self._seconds
                        continue
                    self._arrived.append(frame)
                    arrived += len(frame.body)
                if self._arrived:
                    return self._page(limit)
                depth = self._reader.depth(self._queue)
                if depth is None or depth[0] <= len(self._acks) + self._left:
                    break  # all others were read and are not acknowledged
                if session is not None and self._left + LETTERS_IN_HAND > self._room:
                    self._subscribe(session)  # what can be read lies behind them
                    continue
                if time.monotonic() > deadline:
                    raise unavailable(
                        self._doing,
                        f"{depth[0] - len(self._acks) - self._left} dead letters do not arrive: another consumer "
                        f"has them, or {len(self._acks)} that were read are not acknowledged",
                    )
        except ConnectionLost as error:
            self._forget()
            raise unavailable(self._doing, str(error)) from error
        if self._left:
            raise unavailable(
                self._doing,
                f"{self._left} dead letters are messages whose content STOMP does not show (map, object or "
                "stream): they stay in the queue, and must be removed by hand",
            )
        return []

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        if any(id(one) in self._lost for one in letters):
            raise unavailable(
                "acknowledging dead letters",
                "the connection ended; what was not acknowledged is delivered again",
            )
        acks = [self._acks[id(one)][1] for one in letters if id(one) in self._acks]
        if not acks:
            return
        session = self._session
        assert session is not None  # what it handed out is lost with it
        number = session.number()
        frames = [encode("BEGIN", {"transaction": number})]
        frames += [encode("ACK", {"id": ack, "transaction": number}) for ack in acks]
        frames.append(encode("COMMIT", {"transaction": number, "receipt": number}))
        try:
            session.ask(b"".join(frames), number, time.monotonic() + self._seconds)
        except ConnectionLost as error:
            self._forget()
            raise unavailable("acknowledging dead letters", str(error)) from error
        for one in letters:
            self._acks.pop(id(one), None)

    def close(self) -> None:
        """What is not acknowledged comes again, to another reader."""
        self._forget()

    def _connected(self) -> Session | None:
        """The subscription; null while there is no such queue: asking for it would make one."""
        if self._session is None and self._reader.depth(self._queue) is not None:
            try:
                self._session = self._pool.new()
            except NotSent as error:
                raise unavailable(self._doing, str(error)) from error
            self._subscribe(self._session)
        return self._session

    def _subscribe(self, session: Session) -> None:
        number = session.number()
        frame = encode(
            "SUBSCRIBE",
            {
                "destination": f"/queue/{self._queue}",
                "id": number,
                "ack": "client-individual",
                "activemq.prefetchSize": str(PREFETCH),
                "receipt": number,
            },
        )
        session.ask(frame, number, time.monotonic() + self._seconds)
        self._room += PREFETCH

    def _page(self, limit: int) -> list[DeadLetter]:
        page: list[DeadLetter] = []
        size = 0
        while self._arrived and len(page) < limit:
            size += len(self._arrived[0].body)
            if page and size > LETTER_PAGE_BYTES:
                break
            page.append(self._hand_out(self._arrived.popleft()))
        return page

    def _hand_out(self, frame: Frame) -> DeadLetter:
        letter = letter_of(frame, self._names, self._queue)
        self._acks[id(letter)] = letter, frame.headers["ack"]
        return letter

    def _forget(self) -> None:
        session, self._session = self._session, None
        self._arrived.clear()
        self._lost |= {key: letter for key, (letter, _) in self._acks.items()}
        self._acks, self._left, self._room = {}, 0, 0
        if session is not None:
            session.close()
