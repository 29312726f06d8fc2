"""The MariaDB of tests: the platform's, with less behind it and with known logins."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from backstop_lab.servers import mariadb
from backstop_lab.servers.ports import LOOPBACK

PASSWORD = "s3cret-m@ria/never-shown"


def connect_to(url: str, kind: type[Any] = pymysql.connections.Connection, **options: Any) -> Any:
    """A connection of `kind`, with autocommit off, to the address of a URL."""
    parts = urlsplit(url)
    given: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
        "charset": "utf8mb4",
        "autocommit": False,
        "connect_timeout": 10,
        "ssl_disabled": True,  # else PyMySQL reads every certificate of the system for each connection
    }
    return kind(**{**given, **options})


class MariaDB(mariadb.MariaDB):
    """One server, with the database `dedup` and the user `sweeper`, who may do what docs/how-to/foreign-leases.md grants."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, durable=False, buffer_pool=32)

    def start(self) -> None:
        first = not self.data.exists()
        super().start()
        if not first:
            return
        with self.admin() as cursor:
            cursor.execute("CREATE DATABASE dedup")
            for user in ("admin", "sweeper"):
                cursor.execute("CREATE USER %s@%s IDENTIFIED BY %s", (user, LOOPBACK, PASSWORD))
            cursor.execute("GRANT ALL ON *.* TO admin@%s WITH GRANT OPTION", (LOOPBACK,))

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
            ssl_disabled=True,
        )

    def url(self, user: str = "sweeper", database: str = "dedup") -> str:
        return self.dsn(user, PASSWORD, database)
