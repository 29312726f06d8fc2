"""Stand between two programs on one link, and spoil it on command: cut, lose an answer, be silent, be slow.

One listener a link, all in one thread with a loop of its own. What is not spoiled passes unchanged.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

from backstop_lab.servers.ports import LOOPBACK

CHUNK = 65536
START_SECONDS = 10.0


class Line:
    """One connection through the proxy: the client's side and the server's."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.doom = ""
        self.asked = False

    def cut(self) -> None:
        """Both sides get a reset, as when a machine in between goes away."""
        reset(self.client)
        reset(self.server)


def reset(side: asyncio.StreamWriter) -> None:
    """A reset, not an orderly end: nothing is flushed, nothing lingers."""
    if side.transport.is_closing():
        return  # it has ended by itself
    side.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    side.transport.abort()


class Link:
    """One way from a kind of program to one server. `port` is where the program connects to."""

    def __init__(self, name: str, target: int) -> None:
        self.name, self.target = name, target
        self.port = 0
        self.cuts = 0
        """Connections that were cut so far."""
        self._lines: set[Line] = set()
        self._delay = 0.0
        self._open = asyncio.Event()
        self._open.set()

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = int(server.sockets[0].getsockname()[1])
        return server

    async def _accept(
        self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        try:
            server_reader, server = await asyncio.open_connection(LOOPBACK, self.target)
        except OSError:
            reset(client)  # the server is away: its client sees a connection that breaks
            return
        line = Line(client, server)
        self._lines.add(line)
        try:
            await asyncio.gather(
                self._pass(client_reader, server, line, is_reply=False),
                self._pass(server_reader, client, line, is_reply=True),
            )
        except OSError:
            line.cut()
        finally:
            self._lines.discard(line)
            client.close()
            server.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: Line,
        *,
        is_reply: bool,
    ) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)  # slowness is the fault
            await self._open.wait()
            if not is_reply:
                line.asked = True
            elif line.doom and line.asked:
                # The server has done what it was asked to; nobody will hear the whole of it.
                if line.doom == "in the reply" and len(data) > 1:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                self.cuts += 1
                line.cut()
                return
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    def doom(self, how: str) -> int:
        """Every connection there is will break at its next answer; how many there are."""
        for line in self._lines:
            line.doom, line.asked = how, False
        return len(self._lines)

    def pardon(self) -> None:
        for line in self._lines:
            line.doom = ""

    def slow(self, seconds: float) -> int:
        """From now on each piece comes so much later; 0: no more."""
        self._delay = seconds
        return len(self._lines)

    def silence(self) -> int:
        """Nothing passes, nothing breaks."""
        self._open.clear()
        return len(self._lines)

    def speak(self, *, cut: bool) -> None:
        """The silence is over: for what was open, too, or with a reset."""
        if cut:
            self.cuts += len(self._lines)
            for line in list(self._lines):
                line.cut()
        self._open.set()


class Proxy:
    """All links of a system. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._thread.start()

    def add(self, name: str, target: int) -> int:
        """A new link to a port of this machine; the port to connect to instead."""
        link = Link(name, target)
        self._servers.append(self._do(link.listen()))
        self.links[name] = link
        return link.port

    def spoil(self, name: str, how: str) -> int:
        """Begins a fault on a link; how many connections it hit."""
        link = self.links[name]

        async def begin() -> int:
            if how == "silence":
                return link.silence()
            if how == "slowness":
                return link.slow(0.15)
            return link.doom(how)

        return int(self._do(begin()))

    def mend(self, name: str, *, cut: bool) -> None:
        """Ends every fault on a link. `cut`: what was silent breaks instead of going on."""
        link = self.links[name]

        async def end() -> None:
            link.pardon()
            link.slow(0.0)
            if not link._open.is_set():
                link.speak(cut=cut)

        self._do(end())

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for link in self.links.values():
                for line in list(link._lines):
                    line.cut()

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(START_SECONDS)
