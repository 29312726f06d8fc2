"""The log in PostgreSQL; see log_table.LogTable. One statement does each, and says what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backstop.leases.lease import Acquired, Arrival
from backstop.sql.named import load
from backstop.sql.run import Connection, rows

_SQL = load("backstop.leases", "queries.sql")
_LIFE = load("backstop.leases", "queue_owner.sql")["server_life"]
_BOOKS = load("backstop.leases", "books.sql")["write"]


class PostgresLogTable:
    """See log_table.LogTable."""

    def begin(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[Arrival],
        tokens: Sequence[str],
        lease_seconds: float,
        owner_host: str,
    ) -> Sequence[Mapping[str, Any]]:
        values = {
            **_columns(group, arrivals),
            "queue_ids": [a.position.queue_id if a.position else None for a in arrivals],
            "queue_offsets": [a.position.offset if a.position else None for a in arrivals],
            "queue_epochs": [a.position.epoch if a.position else None for a in arrivals],
            "tokens": list(tokens),
            "lease_seconds": lease_seconds,
            "owner_host": owner_host,
        }
        return rows(connection, _SQL["begin"], values)

    def refused(
        self, connection: Connection, group: str, arrivals: Sequence[Arrival]
    ) -> Sequence[Mapping[str, Any]]:
        return rows(connection, _SQL["refused"], _columns(group, arrivals))

    def renew(
        self,
        connection: Connection,
        group: str,
        leases: Sequence[Acquired],
        lease_seconds: float,
    ) -> set[str]:
        values = {**_of_leases(group, leases), "lease_seconds": lease_seconds}
        return {row["token"] for row in rows(connection, _SQL["renew"], values)}

    def complete(self, connection: Connection, group: str, leases: Sequence[Acquired]) -> set[str]:
        found = rows(connection, _SQL["complete"], _of_leases(group, leases))
        return {row["token"] for row in found}

    def fail(self, connection: Connection, lease: Acquired, error: str) -> bool:
        return bool(rows(connection, _SQL["fail"], {**_fenced(lease), "error": error}))

    def give_back(self, connection: Connection, lease: Acquired, *, was_entered: bool) -> bool:
        values = {**_fenced(lease), "was_entered": was_entered}
        return bool(rows(connection, _SQL["give_back"], values))

    def record_done(
        self, connection: Connection, group: str, arrival: Arrival, owner_host: str
    ) -> bool:
        return bool(rows(connection, _SQL["record_done"], _one(group, arrival, owner_host)))

    def record_failure(
        self, connection: Connection, group: str, arrival: Arrival, error: str, owner_host: str
    ) -> bool:
        values = {**_one(group, arrival, owner_host), "error": error}
        return bool(rows(connection, _SQL["record_failure"], values))

    def write_books(self, connection: Connection, values: Mapping[str, object]) -> None:
        rows(connection, _BOOKS, values)

    def server_life(self, connection: Connection) -> str:
        (row,) = rows(connection, _LIFE, {})
        return str(row["life"])

    def open_work(self, connection: Connection) -> None:
        """A transaction that failed refuses every further statement until it is rolled back: it cannot be another."""

    def close_work(self, connection: Connection) -> None:
        """The same."""


POSTGRESQL = PostgresLogTable()


def _columns(group: str, arrivals: Sequence[Arrival]) -> dict[str, object]:
    return {
        "group": group,
        "topics": [arrival.topic for arrival in arrivals],
        "message_ids": [arrival.message_id for arrival in arrivals],
        "payload_hashes": [arrival.payload_hash for arrival in arrivals],
        "content_versions": [arrival.content_version for arrival in arrivals],
    }


def _of_leases(group: str, leases: Sequence[Acquired]) -> dict[str, object]:
    return {
        "group": group,
        "topics": [lease.topic for lease in leases],
        "message_ids": [lease.message_id for lease in leases],
        "tokens": [lease.token for lease in leases],
    }


def _fenced(lease: Acquired) -> dict[str, object]:
    return {
        "group": lease.group,
        "topic": lease.topic,
        "message_id": lease.message_id,
        "token": lease.token,
    }


def _one(group: str, arrival: Arrival, owner_host: str) -> dict[str, object]:
    position = arrival.position
    return {
        "group": group,
        "topic": arrival.topic,
        "message_id": arrival.message_id,
        "queue_id": position.queue_id if position else None,
        "queue_offset": position.offset if position else None,
        "queue_epoch": position.epoch if position else None,
        "payload_hash": arrival.payload_hash,
        "content_version": arrival.content_version,
        "owner_host": owner_host,
    }
