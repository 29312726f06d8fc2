"""A whole small system for the tests of cases and of the command line: five databases and a broker, all real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.evidence.judge_by_key import Judge, Judged
from backstop.schema.migrate import migrate
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import empty, rows
from system import SENDS

PROJECT = Path(__file__).resolve().parents[2]
ROLES = {
    "control": "control",
    "producer_a": "producer",
    "producer_b": "producer",
    "consumer_billing": "consumer",
    "consumer_shipping": "consumer",
}
SHARDS = {"shop_a": "producer_a", "shop_b": "producer_b"}
GROUPS = {"billing": "consumer_billing", "shipping": "consumer_shipping"}


def written_settings() -> dict[str, Any]:
    """The embedded settings, with `refunds` only observed and `payments` taken by a group without duplicates."""
    content: dict[str, Any] = yaml.safe_load((PROJECT / "backstop.yaml").read_text())
    content["policy"].update(SENDS)
    content["topics"]["refunds"]["mode"] = "observe"
    content["groups"]["audit"] = {
        "store": "billing_db",
        "duplicates": "no",
        "progress": "acknowledged",
    }
    content["topics"]["payments"]["groups"] = ["audit"]
    return content


@dataclass
class World:
    """One system; `settings` and `connections` are what every part of Backstop is given."""

    postgres: Postgres
    settings: Settings
    connections: Connections
    conn: Any
    config: Path

    def run(self, database: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """One committed statement in one of the five databases, by its owner."""
        return rows(self.postgres.admin_dsn(database), statement, values)

    def stub(
        self,
        message_id: str,
        *,
        topic: str = "orders",
        shard: str = "shop_a",
        sends: int = 0,
        refused: int = 0,
        status: str = "pending",
        age: str = "5 minutes",
        under_way: bool = False,
    ) -> None:
        """A stub whose sends are long over: the first `refused` were refused, the others unknown."""
        self.run(
            SHARDS[shard],
            """
            INSERT INTO message_stub (topic, message_id, content, status, send_count, refusals, next_check_at, created_at,
                first_seen_at, attempted_at, attempt_token, attempt_deadline)
            VALUES (%(topic)s, %(id)s, 'content', %(status)s, %(sends)s, %(refused)s, now() - interval '1 minute',
                now() - %(age)s::interval, now() - %(age)s::interval,
                CASE WHEN %(sends)s > 0 THEN now() - interval '1 minute' END,
                CASE WHEN %(under_way)s THEN gen_random_uuid() END,
                CASE WHEN %(sends)s > 0 THEN now() + CASE WHEN %(under_way)s THEN interval '1 hour' ELSE interval '-50 s' END END)
            """,
            {
                "topic": topic,
                "id": message_id,
                "status": status,
                "sends": sends,
                "refused": refused,
                "age": age,
                "under_way": under_way,
            },
        )
        self.run(
            SHARDS[shard],
            """
            INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)
            SELECT %(topic)s, %(id)s, n, 'test', now() - interval '1 minute',
                CASE WHEN n <= %(refused)s THEN 'refused' ELSE 'unknown' END
            FROM generate_series(1, %(ended)s) AS n
            """,
            {"topic": topic, "id": message_id, "refused": refused, "ended": sends - int(under_way)},
        )

    def log(
        self,
        message_id: str,
        group: str,
        *,
        topic: str = "orders",
        state: str = "CONSUMED",
        moved: str = "0 s",
    ) -> None:
        """A group's log row; CONSUMING holds a lease for an hour unless it moved long ago."""
        database = GROUPS.get(group, "consumer_billing")
        self.run(
            database,
            """
            INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, lease_expires_at, updated_at,
                owner_token)
            VALUES (%(group)s, %(topic)s, %(id)s, %(state)s, CASE WHEN %(state)s = 'CONSUMED' THEN now() END,
                CASE WHEN %(state)s = 'CONSUMING' AND %(moved)s::interval < interval '10 s' THEN now() + interval '1 hour'
                    ELSE now() - %(moved)s::interval + interval '10 s' END,
                now() - %(moved)s::interval, gen_random_uuid())
            """,
            {"group": group, "topic": topic, "id": message_id, "state": state, "moved": moved},
        )

    def stub_now(self, message_id: str, *, shard: str = "shop_a") -> dict[str, Any]:
        """What the producer's database says of a message now."""
        rows = self.run(
            SHARDS[shard],
            "SELECT to_jsonb(s) - 'content' FROM message_stub s WHERE message_id = %s",
            (message_id,),
        )
        return dict(rows[0][0])

    def judge(self, message_id: str, topic: str = "orders") -> dict[str, Judged]:
        """Each group's verdict on a message at this moment."""
        from backstop.model.records import Key

        with Judge(self.settings, self.connections, self.conn) as judge:
            return {
                judged.consumer_group: judged for judged in judge.judge([Key(topic, message_id)])
            }

    def control(self, query: str, values: Any = None) -> list[tuple[Any, ...]]:
        """Rows of the control database."""
        return self.run("control", query, values)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey")) as valkey,
    ):
        for database, role in ROLES.items():
            postgres.create_database(database)
            migrate(postgres.admin_dsn(database), role)
        yield postgres, valkey


@pytest.fixture
def world(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[World]:
    """An empty system: every table and the broker are emptied before each test."""
    postgres, valkey = servers
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}", postgres.admin_dsn(database)
        )
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_BROKER", valkey.url())
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_LEASES", valkey.url(1))
    monkeypatch.delenv("BACKSTOP_SECRETS_FILE", raising=False)
    config = tmp_path / "backstop.yaml"
    config.write_text(json.dumps(written_settings()))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(config))
    settings, connections = from_mapping(written_settings()), Connections()
    redis.Redis.from_url(valkey.url()).flushall()
    with open_broker(settings, connections, "embedded") as broker:
        for topic in settings.topics:
            broker.create_topic(topic, 2)
            for group in settings.groups_of(topic):
                broker.create_group(group, topic, "start")
    conn = connect(settings, connections)
    made = World(postgres, settings, connections, conn, config)
    for database in ROLES:
        empty(postgres.admin_dsn(database))
    yield made
    conn.close()
