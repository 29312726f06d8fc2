"""What stands between two programs passes everything unchanged until it is told to spoil a link, and each way is what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from backstop_lab.chaos.tcp_proxy import Proxy
from backstop_lab.servers.ports import free_port

REPLY = b"r" * 1000


class Server:
    """Answers every request with REPLY; counts what it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed by the test
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(4096):
                    self.asked += 1
                    connection.sendall(REPLY)
            except OSError:
                return  # cut

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def link() -> Iterator[tuple[Server, Proxy, int]]:
    server, proxy = Server(), Proxy()
    port = proxy.add("link", server.port)
    yield server, proxy, port
    proxy.close()
    server.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def ask(client: socket.socket) -> bytes:
    """The whole reply, or what came of it before the connection broke."""
    client.sendall(b"question")
    got = b""
    try:
        while len(got) < len(REPLY):
            piece = client.recv(4096)
            if not piece:
                break
            got += piece
    except ConnectionError:
        return got
    return got


def test_what_is_not_spoiled_passes_unchanged(link: tuple[Server, Proxy, int]) -> None:
    server, _, port = link
    with connected(port) as client:
        assert [ask(client) for _ in range(3)] == [REPLY] * 3
    assert server.asked == 3


@pytest.mark.parametrize(
    ("how", "heard"), [("in the reply", len(REPLY) // 2), ("after the request", 0)]
)
def test_a_cut_comes_after_the_server_has_done_what_it_was_asked(
    how: str, heard: int, link: tuple[Server, Proxy, int]
) -> None:
    server, proxy, port = link
    with connected(port) as client:
        assert ask(client) == REPLY
        assert proxy.spoil("link", how) == 1
        assert len(ask(client)) == heard
    assert server.asked == 2
    assert proxy.links["link"].cuts == 1
    with connected(port) as client:
        assert ask(client) == REPLY, "a new connection is whole"


@pytest.mark.parametrize("cut", [False, True])
def test_silence_holds_everything_back_until_it_ends(
    cut: bool, link: tuple[Server, Proxy, int]
) -> None:
    server, proxy, port = link
    with connected(port) as client:
        assert ask(client) == REPLY
        assert proxy.spoil("link", "silence") == 1
        client.sendall(b"question")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert server.asked == 1
        client.settimeout(60)
        proxy.mend("link", cut=cut)
        if cut:
            with pytest.raises(ConnectionError):
                client.recv(1)
        else:
            assert client.recv(1) == REPLY[:1]


def test_slowness_delays_and_loses_nothing(link: tuple[Server, Proxy, int]) -> None:
    _, proxy, port = link
    with connected(port) as client:
        proxy.spoil("link", "slowness")
        began = time.monotonic()
        assert ask(client) == REPLY
        assert time.monotonic() - began >= 0.3
        proxy.mend("link", cut=False)
        took: list[float] = []
        # A machine that stands still for a moment makes one of them longer, but not all.
        while not took or (took[-1] >= 0.3 and len(took) < 20):
            began = time.monotonic()
            assert ask(client) == REPLY
            took.append(time.monotonic() - began)
        assert took[-1] < 0.3, took


def test_a_server_that_is_away_is_a_connection_that_breaks(link: tuple[Server, Proxy, int]) -> None:
    _, proxy, _ = link
    with pytest.raises(ConnectionError), connected(proxy.add("to nobody", free_port())) as client:
        client.recv(1)
