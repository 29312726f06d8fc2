"""A connection pooler as PgBouncer is with pool_mode transaction or session, small enough to read: it speaks protocol frames.

Each client logs in to the server itself, by a connection of its own, which then belongs to the pool. Between two transactions a
client of a sharing pooler has none; for the next one it gets the one that a transaction gave back last.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_SSL, _GSS = 80877103, 80877104
_READY, _KEY, _END = b"Z", b"K", b"X"
_IDLE = b"I"


class Pooler:
    """`shared`: a session belongs to a transaction, not to a client. `forwards`: a client is told the number of the session that
    logged it in, as if it were its own. It listens on the loopback, at `port`."""

    def __init__(self, host: str, port: int, *, shared: bool, forwards: bool = False) -> None:
        self._server, self._shared, self._forwards = (host, port), shared, forwards
        self._free: list[socket.socket] = []
        self._waits = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lines: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._lines.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            start = _exactly(client, struct.unpack("!I", _exactly(client, 4))[0] - 4)
            while struct.unpack("!I", start[:4])[0] in (_SSL, _GSS):
                client.sendall(b"N")
                start = _exactly(client, struct.unpack("!I", _exactly(client, 4))[0] - 4)
            session: socket.socket | None = socket.create_connection(self._server)
            assert session is not None
            self._lines.append(session)
            session.sendall(struct.pack("!I", len(start) + 4) + start)
            self._log_in(client, session)
            if self._shared:
                with self._waits:
                    self._free.insert(0, session)
                session = None
            while (frame := _frame(client))[0] != _END:
                session = session or self._take()
                session.sendall(b"".join(_written(frame)))
                session = self._answer(client, session)

    def _log_in(self, client: socket.socket, session: socket.socket) -> None:
        """The server's own questions and the client's answers; the number of the session becomes one of ours."""
        while True:
            kind, content = _frame(session)
            if kind == _KEY and not self._forwards:
                content = struct.pack("!I", 7) + content[4:]
            client.sendall(b"".join(_written((kind, content))))
            if kind == _READY:
                return
            if kind == b"E":
                raise OSError("the server refused the login")
            if kind == b"R" and struct.unpack("!I", content[:4])[0] in (3, 5, 10, 11):
                session.sendall(b"".join(_written(_frame(client))))

    def _answer(self, client: socket.socket, session: socket.socket) -> socket.socket | None:
        """Of one simple query; returns the session that the client keeps. One that it does not is given back before the client
        learns that it is done: it may ask for the next one at once."""
        while True:
            frame = _frame(session)
            kept: socket.socket | None = session
            if frame[0] == _READY and frame[1] == _IDLE and self._shared:
                kept = self._give_back(session)
            client.sendall(b"".join(_written(frame)))
            if frame[0] == _READY:
                return kept

    def _take(self) -> socket.socket:
        with self._waits:
            self._waits.wait_for(lambda: self._free)
            return self._free.pop()

    def _give_back(self, session: socket.socket) -> None:
        with self._waits:
            self._free.append(session)
            self._waits.notify()


def _frame(line: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(line, 5)
    return head[:1], _exactly(line, struct.unpack("!I", head[1:])[0] - 4)


def _written(frame: tuple[bytes, bytes]) -> tuple[bytes, bytes, bytes]:
    return frame[0], struct.pack("!I", len(frame[1]) + 4), frame[1]


def _exactly(line: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = line.recv(size - len(got))
        if not more:
            raise OSError("closed")
        got += more
    return got
