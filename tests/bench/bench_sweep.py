"""sweep.*: taking back expired leases, from Redis with the database asked and from the database; and finding none of many."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg2
import redis
import yaml

from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import RedisKeys
from backstop.schema.revisions import whole
from backstop.sweep.open_stores import OpenStores
from backstop.sweep.parts import part_of, parts_of
from backstop.sweep.redis_bucket import count_expired
from backstop.sweep.sweep_part import sweep_part
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import Row, median

GROUP, TOPIC = "billing", "orders"
STORED, EXPIRED, IN_DATABASE = 1_000_000, 100_000, 200_000
FULL_STORED, FULL_EXPIRED, FULL_DATABASE = 10_000_000, 1_000_000, 1_000_000
RUNS = 3
PROCESSES = 2
LOAD = 5_000


def bench(full: bool) -> list[Row]:
    """Two processes with two tasks each, as Spark's are on two cores; Spark's own start is not part of it (airflow.* has it)."""
    stored, expired, in_database = (
        (FULL_STORED, FULL_EXPIRED, FULL_DATABASE) if full else (STORED, EXPIRED, IN_DATABASE)
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres(Path(folder) / "pg") as postgres,
        Valkey(Path(folder) / "vk", durable=False) as valkey,
    ):
        postgres.create_database("consumer")
        dsn = postgres.admin_dsn("consumer")
        _run(dsn, whole("consumer"))
        urls = {"leases": valkey.url(), "store": dsn}
        settings = _settings()
        client = redis.Redis.from_url(valkey.url())
        _store_done(client, stored)
        idle = [_idle(client, valkey) for _ in range(RUNS)]
        from_redis = []
        for _ in range(RUNS):
            _log(dsn, expired, "EXPIRED", "now() - interval '1 s'")
            _store_expired(client, expired)
            from_redis.append(_sweep(settings, urls, "front", expired))
        from_database = []
        for _ in range(RUNS):
            _log(dsn, in_database, "CONSUMING", "now() - interval '1 s'")
            from_database.append(_sweep(settings, urls, "database", in_database))
        client.close()
    redis_rate, database_rate, idle_ms = (
        expired / median(from_redis),
        in_database / median(from_database),
        median(idle),
    )
    return [
        Row(
            "sweep.redis",
            round(redis_rate),
            "leases/s",
            ">= 80,000",
            redis_rate >= 80_000,
            rows=expired,
            runs=from_redis,
            note=f"{expired:,} expired of {stored + expired:,} stored, each asked of the database; 2 processes",
        ),
        Row(
            "sweep.database",
            round(database_rate),
            "leases/s",
            ">= 40,000",
            database_rate >= 40_000,
            rows=in_database,
            runs=from_database,
            note="one database is one part: one process and one connection",
        ),
        Row(
            "sweep.idle",
            idle_ms,
            "ms of Redis' time",
            "< 50",
            idle_ms < 50,
            rows=stored,
            runs=idle,
            note=f"{stored:,} stored, none expired: what a count costs the server",
        ),
    ]


def _settings() -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    written: dict[str, Any] = yaml.safe_load((root / "backstop.yaml").read_text(encoding="utf-8"))
    written["consumers"] = {"billing_db": {"connection": "store"}}
    written["groups"] = {
        GROUP: {"store": "billing_db", "duplicates": "guard", "leases": {"redis": "leases"}}
    }
    for topic in written["topics"].values():
        topic["groups"] = [GROUP]
    from_mapping(copy.deepcopy(written))
    return written


def _sweep(written: Mapping[str, Any], urls: Mapping[str, str], kind: str, expected: int) -> float:
    settings = from_mapping(copy.deepcopy(dict(written)))
    texts = [part.as_text() for part in parts_of(settings) if part.kind == kind]
    tasks = min(len(texts), 2 * PROCESSES)
    from multiprocessing import get_context

    with get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(_warm, range(PROCESSES))
        begun = time.perf_counter()
        dealt = [(written, urls, texts[number::tasks]) for number in range(tasks)]
        done = pool.starmap(_task, dealt, chunksize=1)
        took = time.perf_counter() - begun
    assert sum(done) == expected, done
    return took


def _warm(number: int) -> int:
    return number


def _task(written: Mapping[str, Any], urls: Mapping[str, str], texts: Sequence[str]) -> int:
    settings: Settings = from_mapping(copy.deepcopy(dict(written)))
    taken_back = 0
    with OpenStores(settings, Connections(resolver=dict(urls).get)) as stores:
        for text in texts:
            part = part_of(text)
            tally = sweep_part(stores, part, None, "", limit=10_000_000, dry_run=False)
            assert not tally.missed, tally.missed
            taken_back += tally.counts.get("reclaim", 0)
    return taken_back


def _idle(client: Any, valkey: Valkey) -> float:
    exchange = RedisExchange(valkey.url())
    count_expired(exchange, GROUP, 1000)  # the script is loaded
    client.config_resetstat()
    assert count_expired(exchange, GROUP, 1000) == (0, 0)
    exchange.close()
    stats = client.info("commandstats")
    return round(
        sum(one["usec"] for name, one in stats.items() if name in ("cmdstat_evalsha",)) / 1000, 3
    )


def _names(count: int, prefix: str) -> Iterator[list[tuple[str, int, bytes]]]:
    """(id, bucket, key) of messages, LOAD at a time."""
    keys = RedisKeys(GROUP)
    for at in range(0, count, LOAD):
        ids = [
            f"{prefix}-{number:010d}-0123456789abcdef012"
            for number in range(at, min(at + LOAD, count))
        ]
        yield [(one, *keys.bucket_and_key(TOPIC, one)) for one in ids]


def _store_done(client: Any, count: int) -> None:
    client.config_set(
        "maxmemory", 0
    )  # ten million records are more than the laboratory's servers may hold
    client.flushall()
    record = b"D%013d%016d0001%b|1|0123456789abcdef|host" % (int(time.time() * 1000), 1, b"f" * 32)
    for batch in _names(count, "done"):
        _packed(client, [(b"SET", key, record, b"PX", b"86400000") for _, _, key in batch])


def _store_expired(client: Any, count: int) -> None:
    ended = int(time.time() * 1000) - 1000
    record = b"C%013d%016d0001%b|1|0123456789abcdef|host" % (ended, 1, b"e" * 32)
    keys = RedisKeys(GROUP)
    for batch in _names(count, "stuck"):
        _packed(client, [(b"SET", key, record, b"PX", b"86400000") for _, _, key in batch])
        _packed(
            client, [(b"ZADD", keys.expiry[bucket], b"%d" % ended, key) for _, bucket, key in batch]
        )


def _packed(client: Any, commands: Sequence[tuple[bytes, ...]]) -> None:
    connection = client.connection_pool.get_connection()
    connection.send_packed_command(
        [
            b"".join(
                b"*%d\r\n" % len(words)
                + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
                for words in commands
            )
        ]
    )
    for _ in commands:
        connection.read_response()
    client.connection_pool.release(connection)


def _log(dsn: str, count: int, state: str, ends: str) -> None:
    _run(dsn, "TRUNCATE consumer_log")
    _run(
        dsn,
        f"""INSERT INTO consumer_log (consumer_group, topic, message_id, state, owner_token, lease_expires_at, owner_host)
        SELECT '{GROUP}', '{TOPIC}', 'stuck-' || lpad(n::text, 10, '0') || '-0123456789abcdef012', '{state}',
            gen_random_uuid(), {ends}, 'host' FROM generate_series(0, {count} - 1) n""",
    )
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE consumer_log")
        cursor.execute("CHECKPOINT")
    connection.close()


def _run(dsn: str, statement: str) -> None:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


BENCHMARKS = {("sweep.redis", "sweep.database", "sweep.idle"): bench}
