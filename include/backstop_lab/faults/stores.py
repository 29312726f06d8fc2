"""Break stores on purpose, exactly: each function writes into the ledger what it really did, no more, no less.

By SQL, as a careless hand or a crash would. What is done to a broker stands in broker_faults/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import psycopg2
import redis
from psycopg2 import sql

from backstop.schema.mariadb import is_mariadb
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.shop.databases import change, connect, statements
from backstop_lab.shop.ledger import Key, Ledger
from backstop_lab.shop.wait_for import wait_for

AWAY_SECONDS = 30.0


def flush_leases(url: str) -> int:
    """Empties the Redis in front of the leases; how many keys went, in one transaction with it."""
    with redis.Redis.from_url(url) as server:
        [keys, _] = server.pipeline(transaction=True).dbsize().flushall().execute()
    return int(keys)


def delete_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """By hand, in the consumer's own database: logs of work that was done. What was there is in the ledger."""
    deleted = change(
        dsn, statements(dsn)["delete_logs"], {"consumer_group": group, "keys": tuple(keys)}
    )
    ledger.append(
        fault, [(topic, message_id) for topic, message_id in deleted], consumer_group=group
    )


def break_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """Legacy rows: the constraint is gone, and work that was done carries no time."""
    of_keys = {"consumer_group": group, "keys": tuple(keys)}
    change(dsn, statements(dsn)["allow_timeless_logs"], ())
    change(dsn, statements(dsn)["forget_time"], of_keys)
    broken = change(dsn, statements(dsn)["timeless_logs"], of_keys)
    ledger.append(
        fault,
        [(topic, message_id) for topic, message_id in broken],
        consumer_group=group,
        detail="consumed without a time",
    )


def make_due_at_once(dsns: Sequence[str], keys: Sequence[Key]) -> None:
    """The same next look for these stubs on every shard, so that one run sees all of them."""
    [(instant,)] = change(dsns[0], statements(dsns[0])["in_a_second"], ())
    for dsn in dsns:
        change(dsn, statements(dsn)["next_check"], {"instant": instant, "keys": tuple(keys)})


@contextmanager
def store_away(admin_dsn: str, database: str) -> Iterator[None]:
    """The database accepts nobody (in MariaDB: not its owner, as whom all come here), and whoever was connected is thrown out;
    open again at the end."""
    allow = partial(_allow_owner if is_mariadb(admin_dsn) else _allow, admin_dsn, database)
    allow(False)
    try:
        yield
    finally:
        allow(True)


def _allow(admin_dsn: str, database: str, allowed: bool) -> None:
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
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
                    (database,),
                )
    finally:
        connection.close()


def _allow_owner(admin_dsn: str, database: str, allowed: bool) -> None:
    with closing(connect(admin_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"ALTER USER %s@%s ACCOUNT {'UNLOCK' if allowed else 'LOCK'}", (database, LOOPBACK)
        )
        if allowed:
            return
        cursor.execute("KILL CONNECTION USER %s@%s", (database, LOOPBACK))

        def connected() -> int:
            cursor.execute(
                "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = %s", (database,)
            )
            return int(cursor.fetchone()[0])

        wait_for(
            f"The end of the connections to {database}",
            lambda: not connected(),
            AWAY_SECONDS,
            lambda: f"{connected()} are there",
        )
