"""The databases and the broker of the client's tests: real ones, with the schema as it is shipped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import empty, named_rows

TOPIC, GROUP = "orders", "billing"
VISIBILITY = timedelta(seconds=1)
DELIVERY_LIMIT = 3
BUSINESS = "CREATE TABLE business_order (order_id text PRIMARY KEY)"
_KEY = "consumer_group = %s AND topic = %s AND message_id = %s"
EFFECT = "CREATE TABLE effect (topic text, message_id text, consumer_group text, fence bigint)"  # duplicates show


class Database:
    """One database under test: its address, and what is in it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def connect(self, **options: Any) -> Any:
        return psycopg2.connect(self.dsn, connect_timeout=10, **options)

    def run(self, statement: str, values: Any = None) -> list[dict[str, Any]]:
        """One committed statement."""
        return named_rows(self.dsn, statement, values)

    def one(self, statement: str, values: Any = None) -> dict[str, Any]:
        (row,) = self.run(statement, values)
        return row

    def log_of(self, group: str, topic: str, message_id: str) -> list[dict[str, Any]]:
        return self.run(f"SELECT * FROM consumer_log WHERE {_KEY}", (group, topic, message_id))

    def end_lease(self, group: str, topic: str, message_id: str, ago: float) -> None:
        self.run(
            "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - %s * interval '1 second'"
            f" WHERE {_KEY} AND state = 'CONSUMING'",
            (ago, group, topic, message_id),
        )

    def reclaim(self, group: str, topic: str, message_id: str) -> None:
        self.run(
            f"UPDATE consumer_log SET state = 'EXPIRED' WHERE {_KEY} AND state = 'CONSUMING'",
            (group, topic, message_id),
        )


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        for name, statements in {
            "producer": (whole("producer"), BUSINESS),
            "consumer": (whole("consumer"), EFFECT),
        }.items():
            server.create_database(name)
            for statement in statements:
                Database(server.admin_dsn(name)).run(statement)
        yield server


@pytest.fixture
def producer(postgres: Postgres) -> Database:
    database = Database(postgres.admin_dsn("producer"))
    empty(database.dsn)
    return database


@pytest.fixture
def consumer(postgres: Postgres) -> Database:
    database = Database(postgres.admin_dsn("consumer"))
    empty(database.dsn)
    return database


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def broker(valkey: Valkey) -> Iterator[RedisStreams]:
    redis.Redis.from_url(valkey.url()).flushall()
    with open_broker(valkey.url()) as streams:
        streams.create_topic(TOPIC, 2)
        streams.create_group(GROUP, TOPIC, "start")
        yield streams


def open_broker(url: str) -> RedisStreams:
    return RedisStreams(url, delivery_limit=DELIVERY_LIMIT, visibility=VISIBILITY)


def stored(broker: RedisStreams) -> list[str]:
    """Every message id in the topic, by a group of its own that starts at the beginning."""
    broker.create_group("reader", TOPIC, "start")
    subscription = broker.subscribe("reader", [TOPIC], "reader")
    found: list[str] = []
    while batch := subscription.fetch(1000, timedelta(0)):
        found += [received.message.message_id for received in batch]
        subscription.acknowledge(batch)
    return sorted(found)


CHILD = Path(__file__).parents[1] / "chaos" / "client_killed_child.py"
