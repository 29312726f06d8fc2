"""The Java example of the documentation at work: its logs take part in reconcile, resend and sweep, over a real RocketMQ."""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

from backstop.brokers.open import open_broker
from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.records import Counts
from backstop.reconcile.run_once import run_once
from backstop.resend.run_once import run_duty as resend
from backstop.runs.run import Run
from backstop.sweep.run_once import run_duty as sweep
from backstop_lab.servers.compile_java import class_path, compiled, java
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.share_classes import shared_classes
from rocketmq_java import JavaPeer
from rocketmq_server import RocketMQ
from system import settings_dict

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "java"
LEASE_SECONDS, MAX_SEND_SECONDS, ATTEMPT_SECONDS, FIRST_CHECK_SECONDS = 13, 10, 15, 12


@dataclass
class Shop:
    """A producer's, a consumer's and the control database, one topic and one group, and the two programs of the example."""

    server: RocketMQ
    urls: dict[str, str]
    settings: Settings
    connections: Connections
    topic: str
    group: str
    folder: Path

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.urls[database])
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def start(self, program: str, database: str, *arguments: str) -> subprocess.Popen[str]:
        """One program of the example, compiled as it stands, with its statements on the class path."""
        place = urlsplit(self.urls[database])
        environment = {
            **os.environ,
            "DATABASE_URL": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
            "DATABASE_USER": place.username or "",
            "DATABASE_PASSWORD": place.password or "",
            "BROKER": "rmq",
            "LEASE_SECONDS": str(LEASE_SECONDS),
            "MAX_SEND_SECONDS": str(MAX_SEND_SECONDS),
            "ATTEMPT_TIMEOUT_SECONDS": str(ATTEMPT_SECONDS),
            "FIRST_CHECK_SECONDS": str(FIRST_CHECK_SECONDS),
        }
        with (self.folder / f"{program}.log").open("a") as log:
            return subprocess.Popen(
                [
                    str(java()),
                    "-Xmx96m",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    *shared_classes("rocketmq"),
                    f"-Duser.home={self.folder}",
                    "-Drocketmq.client.rebalance.waitInterval=1000",
                    "-Drocketmq.client.rebalance.minInterval=200",
                    "-cp",
                    class_path(compiled(sorted(EXAMPLE.glob("*.java"))), EXAMPLE),
                    program,
                    self.server.namesrv,
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def place_orders(self, *ids: str) -> dict[str, str]:
        """Runs the producer to its end: id -> what it said."""
        producer = self.start("OrderProducer", "shop_a", self.topic, *ids)
        said, _ = producer.communicate(timeout=120)
        assert producer.returncode == 0, (self.folder / "OrderProducer.log").read_text()
        return dict(
            line.split(" ", 1) for line in said.splitlines() if line.split(" ", 1)[0] in ids
        )

    @contextmanager
    def consumer(self) -> Iterator[subprocess.Popen[str]]:
        consumer = self.start("BillingConsumer", "billing_db", self.group, self.topic)
        try:
            yield consumer
        finally:
            consumer.kill()
            consumer.communicate()

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        log = self.folder / "BillingConsumer.log"
        return self.server.until(f"{what} (see {log})", holds)

    def logs(self) -> dict[str, tuple[str, int]]:
        """message id -> (state, attempts)."""
        return {
            row[0]: row[1:]
            for row in self.rows(
                "billing_db", "SELECT message_id, state, attempts FROM consumer_log"
            )
        }

    def invoices(self) -> list[str]:
        return [
            row[0] for row in self.rows("billing_db", "SELECT order_id FROM invoice ORDER BY 1")
        ]

    def statuses(self) -> dict[str, str]:
        return dict(self.rows("shop_a", "SELECT message_id, status FROM message_stub"))

    def reconcile(self, spark: Any) -> Counts:
        def no_audit(run: Run, suites: Sequence[str]) -> None:
            """The suites have tests of their own."""

        self.until(
            "the end of max_send_duration",
            lambda: self.rows(
                "shop_a",
                "SELECT coalesce(max(attempt_deadline) < clock_timestamp(), true) FROM message_stub"
                " WHERE attempt_token IS NOT NULL",
            )[0][0],
        )
        self.until(
            "the first look",
            lambda: self.rows(
                "shop_a",
                "SELECT coalesce(max(created_at) + %s * interval '1 s' < clock_timestamp(), true) FROM message_stub",
                FIRST_CHECK_SECONDS,
            )[0][0],
        )
        self.rows(
            "shop_a",
            "UPDATE message_stub SET next_check_at = now() - interval '1 s' WHERE status = 'pending'",
        )
        return run_once(self.settings, self.connections, lambda: spark, no_audit)


@pytest.fixture
def shop(postgres: Postgres, shared_rocketmq: RocketMQ, tmp_path: Path) -> Iterator[Shop]:
    name = f"e{uuid.uuid4().hex[:10]}"
    topic, group = f"orders-{name}", f"billing-{name}"
    admin = psycopg2.connect(postgres.admin_dsn())
    admin.autocommit = True
    urls = {"broker": shared_rocketmq.url()}
    with admin.cursor() as cursor:
        for role in ("control", "shop_a", "billing_db"):
            cursor.execute(f"CREATE DATABASE {name}_{role} TEMPLATE template_{role}")
            urls[role] = postgres.admin_dsn(f"{name}_{role}")
    settings = Settings.model_validate(
        settings_dict(
            brokers={
                "rmq": {
                    "kind": "rocketmq",
                    "connection": "broker",
                    "retry_schedule": "20s",
                    "options": {"delivery_limit": 17},
                }
            },
            producers={"shop_a": {"connection": "shop_a"}},
            consumers={"billing_db": {"connection": "billing_db"}},
            groups={
                group: {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"}
            },
            topics={topic: {"broker": "rmq", "groups": [group], "mode": "repair"}},
            policy={
                "max_send_duration": f"{MAX_SEND_SECONDS}s",
                "attempt_timeout": f"{ATTEMPT_SECONDS}s",
                "claim_timeout": "25s",
                "first_check": f"{FIRST_CHECK_SECONDS}s",
                "backoff_base": "20s",
                "backoff_cap": "25s",
                "max_clock_skew": "4s",
                "lease": f"{LEASE_SECONDS}s",
                "consume_timeout": f"{LEASE_SECONDS}s",
                "redelivery_horizon": "45s",
            },
        )
    )
    connections = Connections(resolver=urls.get)
    broker = open_broker(settings, connections, "rmq")
    shared_rocketmq.create_topic(topic, 2)
    shared_rocketmq.create_group(group)
    broker.close()
    made = Shop(shared_rocketmq, urls, settings, connections, topic, group, tmp_path)
    made.rows("shop_a", "CREATE TABLE shop_order (order_id text PRIMARY KEY)")
    made.rows("billing_db", "CREATE TABLE invoice (order_id text PRIMARY KEY, content bytea)")
    try:
        yield made
    finally:
        with admin.cursor() as cursor:
            for role in ("control", "shop_a", "billing_db"):
                cursor.execute(f"DROP DATABASE {name}_{role} WITH (FORCE)")
        admin.close()


def die_before_the_send(shop: Shop, message_id: str) -> None:
    """The producer is killed between the commit of its stub and its send: its look finds the table locked from the commit on."""
    shop.rows(
        "shop_a",
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$",
    )
    shop.rows(
        "shop_a",
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON message_stub DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION hold()",
    )
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = %s"
    commit, table = psycopg2.connect(shop.urls["shop_a"]), psycopg2.connect(shop.urls["shop_a"])
    with commit.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(7)")
    producer = shop.start("OrderProducer", "shop_a", shop.topic, message_id)
    shop.until("its commit", lambda: shop.rows("shop_a", waiting, "advisory") == [(1,)])
    lock = threading.Thread(
        target=lambda: table.cursor().execute("LOCK TABLE message_stub IN ACCESS EXCLUSIVE MODE")
    )
    lock.start()
    shop.until("the queued lock", lambda: shop.rows("shop_a", waiting, "relation") == [(1,)])
    commit.close()
    lock.join(60)
    shop.until("its look", lambda: shop.rows("shop_a", waiting, "relation") == [(1,)])
    producer.kill()
    producer.communicate()
    table.close()
    shop.rows("shop_a", "DROP TRIGGER hold ON message_stub")


def test_a_java_service_s_stubs_and_logs_are_reconciled_and_what_it_died_before_sending_is_sent(
    shop: Shop, spark: Any, tmp_path: Path
) -> None:
    assert shop.place_orders("o1", "o2") == {"o1": "sent", "o2": "sent"}
    recorded = shop.rows(
        "shop_a",
        "SELECT broker_message_id, queue_id, queue_offset, broker, status FROM message_stub",
    )
    assert shop.rows("shop_a", "SELECT DISTINCT queue_epoch FROM message_stub") == [(EPOCH,)]
    with JavaPeer(shop.server, tmp_path / "peer") as java_client:
        stored = {
            (m.uniq_key, m.queue, m.offset, "rmq", "pending") for m in java_client.read(shop.topic)
        }
    assert len(stored) == 2 and set(recorded) == stored
    die_before_the_send(shop, "o3")
    with shop.consumer():
        shop.until(
            "the sent orders",
            lambda: set(shop.logs().values()) == {("CONSUMED", 1)} and len(shop.logs()) == 2,
        )
        received = shop.rows("billing_db", "SELECT queue_id, queue_offset FROM consumer_log")
        assert set(received) == {(queue, offset) for _, queue, offset, *_ in stored}
        assert shop.reconcile(spark)["confirmed"] == 2
        shop.until(
            "its resend, when the attempt is certainly over",
            lambda: (
                shop.reconcile(spark),
                resend(shop.settings, shop.connections).get("published"),
            )[1],
        )
        shop.until(
            "the order that was never sent", lambda: shop.logs().get("o3") == ("CONSUMED", 1)
        )
    shop.until(
        "the last verdict",
        lambda: (shop.reconcile(spark), set(shop.statuses().values()) == {"confirmed"})[1],
    )
    assert shop.statuses() == {"o1": "confirmed", "o2": "confirmed", "o3": "confirmed"}
    assert shop.invoices() == ["o1", "o2", "o3"]


def test_a_java_consumer_killed_in_its_work_is_swept_and_its_message_is_done_once_by_the_next(
    shop: Shop,
) -> None:
    shop.place_orders("o1")
    held = psycopg2.connect(shop.urls["billing_db"])
    with held.cursor() as cursor:
        cursor.execute("LOCK TABLE invoice IN ACCESS EXCLUSIVE MODE")  # its work waits here
    with shop.consumer():
        shop.until("its log", lambda: shop.logs().get("o1") == ("CONSUMING", 1))
        fence = shop.rows("billing_db", "SELECT fence FROM consumer_log")
    held.close()
    ended = "SELECT lease_expires_at < clock_timestamp() FROM consumer_log"
    shop.until("the lease's end", lambda: shop.rows("billing_db", ended) == [(True,)])
    assert sweep(shop.settings, shop.connections)["reclaim"] == 1
    assert shop.logs() == {"o1": ("EXPIRED", 1)}
    with shop.consumer():
        shop.until("the work", lambda: shop.logs() == {"o1": ("CONSUMED", 2)})
    assert shop.invoices() == ["o1"]
    assert shop.rows("billing_db", "SELECT fence FROM consumer_log") > fence


def test_a_java_consumer_s_failure_is_logged_and_a_second_copy_changes_nothing(
    shop: Shop, tmp_path: Path
) -> None:
    shop.place_orders("o1")
    shop.rows("billing_db", "ALTER TABLE invoice ADD CONSTRAINT closed CHECK (false)")
    with shop.consumer(), JavaPeer(shop.server, tmp_path / "peer") as java_client:
        shop.until("its failure", lambda: shop.logs().get("o1", ("", 0))[0] == "FAILED")
        assert "closed" in shop.rows("billing_db", "SELECT last_error FROM consumer_log")[0][0]
        shop.rows("billing_db", "ALTER TABLE invoice DROP CONSTRAINT closed")
        shop.until("the work", lambda: shop.logs()["o1"][0] == "CONSUMED")
        attempts, position = (
            shop.logs()["o1"][1],
            shop.rows("billing_db", "SELECT queue_id, queue_offset FROM consumer_log"),
        )
        assert attempts > 1 and position == shop.rows(
            "shop_a", "SELECT queue_id, queue_offset FROM message_stub"
        )
        [original] = java_client.read(shop.topic)
        again = {
            "body": original.body,
            "properties": {"backstop-message-id": "o1", "backstop-send-number": "2"},
        }
        for_others = {
            "body": b"other",
            "properties": {"backstop-message-id": "o2", "backstop-groups": '["shipping"]'},
        }
        java_client.send(shop.topic, [again, for_others])
        shop.until(
            "the stopped copy",
            lambda: (
                shop.rows("billing_db", "SELECT duplicates_stopped FROM consumer_log") == [(1,)]
            ),
        )
        shop.until(
            "the group's progress",
            lambda: (
                java_client.committed(shop.group, shop.topic)
                == {queue: end for queue, (_, end) in java_client.offsets(shop.topic).items()}
            ),
        )
    assert shop.invoices() == ["o1"] and shop.logs() == {"o1": ("CONSUMED", attempts)}
