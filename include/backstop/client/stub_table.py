"""The stubs that a producer writes, behind one protocol: what recording and sending ask of a database, in that database's own SQL.

A stub is written where the business change is: on the connection of its transaction, whose driver says which database that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from backstop.model.records import Key
from backstop.sql.named import load
from backstop.sql.run import Connection, rows, speaks_mysql

_SQL = load("backstop.client", "queries.sql")
Values = Mapping[str, Any]
"""By column, a list with a value for each message; and what holds for all of them."""


class StubTable(Protocol):
    """`message_stub` and `send_attempt` in one kind of database. Clocks are the database's. Nothing here commits."""

    def record(self, connection: Connection, values: Values) -> set[Key]:
        """Writes a stub for each message, and returns the keys of those it wrote. Where a key is missing in the answer a stub
        was there: then perhaps not all others are written either, and the caller rolls back."""
        ...

    def has_content(self, connection: Connection, key: Key, content: bytes) -> bool:
        """Whether the message that was recorded before has this content."""
        ...

    def look(self, connection: Connection, values: Values) -> Sequence[Mapping[str, Any]]:
        """topic, message_id, recorded, ours, seconds_left, early_seconds and in_transaction of each message and token."""
        ...

    def settle(self, connection: Connection, values: Values) -> set[Key]:
        """How each send ended, only where the attempt is still the caller's; the keys where it was."""
        ...


class PostgresStubTable:
    """See StubTable: each is one statement."""

    def record(self, connection: Connection, values: Values) -> set[Key]:
        return _keys(rows(connection, _SQL["record"], values))

    def has_content(self, connection: Connection, key: Key, content: bytes) -> bool:
        values = {**key._asdict(), "content": content}
        found = rows(connection, _SQL["recorded_content"], values)
        return bool(found and found[0]["same"])

    def look(self, connection: Connection, values: Values) -> Sequence[Mapping[str, Any]]:
        return rows(connection, _SQL["look_before_send"], values)

    def settle(self, connection: Connection, values: Values) -> set[Key]:
        return _keys(rows(connection, _SQL["settle"], values))


def stub_table(connection: Connection) -> StubTable:
    """That of the connection's database."""
    if speaks_mysql(connection):
        from backstop.client.mariadb_stubs import MARIADB

        return MARIADB
    return _POSTGRESQL


_POSTGRESQL = PostgresStubTable()


def _keys(found: Sequence[Mapping[str, Any]]) -> set[Key]:
    return {Key(row["topic"], row["message_id"]) for row in found}
