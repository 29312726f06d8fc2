"""guard.*: what a lease costs, in Redis and in the database, beside hand-packed commands and the libraries people use."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import redis

from backstop.leases import guard
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard
from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import Row, alternating, median

PAIRS, BATCH, SINGLE = 100_000, 500, 5_000
DATABASE_PAIRS, DATABASE_SINGLE, HISTORY = 20_000, 1_000, 200_000
HASH = b"12345678"


def bench_redis(full: bool) -> list[Row]:
    """begin + complete in batches of 500 on one connection, beside SET NX PX + SET packed by hand; and one at a time, beside
    redis-py's own Lock, which holds and releases and remembers nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Valkey(Path(folder) / "vk", durable=False) as valkey,
    ):
        client = redis.Redis.from_url(valkey.url(), protocol=2)
        alone = RedisGuard(RedisExchange(valkey.url()), "billing", consumed_for=timedelta(days=18))
        spent: list[float] = []
        ours, raw = alternating(
            lambda: _fresh(client, lambda: _guard_batches(alone), spent),
            lambda: _fresh(client, lambda: _raw_batches(client)),
        )
        single, lock = alternating(
            lambda: _fresh(client, lambda: _guard_single(alone)),
            lambda: _fresh(client, lambda: _lock_single(client)),
        )
        alone.close()
        client.close()
    rate, ratio = PAIRS / median(ours), median(ours) / median(raw)
    server = median(spent) / PAIRS * 1e6
    note = f"batches of {BATCH}, one connection; {PAIRS / median(raw):,.0f}/s packed by hand; server {server:.1f} us a pair"
    return [
        Row(
            "guard.redis",
            round(rate),
            "pairs/s",
            ">= 80,000",
            rate >= 80_000,
            peer=round(PAIRS / median(raw)),
            rows=PAIRS,
            runs=ours,
            peer_runs=raw,
            note=note,
        ),
        Row(
            "guard.redis.ratio",
            round(ratio, 2),
            "x",
            "<= 1.6",
            ratio <= 1.6,
            peer=1.0,
            rows=PAIRS,
            note="the time of begin + complete over that of SET NX PX + SET packed by hand, in the same run",
        ),
        Row(
            "guard.redis.single",
            round(SINGLE / median(single)),
            "pairs/s",
            "-",
            None,
            peer=round(SINGLE / median(lock)),
            rows=SINGLE,
            runs=single,
            peer_runs=lock,
            note="2 round trips each; peer: redis-py's Lock, acquire + release",
        ),
    ]


def bench_database(full: bool) -> list[Row]:
    """begin + complete in the database, in batches of 500 and one at a time, beside the obvious dedup table: INSERT ... ON
    CONFLICT DO NOTHING in the transaction, which holds nobody off and says nothing of a failure."""
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder) / "pg") as postgres:
        postgres.create_database("consumer")
        connection = psycopg2.connect(postgres.admin_dsn("consumer"))
        with connection, connection.cursor() as cursor:
            cursor.execute(
                whole("consumer")
                + "; CREATE TABLE dedup (message_id text PRIMARY KEY, at timestamptz DEFAULT now())"
            )
            cursor.execute(
                "INSERT INTO dedup SELECT gen_random_uuid()::text FROM generate_series(1, %s)",
                (HISTORY,),
            )
            cursor.execute(
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at) SELECT 'billing',"
                " 'orders', gen_random_uuid()::text, 'CONSUMED', now() FROM generate_series(1, %s)",
                (HISTORY,),
            )
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
        connection.autocommit = False
        rows = []
        for name, work, plain, number, target, trips in (
            (
                "guard.database",
                _database_batches,
                _dedup_batches,
                DATABASE_PAIRS,
                30_000,
                "4 round trips a batch of 500",
            ),
            (
                "guard.database.single",
                _database_single,
                _dedup_single,
                DATABASE_SINGLE,
                None,
                "4 round trips a pair",
            ),
        ):
            ours, theirs = alternating(
                lambda work=work: work(connection), lambda plain=plain: plain(connection)
            )
            rows.append(
                Row(
                    name,
                    round(number / median(ours)),
                    "pairs/s",
                    "-" if target is None else f">= {target:,}",
                    None if target is None else number / median(ours) >= target,
                    peer=round(number / median(theirs)),
                    rows=number,
                    runs=ours,
                    peer_runs=theirs,
                    note=f"{trips} (begin, commit, complete, commit); peer: INSERT ON CONFLICT into a dedup table, 2",
                )
            )
        connection.close()
    return rows


def _fresh(client: Any, work: Callable[[], float], spent: list[float] | None = None) -> float:
    client.flushall()
    client.config_resetstat()
    took = work()
    if spent is not None:
        stats = client.info("commandstats")
        spent.append(stats.get("cmdstat_evalsha", {}).get("usec", 0) / 1e6)
    return took


def _arrivals(count: int) -> list[Arrival]:
    return [Arrival("orders", str(uuid4()), HASH) for _ in range(count)]


def _guard_batches(alone: RedisGuard) -> float:
    arrivals = _arrivals(PAIRS)
    begun = time.perf_counter()
    for at in range(0, PAIRS, BATCH):
        leases = alone.begin_many(arrivals[at : at + BATCH])
        assert (
            len(alone.complete_many([lease for lease in leases if isinstance(lease, Acquired)]))
            == BATCH
        )
    return time.perf_counter() - begun


def _raw_batches(client: Any) -> float:
    names = [f"dedup:orders:{uuid4()}".encode() for _ in range(PAIRS)]
    connection = client.connection_pool.get_connection()
    begun = time.perf_counter()
    for at in range(0, PAIRS, BATCH):
        token, batch = uuid4().hex.encode(), names[at : at + BATCH]
        hold = (
            b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$32\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n"
        )
        connection.send_packed_command(
            [b"".join([hold % (len(name), name, token) for name in batch])]
        )
        assert all(connection.read_response() for _ in batch)
        done = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$4\r\ndone\r\n$2\r\nPX\r\n$8\r\n86400000\r\n"
        connection.send_packed_command([b"".join([done % (len(name), name) for name in batch])])
        assert all(connection.read_response() for _ in batch)
    took = time.perf_counter() - begun
    client.connection_pool.release(connection)
    return took


def _guard_single(alone: RedisGuard) -> float:
    arrivals = _arrivals(SINGLE)
    begun = time.perf_counter()
    for arrival in arrivals:
        lease = alone.begin(arrival)
        assert isinstance(lease, Acquired)
        alone.complete(lease)
    return time.perf_counter() - begun


def _lock_single(client: Any) -> float:
    names = [f"lock:{uuid4()}" for _ in range(SINGLE)]
    begun = time.perf_counter()
    for name in names:
        lock = client.lock(name, timeout=60)
        assert lock.acquire(blocking=False)
        lock.release()
    return time.perf_counter() - begun


def _database_batches(connection: Any) -> float:
    arrivals = _arrivals(DATABASE_PAIRS)
    begun = time.perf_counter()
    for at in range(0, DATABASE_PAIRS, BATCH):
        leases = guard.begin_many(connection, "billing", arrivals[at : at + BATCH])
        connection.commit()
        held = [lease for lease in leases if isinstance(lease, Acquired)]
        assert len(guard.complete_many(connection, "billing", held)) == BATCH
        connection.commit()
    return time.perf_counter() - begun


def _database_single(connection: Any) -> float:
    arrivals = _arrivals(DATABASE_SINGLE)
    begun = time.perf_counter()
    for arrival in arrivals:
        (lease,) = guard.begin_many(connection, "billing", [arrival])
        connection.commit()
        assert isinstance(lease, Acquired)
        guard.complete(connection, lease)
        connection.commit()
    return time.perf_counter() - begun


def _dedup_batches(connection: Any) -> float:
    names = [str(uuid4()) for _ in range(DATABASE_PAIRS)]
    begun = time.perf_counter()
    with connection.cursor() as cursor:
        for at in range(0, DATABASE_PAIRS, BATCH):
            cursor.execute(
                "INSERT INTO dedup SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
                (names[at : at + BATCH],),
            )
            connection.commit()
    return time.perf_counter() - begun


def _dedup_single(connection: Any) -> float:
    names = [str(uuid4()) for _ in range(DATABASE_SINGLE)]
    begun = time.perf_counter()
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute("INSERT INTO dedup VALUES (%s) ON CONFLICT DO NOTHING", (name,))
            connection.commit()
    return time.perf_counter() - begun


BENCHMARKS = {
    ("guard.redis", "guard.redis.ratio", "guard.redis.single"): bench_redis,
    ("guard.database", "guard.database.single"): bench_database,
}
