"""One remoting connection with many requests in flight, whose every step ends by a deadline.

No thread of its own: a send must tell whether its bytes can have left, and must end in time.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence

from backstop.brokers.rocketmq.wire.address import Address, split_endpoint
from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.frames import (
    ANSWER,
    Answer,
    Command,
    Malformed,
    Reader,
    Request,
    encode,
)

READ_BYTES = 256 * 1024
WRITE_BYTES = 256 * 1024
MAX_OPAQUE = 2**31 - 1
_OUR_ANSWER = 0
"""Stands for the opaque of an answer of ours, which nobody waits for."""
OnPush = Callable[[Command], Request | None]
"""Takes what the broker tells or asks; what it returns is the answer to a broker that wants one (its code is the answer's).

It is called while the session reads: it may note things, but ask nothing of the session."""


class NotSent(Exception):
    """The request never left this process as a whole: nobody can have executed it."""


class ConnectionLost(Exception):
    """The connection broke, or the time was over: the request may have been executed."""


class Session:
    """One connection. Not shared between threads. `start` and `collect` are the steps that everything else is made of."""

    def __init__(
        self,
        address: Address,
        to: str,
        *,
        deadline: float,
        context: ssl.SSLContext | None = None,
        on_push: OnPush | None = None,
    ) -> None:
        """Connects to `to` (host:port). Raises NotSent; an error text never holds the login."""
        self.to, self.on_push = to, on_push
        self._login = address.login
        self._last_opaque = 0
        self._reader = Reader()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Of these no byte was offered to the socket."""
        self._chunk: memoryview | None = None
        self._chunk_ends: deque[tuple[int, int]] = deque()
        """What is being written: (opaque, how many bytes of the chunk are left behind its end)."""
        self._in_flight: set[int] = set()
        """Written as a whole, or, over TLS, perhaps; and not answered."""
        self._given_up: set[int] = set()
        """Of these a late answer may still come; nobody takes it."""
        self._arrived: dict[int, Answer] = {}
        self.broken: str | None = None
        self.pushes = 0
        self.heard_at = time.monotonic()
        host, port = split_endpoint(to)
        try:
            self._socket = socket.create_connection((host, port), timeout=_left(deadline))
        except OSError as error:
            raise NotSent(f"cannot connect to {to}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tls = context is not None
            if context is not None:
                self._socket.settimeout(_left(deadline))
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            self._socket.setblocking(False)
        except OSError as error:
            self.close()
            raise NotSent(f"cannot connect to {to}: {error}") from error

    def ask(self, request: Request, deadline: float) -> Answer:
        """The answer, whatever it says. Raises NotSent, Lost."""
        [opaque] = self.start([request])
        while opaque not in self._arrived and self.broken is None and self._wait(deadline):
            pass
        result = self.conclude(opaque)
        if isinstance(result, Command):
            return result
        raise result

    def start(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests to be written, in this order, and gives each its number. Never blocks; `collect` writes."""
        opaques = []
        for request in requests:
            opaque = self._last_opaque = self._last_opaque % MAX_OPAQUE + 1
            self._waiting.append((opaque, encode(request, opaque, login=self._login)))
            opaques.append(opaque)
        if self._chunk is None:
            self.pump()
        return opaques

    def collect(self, deadline: float) -> dict[int, Answer]:
        """What was answered, each answer once; waits for the first one or the first push, at most until the deadline.

        Empty: none came in time. Raises Lost when the connection is over and all answers that came were collected.
        """
        pushes = self.pushes
        while (
            not self._arrived
            and self.broken is None
            and self.pushes == pushes
            and self._wait(deadline)
        ):
            pass
        arrived = self.take_all()
        if not arrived and self.broken is not None:
            raise ConnectionLost(self.broken)
        return arrived

    def take_all(self) -> dict[int, Answer]:
        """What was answered and not handed out, each answer once; waits for nothing."""
        arrived, self._arrived = self._arrived, {}
        return arrived

    def conclude(self, opaque: int) -> Answer | ConnectionLost | NotSent:
        """How it ended. What was not written is withdrawn; an answer that comes later is thrown away."""
        answer = self._arrived.pop(opaque, None)
        if answer is not None:
            return answer
        if opaque in self._in_flight:
            self._in_flight.discard(opaque)
            self._given_up.add(opaque)
            return ConnectionLost(self.broken or f"{self.to} did not answer in time")
        for place, (waiting, _) in enumerate(self._waiting):
            if waiting == opaque:
                del self._waiting[place]
                return NotSent(self.broken or f"{self.to} took nothing more in time")
        if any(opaque == half for half, _ in self._chunk_ends):
            # Its beginning has left: nothing else can be written into this connection any more.
            self._break(f"{self.to} took only a part of a request in time")
        return NotSent(self.broken or "it was never started")

    @property
    def unanswered(self) -> int:
        """Requests of which something is on its way: not written, or not answered, waited for or not."""
        return (
            len(self._waiting) + len(self._chunk_ends) + len(self._in_flight) + len(self._given_up)
        )

    @property
    def writing(self) -> bool:
        return self._chunk is not None or bool(self._waiting)

    def fileno(self) -> int:
        return self._socket.fileno()

    def pump(self) -> None:
        """Writes and reads what can be, without waiting. What ends the connection is in `broken` after it."""
        if self.broken is not None:
            return
        try:
            self._read()
            try:
                self._write()
            except OSError:
                self._read()  # what it answered before it hung up counts
                raise
        except OSError as error:
            self._break(f"{self.to}: {type(error).__name__}: {error}")
        except Malformed as error:
            self._break(f"{self.to} does not speak the remoting protocol: {error}")

    def idle(self) -> bool:
        """Whether it can be used again: open, nothing on its way in either direction."""
        self.pump()
        return self.broken is None and not self.unanswered and not self._arrived

    def close(self) -> None:
        self._break(self.broken or f"the connection to {self.to} was closed here")

    def _wait(self, deadline: float) -> bool:
        """Waits until something can be read or written, and does it. False: the time is over."""
        left = deadline - time.monotonic()
        if left > 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self.writing else 0))
            poll.poll(left * 1000)
        self.pump()
        return left > 0

    def _write(self) -> None:
        while self.broken is None and self.writing:
            if self._chunk is None:
                self._gather()
            chunk = self._chunk
            assert chunk is not None
            if self._tls:
                # Of what is offered to TLS nobody can tell afterwards how much of it left.
                self._in_flight.update(
                    opaque for opaque, _ in self._chunk_ends if opaque not in self._given_up
                )
                self._in_flight.discard(_OUR_ANSWER)
            try:
                written = self._socket.send(chunk)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            rest = chunk[written:]
            while self._chunk_ends and self._chunk_ends[0][1] >= len(rest):
                opaque, _ = self._chunk_ends.popleft()
                if opaque != _OUR_ANSWER and opaque not in self._given_up:
                    self._in_flight.add(opaque)
            self._chunk = rest if rest else None

    def _gather(self) -> None:
        """Makes the next chunk of what waits."""
        parts: list[bytes] = []
        size = 0
        while self._waiting and (not parts or size + len(self._waiting[0][1]) <= WRITE_BYTES):
            opaque, data = self._waiting.popleft()
            parts.append(data)
            size += len(data)
            self._chunk_ends.append((opaque, size))
        self._chunk_ends = deque((opaque, size - end) for opaque, end in self._chunk_ends)
        self._chunk = memoryview(b"".join(parts))

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                self._break(f"{self.to} closed the connection")
                return
            self.heard_at = time.monotonic()
            self._reader.feed(data)
            while (command := self._reader.next()) is not None:
                self._take(command)
            if len(data) < READ_BYTES and not self._tls:
                return

    def _take(self, command: Command) -> None:
        if command.is_answer:
            if command.opaque in self._in_flight:
                self._in_flight.discard(command.opaque)
                self._arrived[command.opaque] = command
            self._given_up.discard(command.opaque)
            return
        self.pushes += 1
        answer = self.on_push(command) if self.on_push is not None else None
        if command.wants_answer:
            said = answer or Request(ResponseCode.NOT_SUPPORTED)
            self._waiting.append((_OUR_ANSWER, encode(said, command.opaque, flag=ANSWER)))

    def _break(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
        self._socket.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise NotSent("the time was over before it was connected")
    return left
