"""Run MariaDB from Debian's packages as our own child: on the loopback, without a system service, over one directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql
import pytest

from backstop.model.private_file import write_private
from backstop_lab.servers.child import Child
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.postgres import server_environment
from backstop_lab.servers.unprivileged import choose_run_as

PASSWORD = "s3cret-m@ria/never-shown"
START_SECONDS = 60.0
SETTINGS = """\
[mariadbd]
datadir={data}
socket={data}/socket
pid-file={data}/pid
port={port}
bind-address={host}
skip-name-resolve
innodb-buffer-pool-size=32M
innodb-log-file-size=16M
innodb-flush-log-at-trx-commit=0
performance-schema=OFF
character-set-server=utf8mb4
"""


def installed(name: str) -> Path:
    """The program, or a failed test: a missing server must not look like a passed test."""
    found = shutil.which(
        name,
        path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]),
    )
    if found is None:
        pytest.fail(
            f"{name} is not here, and these tests need a real MariaDB. "
            "On Debian: apt-get install -y --no-install-recommends mariadb-server-core mariadb-client-core",
            pytrace=False,
        )
    return Path(found)


class MariaDB:
    """One server, with the database `dedup` and the user `sweeper`, who may do what docs/how-to/foreign-leases.md grants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.data = self.directory / "data"
        self.port = free_port()
        self._program = installed("mariadbd")
        self._install = installed("mariadb-install-db")
        self._child = Child("MariaDB", self.directory / "server.log")

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

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        run_as = choose_run_as(self._program, self.directory)
        settings = self.directory / "my.cnf"
        write_private(
            settings, SETTINGS.format(data=self.data, port=self.port, host=LOOPBACK), run_as.owner
        )
        first = not self.data.exists()
        if first:
            self.data.mkdir(mode=0o700)
            if run_as.owner is not None:
                os.chown(self.data, *run_as.owner)
            made = subprocess.run(
                [
                    *run_as.prefix,
                    str(self._install),
                    f"--defaults-file={settings}",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                ],
                cwd="/",
                env=server_environment(),
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert made.returncode == 0, made.stdout + made.stderr
            # The first thing it does as a server: nobody can log in without a password, not even for a moment.
            (self.data / "init.sql").write_text(
                f"ALTER USER root@localhost IDENTIFIED BY '{PASSWORD}';\n"
                "CREATE DATABASE dedup;\n"
                f"CREATE USER admin@'{LOOPBACK}' IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL ON *.* TO admin@'{LOOPBACK}' WITH GRANT OPTION;\n"
                f"CREATE USER sweeper@'{LOOPBACK}' IDENTIFIED BY '{PASSWORD}';\n"
            )
            os.chmod(self.data / "init.sql", 0o644)
        extra = [f"--init-file={self.data / 'init.sql'}"] if first else []
        self._child.start(
            [*run_as.prefix, str(self._program), f"--defaults-file={settings}", *extra],
            env=server_environment(),
        )
        try:
            self._child.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self._child.kill()
            raise

    def stop(self) -> None:
        self._child.stop()

    def connect(self, user: str = "admin") -> Any:
        return pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=user,
            password=PASSWORD,
            database="dedup",
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=5,
        )

    def url(self, user: str = "sweeper", database: str = "dedup") -> str:
        password = PASSWORD.replace("@", "%40").replace("/", "%2F")
        return f"mysql://{user}:{password}@{LOOPBACK}:{self.port}/{database}"

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return True
