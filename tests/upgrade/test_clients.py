"""The client of the version before against today's schema, and today's client against the schema before: both keep working.

Services are not upgraded in one instant. `client_0.1.0.zip` is the client as it was released (keep_version.sh makes it).
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.schema.migrate import migrate
from backstop.schema.revisions import revisions
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

HERE = Path(__file__).resolve().parent
CLIENTS = {"0.1.0": str(HERE / "client_0.1.0.zip"), "today": str(HERE.parents[1] / "include")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    folder = tmp_path_factory.mktemp("clients")
    with (
        Postgres(folder / "pg") as postgres,
        Valkey(folder / "valkey", appendfsync="everysec") as valkey,
    ):
        with RedisStreams(valkey.url()) as broker:
            broker.create_topic("orders", 2)
            broker.create_group("billing", "orders", "start")
        yield postgres, valkey


def talk(version: str, *arguments: str) -> list[str]:
    """What a process with this version of the client printed."""
    environment = {**os.environ, "PYTHONPATH": CLIENTS[version]}
    done = subprocess.run(
        [sys.executable, str(HERE / "talk.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def database(servers: tuple[Postgres, Valkey], role: str, schema: str) -> str:
    """A database of this role: as 0.1.0 made it, or as today's migrations leave it."""
    postgres, _ = servers
    name = f"{role}_{schema.replace('.', '_')}"
    connection = psycopg2.connect(postgres.admin_dsn())
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    connection.close()
    postgres.create_database(name)
    url = postgres.admin_dsn(name)
    if schema == "today":
        migrate(url, role)
    else:
        connection = psycopg2.connect(url)
        with connection, connection.cursor() as cursor:
            cursor.execute(revisions(role)["0001"])
        connection.close()
    return url


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())
    finally:
        connection.close()


@pytest.mark.parametrize("schema", ["0.1.0", "today"])
@pytest.mark.parametrize("producer", list(CLIENTS))
@pytest.mark.parametrize("consumer", list(CLIENTS))
def test_every_mixture_of_versions_sends_logs_and_consumes_once(
    servers: tuple[Postgres, Valkey], producer: str, consumer: str, schema: str
) -> None:
    stubs, logs = (database(servers, role, schema) for role in ("producer", "consumer"))
    broker = servers[1].url()
    ids = [f"{producer} to {consumer} over {schema} {n}" for n in range(3)]
    assert talk(producer, "producer", stubs, broker, *ids) == [f"{one} sent" for one in ids]
    assert sorted(talk(consumer, "consumer", logs, broker)) == sorted(
        f"{one} consumed" for one in ids
    )
    assert talk(consumer, "consumer", logs, broker) == []
    assert (
        rows(
            stubs,
            "SELECT status, send_count, queue_offset IS NOT NULL, attempt_token FROM message_stub",
        )
        == [("pending", 1, True, None)] * 3
    )
    assert rows(stubs, "SELECT outcome, count(*) FROM send_attempt GROUP BY 1") == [("sent", 3)]
    assert rows(logs, "SELECT state, count(*) FROM consumer_log GROUP BY 1") == [("CONSUMED", 3)]


def test_the_kept_client_is_the_one_before_and_not_todays() -> None:
    with zipfile.ZipFile(CLIENTS["0.1.0"]) as kept:
        assert b"max_send_seconds" not in kept.read("backstop/client/queries.sql")
