"""Run MariaDB from the system's packages as our own child: on the loopback, with a password, without a system service."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from backstop.model.private_file import read_or_generate, write_private
from backstop.sql.mysql import driver
from backstop_lab.servers.child import Child, LocalServerError, end_leftover, run_to_end
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.postgres import server_environment
from backstop_lab.servers.unprivileged import choose_run_as

SUPERUSER = "backstop"
START_SECONDS = 120.0
ONLY_OURS = "DELETE FROM mysql.global_priv WHERE User IN ('root', '');\nFLUSH PRIVILEGES;\n"
PACKAGES = "mariadb-server-core mariadb-client-core"

# No name is looked up: everything goes through the port and its password. Temporary files are the server's own: in a shared folder, a
# server that starts deletes those of one that runs.
SETTINGS = """\
[mariadbd]
datadir={data}
socket={data}/socket
pid-file={data}/pid
tmpdir={temporary}
port={port}
bind-address={host}
skip-name-resolve
innodb-buffer-pool-size={buffer_pool}M
innodb-log-file-size=16M
innodb-flush-log-at-trx-commit={flush}
performance-schema=OFF
character-set-server=utf8mb4
"""


class MariaDB:
    """One MariaDB server over one directory; made on the first start, found again on the next.

    `directory` gets `data/`, `tmp/`, `superuser.password` (0600) and `server.log`. As a context manager it starts
    and stops. Errors: LocalServerError when it does not start, ConfigurationError when root cannot run it.
    `durable=False`: the last second before a crash of the machine may be gone.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        durable: bool = True,
        buffer_pool: int = 128,
    ) -> None:
        self.name = "MariaDB"
        self.directory = directory.resolve()
        self.port = port if port is not None else free_port()
        self.data = self.directory / "data"
        self._flush, self._buffer_pool = int(durable), buffer_pool
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
        program = installed("mariadbd")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o711)
        run_as = choose_run_as(program, self.directory)
        self.end_leftovers()
        settings = self.directory / "my.cnf"
        temporary = self.directory / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        if run_as.owner is not None:
            os.chown(temporary, *run_as.owner)
        write_private(
            settings,
            SETTINGS.format(
                data=self.data,
                temporary=temporary,
                port=self.port,
                host=LOOPBACK,
                flush=self._flush,
                buffer_pool=self._buffer_pool,
            ),
            run_as.owner,
        )
        first = self._make_data(settings, run_as.prefix, run_as.owner)
        self._child.start(
            [*run_as.prefix, str(program), f"--defaults-file={settings}", *first],
            env=server_environment(),
        )
        try:
            self._child.wait_until(self._accepts_logins, START_SECONDS)
        except BaseException:
            self._child.kill()
            raise
        self._handed_over.unlink(missing_ok=True)

    def end_leftovers(self) -> None:
        """End a server over this directory that outlived its supervisor."""
        end_leftover(self.data / "pid", self.data, signal.SIGTERM)

    def stop(self) -> None:
        """An orderly shutdown: everything committed is on disk, the next start is clean."""
        self._child.stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the power cut of a fault test."""
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def admin_dsn(self, database: str = "mysql") -> str:
        return self.dsn(SUPERUSER, self.password, database)

    def dsn(self, user: str, password: str, database: str) -> str:
        login = f"{quote(user, '')}:{quote(password, '')}"
        return f"mysql://{login}@{LOOPBACK}:{self.port}/{quote(database, '')}"

    def make_database(self, name: str, password: str) -> None:
        """Make a database and a login of its name, which owns it; or set the password of the one that is there."""
        with self.admin() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET utf8mb4")
            user = (name, LOOPBACK)
            cursor.execute("CREATE USER IF NOT EXISTS %s@%s", user)
            cursor.execute("ALTER USER %s@%s IDENTIFIED BY %s", (*user, password))
            cursor.execute(f"GRANT ALL ON `{name}`.* TO %s@%s", user)

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """A cursor of the superuser, who commits each statement; closed at the end."""
        connection = driver(f"the embedded {self.name}").connect(
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            password=self.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=5,
            ssl_disabled=True,
        )
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()

    @property
    def password(self) -> str:
        return read_or_generate(self.directory / "superuser.password")

    @property
    def _handed_over(self) -> Path:
        return self.directory / "first_statements.sql"

    def _accepts_logins(self) -> bool:
        try:
            with self.admin():
                return True
        except driver(f"the embedded {self.name}").MySQLError:
            return False  # not up yet; the caller knows the deadline and whether the process lives

    def _make_data(
        self, settings: Path, prefix: tuple[str, ...], owner: tuple[int, int] | None
    ) -> list[str]:
        """The server's options for its first start, at which it makes the superuser; none when it has started before."""
        if self.data.exists() and not self._handed_over.exists():
            return []
        # What was not started once is made again: without its superuser there is nothing in it.
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        if owner is not None:
            os.chown(self.data, *owner)
        password = self.password.replace("\\", "\\\\").replace("'", "''")
        # The first thing that it does as a server: nobody can log in without a password, not even for a moment.
        write_private(
            self._handed_over,
            ONLY_OURS + f"CREATE USER {SUPERUSER}@'{LOOPBACK}' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON *.* TO {SUPERUSER}@'{LOOPBACK}' WITH GRANT OPTION;\n",
            owner,
        )
        done = run_to_end(
            [
                *prefix,
                str(installed("mariadb-install-db")),
                f"--defaults-file={settings}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            env=server_environment(),
            seconds=300,
        )
        if done.returncode != 0:
            raise LocalServerError(
                f"mariadb-install-db made no data directory in {self.data}: {done.stdout}{done.stderr}".strip(),
                unaffected="There was no data in it before.",
                next_step="Fix what it names, then start again.",
            )
        return [f"--init-file={self._handed_over}"]


def installed(name: str) -> Path:
    """A program of the server's packages. Raises LocalServerError where they are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise LocalServerError(
            f"{name} is not installed.",
            unaffected="Nothing was started.",
            next_step=f"Run `make mariadb`. On Debian: apt-get install --no-install-recommends {PACKAGES}",
        )
    return Path(found)
