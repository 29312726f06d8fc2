"""The client of Airflow's REST API before a server that accepts a connection and does not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from backstop_lab.servers.airflow_api import READINGS, AirflowApi, AirflowUnavailable
from backstop_lab.servers.ports import LOOPBACK

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Silent:
    """A server that leaves its first `silent` requests without an answer; `seen` are the methods that reached it."""

    def __init__(self, silent: int) -> None:
        self.seen: list[str] = []
        self._silent, self._kept = silent, list[socket.socket]()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.url = f"http://{LOOPBACK}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            self.seen.append(connection.recv(65536).split(b" ", 1)[0].decode())
            if len(self.seen) > self._silent:
                connection.sendall(ANSWER)
                connection.close()
            else:
                self._kept.append(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in (self._listener, *self._kept):
            one.close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Silent]:
    made = Silent(request.param)
    yield made
    made.close()


def api(server: Silent) -> AirflowApi:
    made = AirflowApi(server.url, "admin", "password", request_seconds=0.2)
    made._token = "token"
    return made


@pytest.mark.parametrize("server", [READINGS - 1], indirect=True)
def test_a_reading_that_is_not_answered_in_time_is_asked_again(server: Silent) -> None:
    assert api(server).request("GET", "/dags") == {}
    assert server.seen == ["GET"] * READINGS


@pytest.mark.parametrize("server", [READINGS], indirect=True)
def test_a_server_that_never_answers_is_unavailable(server: Silent) -> None:
    with pytest.raises(AirflowUnavailable, match="was not answered"):
        api(server).request("GET", "/dags")
    assert server.seen == ["GET"] * READINGS


@pytest.mark.parametrize("server", [1], indirect=True)
def test_what_may_have_been_carried_out_is_never_sent_again(server: Silent) -> None:
    with pytest.raises(AirflowUnavailable, match="was not answered"):
        api(server).trigger("reconcile")
    assert server.seen == ["POST"]
