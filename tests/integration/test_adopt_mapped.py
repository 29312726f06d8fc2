"""A company's first quarter of an hour: its databases hold only its library's tables, and Backstop only reads them.

Migrate the control database, check, reconcile; then ask where a message is. Later, a lost message is sent once more.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from backstop.cli.app import run_app
from backstop.reconcile import scan_logs
from backstop.reconcile.run_once import run_once
from backstop_lab.servers.mongodb import MongoServer
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import LIBRARIES, SERVERS, make_mapped, settings_of
from mariadb import MariaDB
from rearm_world import REARMED, Repaired, repair_settings, run_as_dba
from system import settings_dict, system


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    with MongoServer(tmp_path_factory.mktemp("mongodb")) as server:
        yield server


@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_from_nothing_to_where_is_my_message_without_touching_the_producer(
    kind: str,
    postgres: Postgres,
    valkey: Valkey,
    mariadb: MariaDB,
    mongodb: MongoServer,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = SERVERS[kind]["cap"]
    changes = settings_of(library, consumer={"kept": "24h"})
    with system(postgres, valkey, **changes) as running:
        servers = {"mariadb": mariadb, "mongodb": mongodb}
        shop = make_mapped(servers.get(kind, postgres), running, library)
        empty = f"control_{uuid.uuid4().hex[:10]}"
        postgres.create_database(empty)
        running.urls["control"] = postgres.admin_dsn(empty)
        path = tmp_path / "backstop.yaml"
        path.write_text(yaml.safe_dump(settings_dict(**changes)))
        monkeypatch.setenv("BACKSTOP_CONFIG", str(path))
        for name in ("control", "broker", "shop"):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", running.urls[name])

        def cli(*arguments: str) -> tuple[int, Any]:
            code = run_app([*arguments, "--json"])
            out = capsys.readouterr().out
            return code, json.loads(out)

        def reconcile() -> Any:
            return run_once(
                running.settings,
                running.connections,
                lambda: spark,
                lambda *_: None,
            )

        def judged_by_run() -> dict[str, tuple[str, str]]:
            return {
                message_id: (verdict, reason)
                for message_id, verdict, reason in running.rows(
                    "control", "SELECT message_id, verdict, reason FROM open_delivery"
                )
            }

        # What happened before anybody heard of Backstop.
        history = shop.send(shop.promise())
        done = [shop.receive(shop.send(shop.promise())) for _ in range(3)]
        if kind != "mongodb":  # a redelivery that its inbox kept as another row
            kept = '"Version", "Name", "Group", "Content", "Retries", "Added", "ExpiresAt", "StatusName"'
            shop.run(f'INSERT INTO {{received}} SELECT "Id" + 90000, {kept} FROM {{received}}')
        written = shop.shown()

        code, applied = cli("migrate")
        assert code == 0 and [one["role"] for one in applied] == ["control"]
        _, checked = cli("check")
        found = {one["subject"]: one for one in checked["findings"]}
        # The server in the place of MongoDB has no logins, of which one could only read.
        no_logins = {"shard shop: privileges", "store billing_db: privileges"}
        assert {
            name
            for name, one in found.items()
            if name.startswith(("shard", "store")) and not one["good"]
        } == (no_logins if kind == "mongodb" else set())
        assert "rows stay 1d" in found["store billing_db: proves"]["says"]
        assert "cap-msg-id" in found["shard shop: ids on the wire"]["says"]
        if kind != "mongodb":
            assert not shop.can_write('UPDATE {published} SET "Retries" = 1')

        running.pass_over("billing")
        # As if much were due: where the server can be scanned, what is done is read in one pass.
        monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", 1)
        monkeypatch.setattr(scan_logs, "ROWS_FOR_A_KEY", 1e6)
        first = reconcile()
        assert (first["mapped_tables_read"], first["confirmed"]) == (1, 3)
        assert first.get("proven_by_scan", 0) == (0 if kind == "postgresql" else 3)
        assert running.rows(
            "control", "SELECT status, count(*) FROM mapped_stub GROUP BY 1 ORDER BY 1"
        ) == [("confirmed", 3), ("pending", 1)]

        # Business goes on: one message is lost, one is under way, one is done.
        lost, under_way = shop.send(shop.promise()), shop.promise()
        paused = shop.promise()
        shop.act("state", id=int(paused), state="Paused")
        done.append(shop.receive(shop.send(shop.promise())))
        groupless = shop.receive(shop.send(shop.promise()))
        shop.act("received group", id=int(groupless), group=None)
        written_later = shop.shown()
        second = reconcile()
        assert second["mapped_tables_read"] == 1
        shop.a_minute_later()
        running.pass_over("billing")
        third = reconcile()
        assert third["unreachable"] == 0
        assert judged_by_run() == {
            history: ("UNKNOWN", "log_purged"),
            lost: ("LOST", "passed_over"),
            under_way: ("BACKLOGGED", "ahead_of_group"),
            groupless: ("IN_PROGRESS", "lease_without_expiry"),
        }

        assert {*running.rows("control", "SELECT store, message_id, reason FROM quarantine")} == {
            ("shard shop", paused, "unknown_status"),
            ("store billing_db", groupless, "a row without a group that can be read"),
        }

        shop.a_minute_later()  # until its next look, what is under way is WAITING
        code, stories = cli("where", "orders", lost, done[-1], under_way)
        assert code == 0
        told = {
            story["message_id"]: [one["verdict"] for one in story["deliveries"]]
            for story in (stories if isinstance(stories, list) else [stories])
        }
        assert told == {lost: ["LOST"], done[-1]: ["CONFIRMED"], under_way: ["BACKLOGGED"]}

        # Nothing is sent, nothing is written: not a row of theirs was touched.
        assert running.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
        assert shop.shown() == written_later and set(written) <= set(written_later)
        postgres_drop(postgres, empty)


NAMED = ("{}", '{"orderId": "%s"}' % ("x" * 1100), '{"orderId": "twice"}', '{"orderId": "twice"}')
"""Events of which nobody can be told: without an id, with one that is too long, and two of one id."""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_rows_that_no_run_can_follow_are_put_before_a_person(
    kind: str, postgres: Postgres, valkey: Valkey, mariadb: MariaDB, spark: Any
) -> None:
    library = SERVERS[kind]["modulith"]
    with system(postgres, valkey, **settings_of(library)) as running:
        shop = make_mapped({"mariadb": mariadb}.get(kind, postgres), running, library)
        for place, event in enumerate(NAMED):
            shop.promise()
            shop.run(
                "UPDATE event_publication SET serialized_event = %(event)s WHERE serialized_event LIKE %(its)s"
                if kind == "postgresql"
                else "UPDATE EVENT_PUBLICATION SET SERIALIZED_EVENT = %(event)s WHERE SERIALIZED_EVENT LIKE %(its)s",
                event=event,
                its=f"%order-{101 + place}%",
            )

        def reconcile() -> Any:
            return run_once(running.settings, running.connections, lambda: spark, lambda *_: None)

        def asked() -> list[tuple[Any, ...]]:
            return running.rows(
                "control",
                "SELECT c.kind, m.shard, c.topic, c.consumer_group, m.message_id, c.evidence -> 'set_aside'"
                ' FROM case_file c JOIN case_member m USING (case_id) ORDER BY m.message_id COLLATE "C"',
            )

        reconcile()
        assert asked() == []
        running.rows("control", "UPDATE run SET as_of = as_of - interval '2 minutes'")
        running.rows("control", "UPDATE mapped_stub SET next_check_at = now()")
        reconcile()
        reasons = {"no_message_id": 1, "key_too_long": 1, "unknown_status": 1}
        digest = sha256(b"orders\x01" + b"x" * 1100).hexdigest()
        ids = ("", "twice", f"sha256:{digest}")
        assert asked() == [
            ("unknown", "shop", "orders", "billing", one, reasons) for one in sorted(ids)
        ]


@pytest.mark.parametrize("preset", REARMED)
def test_a_lost_message_is_found_and_sent_once_more_by_its_own_relay(
    preset: str,
    postgres: Postgres,
    valkey: Valkey,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The producer is not touched: a DBA runs what is printed, and its relay does what it always does."""
    changes = repair_settings(preset)
    with system(postgres, valkey, **changes) as running:
        made = make_mapped(postgres, running, LIBRARIES[preset])
        shop = Repaired(running, made.library, made.database, made.owner)
        path = tmp_path / "backstop.yaml"
        path.write_text(yaml.safe_dump(settings_dict(**changes)))
        monkeypatch.setenv("BACKSTOP_CONFIG", str(path))
        for name in ("control", "broker", "shop"):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", running.urls[name])

        def cli(*arguments: str) -> Any:
            run_app([*arguments, "--json"])
            return json.loads(capsys.readouterr().out)

        def bad() -> list[str]:
            found = cli("check")["findings"]
            return [
                one["subject"]
                for one in found
                if one["subject"].startswith(("shard", "store")) and not one["good"]
            ]

        def reconcile() -> Any:
            return run_once(running.settings, running.connections, lambda: spark, lambda *_: None)

        assert bad() == ["shard shop: overlay privileges"], "what the DBA has to do is named"
        run_as_dba(made, cli("migrate", "--overlay")["shop"])
        assert bad() == []

        done = [shop.receive(shop.send(shop.promise())) for _ in range(3)]
        assert reconcile()["confirmed"] == 3
        lost, rolled_back = shop.send(shop.promise()), shop.roll_back()
        reconcile()
        shop.a_minute_later()
        running.pass_over("billing")
        assert reconcile()["requests"] == 1
        under_way = shop.promise()
        assert shop.resend()["rearmed"] == 1
        assert "rearmed" not in shop.resend()

        reconcile()
        assert sorted(shop.relay()) == sorted([lost, under_way])
        assert sorted(shop.deliver()) == sorted([lost, under_way])
        shop.a_minute_later()
        shop.resend()
        assert reconcile()["confirmed"] == 2
        assert shop.requests() == [(lost, 2, "sent")]
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]
        assert shop.relay() == [] and running.consume("billing") == []
        stories = {
            story["message_id"]: [one["verdict"] for one in story["deliveries"]]
            for story in cli("where", "orders", lost, done[0], under_way, rolled_back)
        }
        assert stories.pop(rolled_back) == [None]
        assert set(map(tuple, stories.values())) == {("CONFIRMED",)}


def postgres_drop(postgres: Postgres, database: str) -> None:
    connection = psycopg2.connect(postgres.admin_dsn())
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {database} WITH (FORCE)")
    connection.close()
