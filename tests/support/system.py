"""One whole small system for a test: two shards, two groups, a control database, a broker, and settings over them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import psycopg2
from psycopg2.extras import Json

from backstop.brokers.redis_streams import RedisStreams
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.records import Key, Message, Outcome
from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import empty, execute, rows

ROLES = {
    "control": "control",
    "shop_a": "producer",
    "shop_b": "producer",
    "billing_db": "consumer",
    "shipping_db": "consumer",
}
SENDS = {
    "attempt_timeout": "30s",
    "claim_timeout": "60s",
    "backoff_base": "31s",
    "backoff_cap": "40s",
}
"""Of a policy in seconds. Nothing waits for these: a worker that stood still for a while still has time for what it claimed."""
POLICY: dict[str, Any] = {
    **SENDS,
    "max_clock_skew": "0.5s",
    "max_send_duration": "1s",
    "longest_transaction": "1s",
    "first_check": "2s",
    "lease": "4s",
    "sweep_interval": "2s",
    "retry_after": "1s",
    "consume_timeout": "4s",
    "redelivery_horizon": "15s",
    "reconcile_interval": "10s",
    "recheck": "1s",
    "progress_history": "5m",
    "unknown_horizon": "2m",
    "backlog_horizon": "10m",
    "overdue_horizon": "20m",
    "person_time": "10m",
    "max_sends": 4,
    "max_refusals": 3,
    "backoff_factor": 1.5,
    "queue_delay_cap": "10s",
    "rate_limit": 2000,
    "blast_share": 0.2,
    "blast_floor": 25,
    "blast_window": "5m",
    "replay_horizon": "45m",
    "longest_delay": "0s",
    "broker_retention": "1h",
    "log_retention": "1d",
    "stub_retention": "1d",
}


def build_template(postgres: Postgres, more: Mapping[str, str] | None = None) -> None:
    """Databases `template_<name>` with the shipped schema, which every test's databases are copied from.

    `more`: SQL that is run after it, by kind of database.
    """
    for name in ("control", "shop_a", "billing_db"):
        postgres.create_database(f"template_{name}")
        with (
            closing(psycopg2.connect(postgres.admin_dsn(f"template_{name}"))) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(whole(ROLES[name]) + (more or {}).get(ROLES[name], ""))
            cursor.execute(FILLED)
            assert cursor.fetchall() == [], "rows of the schema's own would be lost between tests"
            connection.commit()
        keep_shape(postgres, f"template_{name}", ROLES[name])


def keep_shape(postgres: Postgres, database: str, kind: str) -> None:
    """Databases of this kind are given to later tests while all but their rows is as in this one."""
    with (
        closing(psycopg2.connect(postgres.admin_dsn(database))) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(SHAPE)
        SHAPES.setdefault(postgres, {})[kind] = cursor.fetchall()


SHAPES: WeakKeyDictionary[Postgres, dict[str, Any]] = WeakKeyDictionary()
"""By server and kind of database (control, producer, consumer): its SHAPE before any test."""
FILLED = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND pg_relation_size(c.oid) > 0
"""
SHAPE = """
SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
    SELECT format('%s %s %s %s %s %s', n.nspname, c.relname, c.relkind, c.relacl, c.relrowsecurity, c.reloptions) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT format('%s %s %s %s %s %s', attrelid::regclass, attname, atttypid::regtype, attnotnull, attisdropped, attacl)
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE attnum > 0 AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
    UNION ALL SELECT format('%s %s', tgrelid::regclass, tgname) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT format('%s %s %s', oid::regprocedure, proacl, md5(prosrc)) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT format('%s', setconfig) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
        WHERE d.datname = current_database()
    UNION ALL SELECT format('%s %s', datallowconn, datconnlimit) FROM pg_database WHERE datname = current_database()
) AS shape (line)
"""
"""Everything of a database but its rows."""


@dataclass
class System:
    """Addresses of everything, and the few hands a test needs: write rows, send, consume, read."""

    urls: dict[str, str]
    settings: Settings
    connections: Connections
    broker: RedisStreams

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        """One committed statement."""
        return rows(self.urls[database], query, values)

    def control(self) -> Any:
        return psycopg2.connect(self.urls["control"], options="-c timezone=UTC")

    def stub(
        self, message_id: str, topic: str = "orders", shard: str = "shop_a", **columns: Any
    ) -> Key:
        """A stub created long enough ago to be judged, sent once and acknowledged unless `columns` say otherwise."""
        age = columns.pop("age", timedelta(minutes=1))
        given: dict[str, Any] = {
            "topic": topic,
            "message_id": message_id,
            "content": b"{}",
            "headers": Json({}),
            "send_count": 1,
            **columns,
        }
        times = {
            "created_at": "now() - %s",
            "next_check_at": "now() - %s / 2",
            "first_seen_at": "now() - %s / 2",
            "attempted_at": "now() - %s",
            "attempt_deadline": "now() - %s / 2",
        }
        if given["send_count"] == 0:
            del times["attempted_at"], times["attempt_deadline"]
        times = {name: text for name, text in times.items() if name not in given}
        names = [*given, *times]
        marks = ["%s"] * len(given) + list(times.values())
        self.rows(
            shard,
            f"INSERT INTO message_stub ({', '.join(names)}) VALUES ({', '.join(marks)})",
            *given.values(),
            *[age] * len(times),
        )
        return Key(topic, message_id)

    def sent(
        self, message_id: str, topic: str = "orders", shard: str = "shop_a", **columns: Any
    ) -> Key:
        """A stub whose message really is in the broker, its position recorded."""
        (receipt,) = self.broker.publish([Message(topic, message_id, b"{}")])
        assert receipt.outcome is Outcome.SENT and receipt.position is not None
        at = receipt.position
        key = self.stub(
            message_id,
            topic,
            shard,
            broker="embedded",
            queue_id=at.queue_id,
            queue_offset=at.offset,
            queue_epoch=at.epoch,
            **columns,
        )
        self.rows(
            shard,
            "UPDATE message_stub SET sent_at = attempted_at WHERE topic = %s AND message_id = %s",
            *key,
        )
        self.rows(
            shard,
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome, queue_id,"
            " queue_offset, queue_epoch) VALUES (%s, %s, 1, 'producer', now(), 'sent', %s, %s, %s)",
            *key,
            at.queue_id,
            at.offset,
            at.epoch,
        )
        return key

    def log(
        self, key: Key, group: str = "billing", state: str = "CONSUMED", **columns: Any
    ) -> None:
        """A log row, as a consumer of the group would have left it a minute ago."""
        given = {
            "consumer_group": group,
            "topic": key.topic,
            "message_id": key.message_id,
            "state": state,
            **columns,
        }
        times = {
            "first_received_at": "now() - interval '1 minute'",
            "updated_at": "now() - interval '1 minute'",
        }
        if state == "CONSUMED":
            times["consumed_at"] = "now() - interval '1 minute'"
        times = {name: text for name, text in times.items() if name not in given}
        self.rows(
            f"{group}_db",
            f"INSERT INTO consumer_log ({', '.join([*given, *times])})"
            f" VALUES ({', '.join(['%s'] * len(given) + list(times.values()))})",
            *given.values(),
        )

    def pass_over(self, group: str, topic: str = "orders") -> None:
        """The group receives everything there is and acknowledges it without writing a log."""
        subscription = self.broker.subscribe(group, [topic], f"worker-{uuid.uuid4()}")
        while received := subscription.fetch(500, timedelta(milliseconds=20)):
            subscription.acknowledge(received)
        subscription.close()

    def consume(self, group: str, topic: str = "orders") -> list[Message]:
        """The group receives, logs as done and acknowledges everything there is."""
        subscription = self.broker.subscribe(group, [topic], f"worker-{uuid.uuid4()}")
        messages: list[Message] = []
        while received := subscription.fetch(500, timedelta(milliseconds=20)):
            for one in received:
                self.log(one.message.key, group)
                messages.append(one.message)
            subscription.acknowledge(received)
        subscription.close()
        return messages


@contextmanager
def system(postgres: Postgres, valkey: Valkey, **changes: Any) -> Iterator[System]:
    """A system without rows; `changes` replace or add top-level parts of its settings."""
    with (
        fresh_databases(postgres) as urls,
        _system({"broker": valkey.url(), **urls}, changes) as made,
    ):
        yield made


@contextmanager
def _system(urls: dict[str, str], changes: Any) -> Iterator[System]:
    broker = RedisStreams(urls["broker"])
    settings = Settings.model_validate(settings_dict(**changes))
    import redis

    redis.Redis.from_url(urls["broker"]).flushall()
    for topic, topic_settings in settings.topics.items():
        broker.create_topic(topic, 2)
        for group in topic_settings.groups:
            broker.create_group(group, topic, at="start")
    try:
        yield System(urls, settings, Connections(resolver=urls.get), broker)
    finally:
        broker.close()


IDLE: WeakKeyDictionary[Postgres, list[dict[str, str]]] = WeakKeyDictionary()
"""By server: databases that earlier tests left as they were made, by role."""


@contextmanager
def fresh_databases(postgres: Postgres, roles: Collection[str] = ROLES) -> Iterator[dict[str, str]]:
    """A database without rows for each of these roles: role -> address. To make them and drop them takes seconds, to empty them a
    tenth of one."""
    idle = IDLE.setdefault(postgres, [])
    found = next((made for made in idle if set(made) == set(roles)), None)
    if found is None:
        found = make_databases(postgres, roles)
    else:
        idle.remove(found)
    try:
        yield {role: postgres.admin_dsn(name) for role, name in found.items()}
    finally:
        if all(is_empty_again(postgres, name, ROLES[role]) for role, name in found.items()):
            idle.append(found)
        else:
            drop(postgres, found)


def make_databases(postgres: Postgres, roles: Collection[str] = ROLES) -> dict[str, str]:
    """A new database for each role: role -> name."""
    name, template = (
        uuid.uuid4().hex[:10],
        {"control": "control", "producer": "shop_a", "consumer": "billing_db"},
    )
    made = {role: f"t{name}_{role}" for role in roles}
    with closing(psycopg2.connect(postgres.admin_dsn())) as admin, admin.cursor() as cursor:
        admin.autocommit = True
        for role, database in made.items():
            cursor.execute(f"CREATE DATABASE {database} TEMPLATE template_{template[ROLES[role]]}")
    return made


def drop(postgres: Postgres, databases: Mapping[str, str]) -> None:
    with closing(psycopg2.connect(postgres.admin_dsn())) as admin, admin.cursor() as cursor:
        admin.autocommit = True
        for name in databases.values():
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def is_empty_again(postgres: Postgres, database: str, kind: str) -> bool:
    """Empty every table that somebody wrote to; False where the test left anything but rows, or the server is away.

    A test that changed a table, a right, a setting or a row of the schema's own gets its databases dropped.
    """
    url = postgres.admin_dsn(database)
    try:
        execute(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        if rows(url, SHAPE) != SHAPES.get(postgres, {}).get(
            kind
        ):  # other templates than ours are not known
            return False
        empty(url)
    except psycopg2.Error:
        return False
    return True


def settings_dict(**changes: Any) -> dict[str, Any]:
    """What backstop.yaml would say of this system."""
    topics: Mapping[str, Any] = {
        topic: {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "repair"}
        for topic in ("orders", "payments")
    }
    policy = {**POLICY, **changes.pop("policy", {})}
    return {
        "control": "control",
        "brokers": {
            "embedded": {
                "kind": "redis_streams",
                "connection": "broker",
                "options": {"visibility": 2, "delivery_limit": 5},
            }
        },
        "producers": {"shop_a": {"connection": "shop_a"}, "shop_b": {"connection": "shop_b"}},
        "people": {"second_person": []},
        "consumers": {
            "billing_db": {"connection": "billing_db"},
            "shipping_db": {"connection": "shipping_db"},
        },
        "groups": {
            "billing": {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"},
            "shipping": {"store": "shipping_db", "duplicates": "guard", "progress": "acknowledged"},
        },
        "topics": topics,
        "policy": policy,
        **changes,
    }
