"""A run whose promotion could not reach a shard is called done when all its shards were reached, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import RunLost, RunRefused, StoreUnavailable
from backstop.reconcile import promote as promotion
from backstop.reconcile.fence import Fence
from backstop.reconcile.promote import promote
from backstop.runs.run import Run, close_run, open_run
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import close_sessions, execute
from system import System, build_template, settings_dict, system


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


def next_run(world: System, connections: Connections) -> None:
    """A run with nothing of its own to promote; it ends as it went."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    try:
        promote(world.settings, connections, conn, run)
    except StoreUnavailable:
        close_run(conn, run, "failed", {})
        raise
    else:
        close_run(conn, run, "done", {})
    finally:
        conn.close()


def test_an_earlier_run_is_done_only_when_all_its_shards_were_reached(world: System) -> None:
    conn = world.control()
    earlier = open_run(conn, "reconcile", "*", world.settings)
    for shard in ("shop_a", "shop_b"):
        key = world.stub(shard, shard=shard)
        world.rows(
            "control",
            "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status,"
            " send_count, deliveries) VALUES (%s, 0, %s, %s, %s, 'pending', 'confirmed', 1, 2)",
            earlier.run_id,
            shard,
            *key,
        )
    world.rows(
        "control",
        "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 2, 0, 2)",
        earlier.run_id,
    )
    close_run(conn, earlier, "failed", {}, error="no shard answered")
    conn.close()
    away = Connections(resolver={**world.urls, "shop_b": "postgresql://x@127.0.0.1:1/gone"}.get)

    with pytest.raises(StoreUnavailable, match="shop_b"):
        next_run(world, away)

    state = "SELECT state FROM run WHERE run_id = %s"
    assert world.rows("control", state, earlier.run_id) == [("failed",)], "shop_b was missed again"
    assert world.rows("shop_a", "SELECT status FROM message_stub") == [("confirmed",)]
    assert world.rows("shop_b", "SELECT status FROM message_stub") == [("pending",)]
    next_run(world, world.connections)
    assert world.rows("control", state, earlier.run_id) == [("done",)]
    assert world.rows("shop_b", "SELECT status FROM message_stub") == [("confirmed",)]


def test_a_raise_by_a_person_is_kept_where_the_shards_clock_is_behind(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    clock = PostgresStubs.clock
    monkeypatch.setattr(PostgresStubs, "clock", lambda store: clock(store) - timedelta(seconds=10))
    for message_id, changed in (("raised", 0), ("left", 60)):
        key = world.stub(message_id)
        # By a clock 10 s behind: raised since the run looked, or left alone for a minute before.
        world.rows(
            "shop_a",
            "UPDATE message_stub SET updated_at = now() - interval '10 s' - %s * interval '1 s'"
            " WHERE message_id = %s",
            changed,
            message_id,
        )
        world.rows(
            "control",
            "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status,"
            " send_count, deliveries) VALUES (%s, 0, 'shop_a', %s, %s, 'pending', 'exhausted', 1, 2)",
            run.run_id,
            *key,
        )
    promote(world.settings, world.connections, conn, run)
    close_run(conn, run, "done", {})
    conn.close()
    found = world.rows("shop_a", "SELECT message_id, status FROM message_stub ORDER BY 1")
    assert found == [("left", "exhausted"), ("raised", "pending")]


def test_a_store_whose_scan_lapsed_holds_back_its_own_topics_alone(
    servers: tuple[Postgres, Valkey],
) -> None:
    """Group billing, whose store is another server since the run scanned it, takes orders and not payments."""
    with scanned(servers) as (world, run, conn):
        lapses(world, conn, run, world.settings)


def test_a_scan_lapses_also_where_no_group_names_its_store_any_more(
    servers: tuple[Postgres, Valkey],
) -> None:
    """Somebody has replaced a lost consumer database by one of another name between the judgement and its promotion."""
    with scanned(servers) as (world, run, conn):
        lapses(world, conn, run, store_renamed())


def test_a_lapsed_scan_of_a_half_promoted_run_confirms_nothing_whatever_the_store_is_called_now(
    servers: tuple[Postgres, Valkey],
) -> None:
    with scanned(servers) as (world, run, conn):
        half_promoted(world, run)
        close_run(conn, run, "failed", {}, error="no shard answered")
        conn.close()
        world.settings = store_renamed()
        next_run(world, world.connections)
        assert confirmed(world) == {("payments", "done", "confirmed")}


def test_a_store_that_changes_while_shards_are_promoted_confirms_no_further_chunk(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rests on no scan of it is promoted all the same."""
    with scanned(servers) as (world, run, conn):
        stage_another(world, run)
        changes_after(monkeypatch, 2)  # asked for all of the run, and for its first chunk
        with pytest.raises(
            StoreUnavailable, match=r"confirmations in shard shop_a .*billing_db may be lost"
        ):
            promote(world.settings, world.connections, conn, run)
        close_run(conn, run, "failed", {})
        one_chunk_was_confirmed(world)


def test_a_store_that_changes_while_an_earlier_run_is_finished_confirms_no_further_chunk(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scanned(servers) as (world, run, conn):
        stage_another(world, run)
        half_promoted(world, run)
        close_run(conn, run, "failed", {}, error="no shard answered")
        changes_after(monkeypatch, 2)
        with pytest.raises(StoreUnavailable, match=r"confirmations in shard shop_a"):
            next_run(world, world.connections)
        one_chunk_was_confirmed(world)


@pytest.mark.parametrize("what", ["a restart", "a dump restored in place", "a new database"])
def test_a_scan_of_a_log_rests_on_what_was_scanned(tmp_path: Path, what: str) -> None:
    """The server has the same name and history afterwards, and has come farther."""
    with Postgres(tmp_path) as postgres:
        build_template(postgres)
        url = postgres.admin_dsn("template_billing_db")

        def log() -> None:
            execute(
                url,
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at)"
                " VALUES ('billing', 'orders', gen_random_uuid()::text, 'CONSUMED', now())",
            )

        with closing(PostgresLogs("billing_db", url)) as store:
            before = store.lineage()
            log()
            assert store.continues(before) and store.continues(store.lineage())
        match what:
            case "a restart":
                postgres.restart()
            case "a dump restored in place":
                execute(url, "TRUNCATE consumer_log")
            case _:
                close_sessions()
                execute(postgres.admin_dsn(), "ALTER DATABASE template_billing_db RENAME TO old")
                execute(postgres.admin_dsn(), "CREATE DATABASE template_billing_db TEMPLATE old")
        log()
        with closing(PostgresLogs("billing_db", url)) as store:
            assert not store.continues(before)
            assert store.continues(store.lineage())
            assert not store.continues("1 00000001 0/0"), "as earlier versions wrote it"


def half_promoted(world: System, run: Run) -> None:
    """Its part in the control database is committed."""
    world.rows(
        "control",
        "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 1, 0, 1)",
        run.run_id,
    )


def stage_another(world: System, run: Run) -> None:
    world.rows(
        "control",
        "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)"
        " VALUES (%s, 0, 'shop_a', %s, %s, 'pending', 'confirmed', 1, 1)",
        run.run_id,
        *world.stub("done-later", "orders"),
    )


def changes_after(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """Chunks of one stub; the consumers' database is another server from the question after so many on."""
    asked = count()
    monkeypatch.setattr(promotion, "_STUBS", 1)
    monkeypatch.setattr(PostgresLogs, "continues", lambda *_: next(asked) < answers)


def one_chunk_was_confirmed(world: System) -> None:
    first = {("orders", "done", "confirmed"), ("payments", "done", "confirmed")}
    assert confirmed(world) == first
    next_run(world, world.connections)
    assert confirmed(world) == first, "judged again, and not confirmed by what was seen then"
    assert world.rows("control", "SELECT count(*) FROM staged_stub") == [(0,)]


@pytest.mark.parametrize("when", ["between two chunks", "before a commit"])
def test_a_run_that_was_taken_over_while_it_promotes_confirms_nothing_more(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its process stood still for minutes; what it had read of the staging is still on its way to it."""
    with scanned(servers) as (world, run, conn):
        stage_another(world, run)
        monkeypatch.setattr(promotion, "_STUBS", 1)
        monkeypatch.setattr(PostgresLogs, "continues", lambda *_: True)
        subject, name = {
            "between two chunks": (PostgresStubs, "promote"),
            "before a commit": (Fence, "hold"),
        }[when]
        call, chunks = getattr(subject, name), count()

        def stands_still(*arguments: Any) -> Any:
            if next(chunks) == 1:
                with closing(world.control()) as other:
                    open_run(other, "reconcile", "*", world.settings, dead_after=timedelta(0))
                world.rows("control", "DELETE FROM staged_stub")
            return call(*arguments)

        monkeypatch.setattr(subject, name, stands_still)
        with pytest.raises(RunLost):
            promote(world.settings, world.connections, conn, run)
        assert confirmed(world) == {("orders", "done", "confirmed")}


def test_nobody_takes_a_run_over_between_its_question_and_the_commit_in_a_shard(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scanned(servers) as (world, run, conn):
        monkeypatch.setattr(PostgresLogs, "continues", lambda *_: True)
        hold, refused = Fence.hold, list[str]()

        def held(fence: Fence) -> None:
            hold(fence)
            with closing(world.control()) as other, pytest.raises(RunRefused) as error:
                other.cursor().execute("SET lock_timeout = '100ms'")
                other.commit()
                open_run(other, "reconcile", "*", world.settings, dead_after=timedelta(0))
            refused.append(error.value.what)

        monkeypatch.setattr(Fence, "hold", held)
        promote(world.settings, world.connections, conn, run)
        assert len(refused) == 1 and "has not ended yet" in refused[0]
        with closing(world.control()) as other:
            open_run(other, "reconcile", "*", world.settings, dead_after=timedelta(0))


TOPICS = {
    "orders": {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "repair"},
    "payments": {"broker": "embedded", "groups": ["shipping"], "mode": "repair"},
}


@contextmanager
def scanned(servers: tuple[Postgres, Valkey]) -> Iterator[tuple[System, Run, Any]]:
    """A run that judged orders and payments, and scanned billing's store, which was another server then."""
    with system(*servers, topics=TOPICS) as world:
        conn = world.control()
        run = open_run(conn, "reconcile", "*", world.settings)
        for topic in TOPICS:
            for message_id, verdict in (("done", "CONFIRMED"), ("lost", "LOST")):
                key, lost = world.stub(message_id, topic), verdict == "LOST"
                world.rows(
                    "control",
                    "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status,"
                    " send_count, deliveries) VALUES (%s, 0, 'shop_a', %s, %s, 'pending', %s, 1, 1)",
                    run.run_id,
                    *key,
                    "pending" if lost else "confirmed",
                )
                world.rows(
                    "control",
                    "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict,"
                    " reason, eligible, send_count, evidence)"
                    " VALUES (%s, 0, 'shop_a', %s, %s, 'shipping', %s, 'r', %s, 1, '{}')",
                    run.run_id,
                    *key,
                    verdict,
                    lost,
                )
                world.rows(
                    "control",
                    "INSERT INTO staged_count VALUES (%s, 0, %s, 'shipping', %s, 1, %s, 0)",
                    run.run_id,
                    topic,
                    verdict,
                    int(lost),
                )
        world.rows(
            "control",
            "INSERT INTO staged_read (run_id, stage, subject, rows_read, complete, lineage, topics)"
            " VALUES (%s, 0, 'store billing_db', 0, true, '1 00000001 0/0', '{orders}')",
            run.run_id,
        )
        yield world, run, conn
        conn.close()


def store_renamed() -> Settings:
    written = settings_dict(topics=TOPICS)
    written["consumers"]["billing_new"] = written["consumers"].pop("billing_db")
    written["groups"]["billing"]["store"] = "billing_new"
    return Settings.model_validate(written)


def confirmed(world: System) -> set[tuple[str, str, str]]:
    found = world.rows("shop_a", "SELECT topic, message_id, status FROM message_stub")
    return {one for one in found if one[2] != "pending"}


def lapses(world: System, conn: Any, run: Run, settings: Settings) -> None:
    """Promoted with these settings, the run changes nothing of orders and everything of payments."""
    with pytest.raises(
        StoreUnavailable, match=r"topics orders .*billing_db may be lost.*judges them again"
    ):
        promote(settings, world.connections, conn, run)
    close_run(conn, run, "failed", {})
    assert confirmed(world) == {("payments", "done", "confirmed")}
    asked = world.rows("control", "SELECT topic, message_id FROM resend_request")
    assert asked == [("payments", "lost")]
    counted = world.rows("control", "SELECT DISTINCT topic FROM verdict_count")
    assert counted == [("payments",)]
    assert world.rows("control", "SELECT count(*) FROM staged_stub") == [(0,)]
