"""A whole small system for the resend tests: five real databases and a real broker, with helpers that look at
rows."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.evidence.sources import Sources
from backstop.model.records import SEND_HEADER, Counts
from backstop.requests.ask import Ask, ask, ramped_topics
from backstop.resend.claim import Worker
from backstop.resend.run_once import drain_requests, now, open_worker, prepare, run_once
from backstop.runs.run import Run, close_run, open_run
from backstop.runs.scope import name_of
from backstop.schema.migrate import migrate
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import empty, rows
from system import SENDS

ROOT = Path(__file__).parents[2]
ROLES = {
    "control": "control",
    "producer_a": "producer",
    "producer_b": "producer",
    "consumer_billing": "consumer",
    "consumer_shipping": "consumer",
}
TOPIC, OTHER = "orders", "payments"


class World:
    """One system; every test gets it empty."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls = dict(urls)
        self.keys = Keys()
        self.raw = redis.Redis.from_url(urls["backstop_broker"])
        self.written: dict[str, Any] = yaml.safe_load((ROOT / "backstop.yaml").read_text())
        self.written["policy"].update(SENDS)

    @property
    def connections(self) -> Connections:
        return Connections(resolver=self.urls.get)

    @property
    def settings(self) -> Settings:
        return from_mapping(self.written)

    def set(self, *path: str, to: Any) -> None:
        """Writes one value into backstop.yaml as this test has it."""
        place = self.written
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = to

    def sql(self, database: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """One committed statement."""
        return rows(self.urls[f"backstop_{database}"], statement, values)

    def stubs(
        self, ids: Sequence[str], shard: str = "a", topic: str = TOPIC, **columns: Any
    ) -> None:
        """Stubs of a minute ago that Backstop is to send: no copy, due, judged before."""
        row = {"send_count": 0, "refusals": 0, "status": "pending", "max_sends": None, **columns}
        self.sql(
            f"producer_{shard}",
            f"""INSERT INTO message_stub (topic, message_id, content, created_at, first_seen_at,
                    next_check_at,
                    {", ".join(row)})
                SELECT %s, i, convert_to('content of ' || i, 'UTF8'), now() - interval '1 minute',
                    now() - interval '1 minute', now() - interval '10 seconds', {", ".join(["%s"] * len(row))}
                FROM unnest(%s::text[]) AS i""",
            [topic, *row.values(), list(ids)],
        )

    def ask(
        self,
        ids: Sequence[str],
        shard: str = "a",
        topic: str = TOPIC,
        number: int = 1,
        groups: tuple[str, ...] | None = None,
        by: str = "reconcile",
        ramped: bool = False,
    ) -> Counts:
        asks = [Ask(f"shop_{shard}", topic, i, number, groups, "refused", by) for i in ids]
        connection = connect(self.settings, self.connections)
        try:
            with connection, connection.cursor() as cursor:
                return ask(cursor, asks, None, ramped_topics(self.settings) if ramped else ())
        finally:
            connection.close()

    @contextmanager
    def run(self, *topics: str, duty: str = "resend", **options: Any) -> Iterator[Run]:
        """An open run, closed at the end unless somebody else has done so."""
        connection = connect(self.settings, self.connections)
        try:
            run = open_run(connection, duty, name_of(topics), self.settings, **options)
            try:
                yield run
            finally:
                close_run(connection, run, "failed", Counts())
        finally:
            connection.close()

    def resend(self, **options: Any) -> Counts:
        """One whole run."""
        with self.run() as run:
            return run_once(self.settings, self.connections, run, **options)

    @contextmanager
    def worker(
        self, run: Run, hooks: Mapping[str, Callable[[], None]] | None = None
    ) -> Iterator[Worker]:
        """A worker whose shards and brokers are hooked."""
        with open_worker(self.settings, self.connections, run) as worker:
            worker.judge.sources = HookedSources(self.settings, self.connections, hooks or {})
            with worker.judge.sources:
                yield worker

    def hooked_resend(self, hooks: Mapping[str, Callable[[], None]]) -> Counts:
        """One whole run with hooks around the methods of its stores and brokers."""
        with self.run() as run, self.worker(run, hooks) as worker:
            counts = prepare(worker)
            return counts + drain_requests(worker, now(worker))

    def requests(self) -> dict[str, int]:
        return dict(
            self.sql("control", "SELECT state, count(*)::int FROM resend_request GROUP BY state")
        )

    def request(self, message_id: str) -> dict[str, Any]:
        ((row,),) = self.sql(
            "control",
            "SELECT to_jsonb(r) FROM resend_request r WHERE message_id = %s",
            [message_id],
        )
        return dict(row)

    def stub(self, message_id: str, shard: str = "a") -> dict[str, Any]:
        ((row,),) = self.sql(
            f"producer_{shard}",
            "SELECT to_jsonb(s) - 'content' FROM message_stub s WHERE message_id = %s",
            [message_id],
        )
        return dict(row)

    def attempts(self, shard: str = "a") -> Counter[str]:
        return Counter(
            dict(
                self.sql(
                    f"producer_{shard}",
                    "SELECT outcome, count(*)::int FROM send_attempt GROUP BY outcome",
                )
            )
        )

    def published(self, topic: str = TOPIC) -> list[dict[str, str]]:
        """The headers of every entry in the broker, read past the adapter."""
        found = []
        for queue in range(int(self.raw.hget(self.keys.topic(topic), "queues") or 0)):
            found += [
                json.loads(entry[b"headers"])
                for _, entry in self.raw.xrange(self.keys.stream(topic, queue))
            ]
        return found

    def copies(self, topic: str = TOPIC) -> Counter[tuple[str, str]]:
        """How often each (message id, send number) is in the broker."""
        return Counter((h["backstop-message-id"], h[SEND_HEADER]) for h in self.published(topic))

    def expire_claims(self) -> None:
        """Time passes: claims and attempts are past their deadlines."""
        self.sql(
            "control",
            """UPDATE resend_request SET claim_deadline = now() - interval '1 second',
            updated_at = now() - interval '1 hour' WHERE state = 'claimed'""",
        )
        for shard in "ab":
            self.expire_attempts(shard)

    def expire_attempts(self, shard: str) -> None:
        self.sql(
            f"producer_{shard}",
            """UPDATE message_stub SET attempt_deadline = now() - interval '1 second',
            attempted_at = now() - interval '10 seconds' WHERE attempt_token IS NOT NULL""",
        )

    def consume(
        self, message_id: str, group: str, topic: str = TOPIC, state: str = "CONSUMED"
    ) -> None:
        self.sql(
            f"consumer_{group}",
            """INSERT INTO consumer_log (consumer_group, topic, message_id, state,
        consumed_at,
            updated_at) VALUES (%s, %s, %s, %s, now() - interval '1 hour', now() - interval '1 hour')""",
            [group, topic, message_id, state],
        )

    def empty(self) -> None:
        for name in ROLES:
            if self.urls[f"backstop_{name}"].startswith("postgresql:"):
                empty(self.urls[f"backstop_{name}"])
        self.raw.flushall()
        self.raw.execute_command("ACL", "SETUSER", "default", "~*")
        with RedisStreams(self.urls["backstop_broker"]) as broker:
            for topic in (TOPIC, OTHER, "refunds"):
                broker.create_topic(topic, 2)
                for group in ("billing", "shipping"):
                    broker.create_group(group, topic, "start")


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Postgres, Valkey, dict[str, str]]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as server,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        urls = {"backstop_broker": valkey.url(), "backstop_leases": valkey.url(1)}
        for name, role in ROLES.items():
            server.create_database(name)
            urls[f"backstop_{name}"] = server.admin_dsn(name)
            migrate(server.admin_dsn(name), role)
        yield server, valkey, urls


@pytest.fixture
def world(servers: tuple[Postgres, Valkey, dict[str, str]]) -> World:
    fresh = World(copy.deepcopy(servers[2]))
    fresh.empty()
    return fresh


def ids(number: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{i:05d}" for i in range(number)]


class Hooked:
    """A store or broker that calls `hooks["<method> before"]` and `hooks["<method> after"]` around a method;
    nothing else is changed."""

    def __init__(self, inner: Any, hooks: Mapping[str, Callable[[], None]]) -> None:
        self._inner, self._hooks = inner, hooks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if f"{name} before" not in self._hooks and f"{name} after" not in self._hooks:
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            self._hooks.get(f"{name} before", lambda: None)()
            answer = value(*arguments, **options)
            self._hooks.get(f"{name} after", lambda: None)()
            return answer

        return call


class HookedSources(Sources):
    """Sources whose shards and brokers are hooked."""

    def __init__(
        self, settings: Settings, connections: Connections, hooks: Mapping[str, Callable[[], None]]
    ) -> None:
        super().__init__(settings, connections)
        self._hooks = hooks

    def shard(self, name: str) -> Any:
        return Hooked(super().shard(name), self._hooks)

    def broker(self, name: str) -> Any:
        return Hooked(super().broker(name), self._hooks)


def once(action: Callable[[], None]) -> Callable[[], None]:
    """The action, the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None
