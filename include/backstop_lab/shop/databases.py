"""Reach a producer or consumer database of the shop on either kind of server, by its URL: postgresql:// or mysql://.

The statements are those of business.sql; business_mariadb.sql has another text for those that MariaDB does not understand. In both
`current_timestamp(6)` is this instant: sessions here count in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import psycopg2

from backstop.schema.mariadb import is_mariadb
from backstop.sql.mysql import driver, read_mysql_url
from backstop.sql.named import load
from backstop_lab.shop.ledger import Key

_KEPT_AS_BYTES = 253
"""FIELD_TYPE.VAR_STRING of the MySQL protocol: a VARBINARY, in which MariaDB keeps names, or a text."""
CONNECT_SECONDS = 10


def connect(url: str) -> Any:
    """A connection of the driver's, with autocommit off, as an application would open it."""
    if not is_mariadb(url):
        return psycopg2.connect(url, connect_timeout=CONNECT_SECONDS)
    login = read_mysql_url(url)
    assert login is not None
    return driver("the shop").connect(
        **login,
        charset="utf8mb4",
        autocommit=False,
        connect_timeout=CONNECT_SECONDS,
        init_command="SET time_zone = '+00:00'",
        ssl_disabled=True,
    )


def away(url: str) -> tuple[type[Exception], ...]:
    """What a driver raises when the database is not there."""
    if not is_mariadb(url):
        return (psycopg2.OperationalError,)
    return (driver("the shop").err.OperationalError,)


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """A cursor whose statements are committed at the end, or undone together."""
    try:
        with connection.cursor() as cursor:
            yield cursor
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def change(
    url: str, statement: str, parameters: tuple[object, ...] | Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """One statement, committed; its rows if it gives any. Names are text on both servers."""
    with closing(connect(url)) as connection, transaction(connection) as cursor:
        cursor.execute(statement, parameters)
        if not cursor.description:
            return []
        found = list(cursor.fetchall())
        if not is_mariadb(url):
            return found
        kinds = [column[1] for column in cursor.description]
        return [tuple(map(_as_text, row, kinds)) for row in found]


def _as_text(value: Any, kind: int) -> Any:
    return value.decode() if kind == _KEPT_AS_BYTES and isinstance(value, bytes) else value


def statements(url: str) -> Mapping[str, str]:
    """The shop's statements by name, for the server of this URL."""
    return _of_mariadb() if is_mariadb(url) else load("backstop_lab.shop", "business.sql")


@cache
def _of_mariadb() -> Mapping[str, str]:
    return {
        **load("backstop_lab.shop", "business.sql"),
        **load("backstop_lab.shop", "business_mariadb.sql"),
    }


def listed(keys: Iterable[Key]) -> str:
    """The value of a statement's `held`: JSON, in which the keys are hexadecimal (MariaDB leaves the escapes in a text of it)."""
    return json.dumps(
        [
            {"topic": topic.encode().hex(), "message_id": message_id.encode().hex()}
            for topic, message_id in keys
        ]
    )
