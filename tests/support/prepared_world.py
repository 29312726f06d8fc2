"""A worker whose leases are in a database alone, and what its session has prepared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstop.client.lease_store import InDatabase
from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Arrival
from backstop.sql.prepared import USES
from client_world import GROUP, TOPIC, Database

MANY = 3 * USES


def worker(connect: Callable[[], Any]) -> InDatabase:
    return InDatabase(connect, GROUP, lease=LEASE, retry_after=RETRY_AFTER, owner_host="host")


def begin(store: InDatabase, message_id: str) -> Acquired:
    (lease,) = store.begin([Arrival(TOPIC, message_id)])
    assert isinstance(lease, Acquired)
    return lease


def end(store: InDatabase, lease: Acquired, *and_then: str) -> None:
    """The effect, then these statements of the handler's, then the lease's end: one transaction."""
    with store.completing(lease) as connection, connection.cursor() as cursor:
        values = (TOPIC, lease.message_id, GROUP)
        cursor.execute("INSERT INTO effect VALUES (%s, %s, %s, 1)", values)
        for statement in and_then:
            cursor.execute(statement)


def work(store: InDatabase, *ids: str) -> None:
    """Each message from its lease to its end."""
    for message_id in ids:
        end(store, begin(store, message_id))


def done(database: Database) -> list[str]:
    """What has its effect, which is what the log calls consumed; a second effect would be there twice."""
    effects = [row["message_id"] for row in database.run("SELECT message_id FROM effect")]
    logs = database.run("SELECT message_id FROM consumer_log WHERE state = 'CONSUMED'")
    assert sorted(effects) == sorted(row["message_id"] for row in logs)
    return sorted(effects)


def named(prefix: str, count: int = MANY) -> list[str]:
    return [f"{prefix}{number:03}" for number in range(count)]


def prepared_there(store: InDatabase) -> dict[str, Any]:
    """When each statement was prepared, by name; asked by a cursor, which prepares nothing itself."""
    with store.store.transaction() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT name, prepare_time FROM pg_prepared_statements")
        return dict(cursor.fetchall())
