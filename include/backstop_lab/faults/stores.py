"""Break stores on purpose, exactly: each function writes into the ledger what it really did, no more, no less.

By SQL, as a careless hand or a crash would. What is done to a broker stands in broker_faults/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import redis
from psycopg2 import sql

from backstop_lab.shop.ledger import Key, Ledger


def flush_leases(url: str) -> int:
    """Empties the Redis in front of the leases; how many keys went, in one transaction with it."""
    with redis.Redis.from_url(url) as server:
        [keys, _] = server.pipeline(transaction=True).dbsize().flushall().execute()
    return int(keys)


def delete_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """By hand, in the consumer's own database: logs of work that was done. What was there is in the ledger."""
    deleted = change(
        dsn,
        "DELETE FROM consumer_log WHERE consumer_group = %s AND state = 'CONSUMED'"
        " AND (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " RETURNING topic, message_id",
        (group, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
    )
    ledger.append(
        fault, [(topic, message_id) for topic, message_id in deleted], consumer_group=group
    )


def break_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """Legacy rows: the constraint is gone, and work that was done carries no time."""
    change(
        dsn, "ALTER TABLE consumer_log DROP CONSTRAINT IF EXISTS consumer_log_consumed_has_time", ()
    )
    broken = change(
        dsn,
        "UPDATE consumer_log SET consumed_at = NULL WHERE consumer_group = %s AND state = 'CONSUMED'"
        " AND (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " RETURNING topic, message_id",
        (group, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
    )
    ledger.append(
        fault,
        [(topic, message_id) for topic, message_id in broken],
        consumer_group=group,
        detail="consumed without a time",
    )


def make_due_at_once(dsns: Sequence[str], keys: Sequence[Key]) -> None:
    """The same next look for these stubs on every shard, so that one run sees all of them."""
    [(instant,)] = change(dsns[0], "SELECT clock_timestamp() + interval '1 second'", ())
    for dsn in dsns:
        change(
            dsn,
            "UPDATE message_stub SET next_check_at = %s"
            " WHERE (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[])) RETURNING topic",
            (instant, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
        )


@contextmanager
def store_away(admin_dsn: str, database: str) -> Iterator[None]:
    """The database accepts nobody, and whoever was connected is thrown out; open again at the end."""
    allow(admin_dsn, database, False)
    try:
        yield
    finally:
        allow(admin_dsn, database, True)


def allow(admin_dsn: str, database: str, allowed: bool) -> None:
    connection = psycopg2.connect(admin_dsn, connect_timeout=10)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
                    sql.Identifier(database), sql.Literal(allowed)
                )
            )
            if not allowed:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                    (database,),
                )
    finally:
        connection.close()


def change(
    dsn: str, statement: str, parameters: tuple[object, ...] | Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """One statement, committed; its rows if it gives any."""
    connection = psycopg2.connect(dsn, connect_timeout=10)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()
