"""One STOMP connection whose every step ends by a deadline, and a pool of idle ones.

Not a client with a thread that receives: a send must tell whether its bytes can have left, and must end in time.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

from backstop.brokers.activemq.frames import Frame, Malformed, Reader, encode
from backstop.model.errors import ConfigurationError

DEFAULT_PORT = 61613
READ_BYTES = 256 * 1024
HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
"""Longer silence of a broker that promised a sign of life means that it, or the way to it, is gone."""


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where STOMP and Jolokia are, and the login; never shown."""

    host: str
    port: int
    tls: bool
    user: str
    password: str
    jolokia: str | None

    @classmethod
    def parse(cls, url: str) -> Address:
        """stomp://user:password@host:port?jolokia=<its whole address, percent-encoded>; stomp+ssl for TLS."""
        parts = urlsplit(url)
        if parts.scheme not in ("stomp", "stomp+ssl") or not parts.hostname:
            raise ConfigurationError(
                "The connection of an ActiveMQ broker is not an address of STOMP.",
                unaffected="Nothing was sent or read.",
                next_step="Write it as stomp://user:password@host:61613?jolokia=http%3A%2F%2Fhost%3A8161%2Fapi%2Fjolokia "
                "(stomp+ssl:// for TLS).",
            )
        jolokia = parse_qs(parts.query).get("jolokia", [None])[0]
        if jolokia is not None and "@" not in urlsplit(jolokia).netloc and parts.username:
            scheme, _, rest = jolokia.partition("://")
            jolokia = f"{scheme}://{parts.username}:{parts.password or ''}@{rest}"  # the same login for both
        try:
            port, _ = parts.port or DEFAULT_PORT, urlsplit(jolokia or "").port
        except (
            ValueError
        ):  # its text holds what stands where the port should be: perhaps a piece of a password
            raise ConfigurationError(
                "The port in the connection of an ActiveMQ broker, or in its Jolokia address, is not a number.",
                unaffected="Nothing was sent or read.",
                next_step="Percent-encode the password; inside the Jolokia address, which is encoded as a whole, twice.",
            ) from None
        return cls(
            parts.hostname,
            port,
            parts.scheme == "stomp+ssl",
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            jolokia,
        )


class NotSent(Exception):
    """No byte of what was to be written left this process."""


class ConnectionLost(Exception):
    """The connection broke, or the time was over: what was written may have arrived."""


class Refused(ConnectionLost):
    """The broker answered with an ERROR, which ends the connection."""


class Session:
    """One connection, logged in. Not shared between threads."""

    _numbers = count(1)

    def __init__(self, address: Address, *, connect_timeout: float) -> None:
        """Raises NotSent when it cannot be made; an error text never holds the password."""
        self._reader, self._held = Reader(), deque[Frame]()
        self.heard_at = time.monotonic()
        deadline = time.monotonic() + connect_timeout
        try:
            self._socket = socket.create_connection(
                (address.host, address.port), timeout=connect_timeout
            )
        except OSError as error:
            raise NotSent(f"cannot connect: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                self._socket = ssl.create_default_context().wrap_socket(
                    self._socket, server_hostname=address.host
                )
            self.write(
                encode(
                    "CONNECT",
                    {
                        "accept-version": "1.2",
                        "host": address.host,
                        "login": address.user,
                        "passcode": address.password,
                        "heart-beat": f"0,{int(HEARTBEAT_SECONDS * 1000)}",
                    },
                ),
                deadline,
            )
            answer = self.read(deadline)
        except (OSError, ConnectionLost) as error:
            self.close()
            raise NotSent(f"cannot log in: {error}") from error
        if answer is None or answer.command != "CONNECTED":
            self.close()
            raise NotSent(f"cannot log in: {said(answer) if answer else 'no answer in time'}")

    def number(self) -> str:
        """A number that no other receipt of this process has."""
        return f"b-{next(self._numbers)}"

    def write(self, data: bytes, deadline: float) -> None:
        """All of it, or Lost."""
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectionLost("the time was over while it was being written")
            self._socket.settimeout(left)
            try:
                view = view[self._socket.send(view) :]
            except OSError as error:
                raise ConnectionLost(f"{type(error).__name__}: {error}") from error

    def read(self, deadline: float) -> Frame | None:
        """The next frame; null: none came in time. Raises Lost when the connection is over."""
        if self._held:
            return self._held.popleft()
        return self._receive(deadline)

    def _receive(self, deadline: float) -> Frame | None:
        while True:
            try:
                frame = self._reader.next()
            except Malformed as error:
                raise ConnectionLost(f"the answer is not STOMP: {error}") from error
            if frame is not None:
                return frame
            left = deadline - time.monotonic()
            try:
                self._socket.settimeout(max(left, 0.0))
                data = self._socket.recv(READ_BYTES)
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
                if left <= 0:
                    return None
                continue
            except OSError as error:
                raise ConnectionLost(f"{type(error).__name__}: {error}") from error
            if not data:
                raise ConnectionLost("the broker closed the connection")
            self.heard_at = time.monotonic()
            self._reader.feed(data)

    def answer(self, receipt: str, deadline: float) -> Frame | None:
        """The RECEIPT of this number, or an ERROR; null: none in time. Other frames are kept for `read`."""
        for frame in list(self._held):
            if _answers(frame, receipt):
                self._held.remove(frame)
                return frame
        while (arrived := self._receive(deadline)) is not None:
            if _answers(arrived, receipt):
                return arrived
            self._held.append(arrived)
        return None

    def ask(self, frames: bytes, receipt: str, deadline: float) -> None:
        """Writes frames of which the last one asks for this receipt, and waits for it. Raises Lost, with the ERROR's text."""
        self.write(frames, deadline)
        answer = self.answer(receipt, deadline)
        if answer is None:
            raise ConnectionLost("no answer came in time")
        if answer.command == "ERROR":
            raise Refused(said(answer))

    def last_word(self) -> Frame | None:
        """The ERROR that came before the connection broke; null: none did."""
        try:
            while (frame := self.read(time.monotonic())) is not None:
                if frame.command == "ERROR":
                    return frame
        except ConnectionLost:
            return None
        return None

    def idle(self) -> bool:
        """Whether it can be used again: open, and nothing unread in it but signs of life."""
        try:
            while select.select([self._socket], [], [], 0)[0]:
                self._socket.settimeout(0)
                data = self._socket.recv(READ_BYTES)
                if data.strip(b"\r\n") or not data:
                    return False
        except (OSError, ValueError):
            return False
        return not self._held

    def close(self) -> None:
        self._socket.close()


def _answers(frame: Frame, receipt: str) -> bool:
    return frame.command == "ERROR" or (
        frame.command == "RECEIPT" and frame.headers.get("receipt-id") == receipt
    )


def said(frame: Frame) -> str:
    """What an ERROR says, in one line."""
    text = (
        frame.headers.get("message")
        or frame.body.decode(errors="replace").strip().partition("\n")[0]
    )
    return f"{frame.command}: {text[:500]}"


class Pool:
    """Idle sessions, for whoever needs one for a moment. Safe to share between threads."""

    def __init__(self, address: Address, *, connect_timeout: float) -> None:
        self.address, self.connect_timeout = address, connect_timeout
        self._idle: list[Session] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    def take(self) -> Session:
        """An open session. Raises NotSent."""
        while True:
            with self._lock:
                if (
                    self._process != os.getpid()
                ):  # a forked child must not speak into its parent's connections
                    self._process, self._idle = os.getpid(), []
                session = self._idle.pop() if self._idle else None
            if session is None:
                return self.new()
            if session.idle():
                return session
            session.close()

    def new(self) -> Session:
        """One that nobody used before. Raises NotSent."""
        return Session(self.address, connect_timeout=self.connect_timeout)

    def give_back(self, session: Session) -> None:
        """Only a session of which every answer was read."""
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
