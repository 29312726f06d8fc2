"""Make a test's PostgreSQL cheap: a copy of one data directory (`initdb` takes a second of CPU), logins without thousands of rounds
of hashing, databases that are copies, and no last checkpoint of what nobody reads again."""

from __future__ import annotations

import fcntl
import hmac
import os
import shutil
import signal
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path

import psycopg2

from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres

MakeData = Callable[[Postgres, tuple[str, ...], tuple[int, int] | None], None]


class _QuickLogin(Postgres):
    """Its superuser's password is stored as SCRAM asks for, hashed once: each login would hash it 4,096 times again."""

    def _password(self) -> str:
        salt = os.urandom(16)
        salted = pbkdf2_hmac("sha256", super()._password().encode(), salt, 1)
        stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        keys = [
            b64encode(one).decode()
            for one in (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))
        ]
        return "SCRAM-SHA-256$1:{}${}:{}".format(*keys)


def copied_data(template: Path, initdb: MakeData) -> MakeData:
    """`Postgres._make_data` that copies the directory at `template`; the first caller of all workers makes it.

    The template's password comes with its data: it replaces the one that the server would have generated.
    """

    def make_data(server: Postgres, prefix: tuple[str, ...], owner: tuple[int, int] | None) -> None:
        source = template / server._bin.parent.name
        template.mkdir(parents=True, exist_ok=True)
        template.chmod(0o711)
        with open(template / "turn", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not (source / "done").exists():
                source.mkdir(exist_ok=True)
                source.chmod(0o711)
                first = _QuickLogin(source, version="18" if source.name.endswith("18") else "16")
                initdb(first, prefix, owner)
                (source / "done").touch()
        shutil.rmtree(server.data, ignore_errors=True)
        shutil.copytree(source / "data", server.data)
        if owner is not None:
            for folder, folders, files in os.walk(server.data):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(folder, name), *owner)
        shutil.copy(source / "superuser.password", server.directory / "superuser.password")

    return make_data


def new_database(server: Postgres, name: str, role: str) -> str:
    """The address of a new database with the role's schema: a copy of the server's first one, to which nobody connects. Its schema
    would take three times as long."""
    first = f"made_{role}"
    with closing(psycopg2.connect(server.admin_dsn())) as admin, admin.cursor() as cursor:
        admin.autocommit = True
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (first,))
        if cursor.fetchone() is None:
            server.create_database(first)
            with (
                closing(psycopg2.connect(server.admin_dsn(first))) as connection,
                connection,
                connection.cursor() as making,
            ):
                making.execute(whole(role))
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE {first}')
    server.create_database(name)  # that only its owner may connect is not copied
    return server.admin_dsn(name)


def end_at_once(server: Postgres, *_: object) -> None:
    """`Postgres.__exit__` without the checkpoint of an orderly stop, and without its data: a whole run would leave 20 GB of them, on a
    disk where brokers refuse messages once it is nearly full."""
    server._child.stop(signal.SIGQUIT)
    shutil.rmtree(
        server.data, ignore_errors=True
    )  # a backend of a killed server may end a moment later
