"""The scan proves, the key denies: with a scan of the logs every verdict is what it is by key alone, whatever the scan misses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.config.connections import Connections
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Key
from backstop.reconcile import gather, packets, read, scan_logs
from backstop.reconcile import judge as judging
from backstop.reconcile.answer_proof import Answer
from backstop.reconcile.judge import judge
from backstop.reconcile.promote import promote
from backstop.reconcile.prove import counts_of, prove
from backstop.reconcile.run_once import run_once
from backstop.reconcile.run_proof import scope_now
from backstop.runs.run import close_run, open_run
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Part, Scan, Scope
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from scan_world import fill, in_parts, staged  # noqa: F401
from system import System, system


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    # Two runs of a test may be minutes apart on a busy machine, and nothing shall become a case in between.
    with system(postgres, valkey, policy={"unknown_horizon": "9m"}) as running:
        yield running


@pytest.mark.parametrize("seed", [1, 2])
def test_a_scan_changes_no_verdict_and_asks_for_what_it_did_not_prove(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    proven = fill(world, seed)
    by_scan, scanned = staged(world, spark)
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", 10**9)
    by_key, asked = staged(world, spark)
    assert by_scan == by_key
    assert len(by_key[0][0]) > 20 and len(by_key[1]) > 3, "a world that shows little"
    assert {"VOIDED", "DEAD_LETTERED", "LOST"} <= {row[4] for row in by_key[0][0]}
    assert "unacknowledged" in {row[5] for row in by_key[0][0]}, "nothing is delivered again"
    assert "proven_by_scan" not in asked and asked["asked_by_key"] == asked["deliveries"]
    assert scanned["asked_by_key"] + scanned["proven_by_scan"] == asked["deliveries"]
    # Only those that were received long before their stub was written are not found by the scan.
    missed = sum(
        world.rows(
            f"{group}_db",
            "SELECT count(*) FROM consumer_log WHERE first_received_at < '2002-01-01'",
        )[0][0]
        for group in ("billing", "shipping")
    )
    assert proven - missed <= scanned["proven_by_scan"] <= proven
    assert scanned["proven_by_scan"] > 20


@pytest.mark.parametrize("keys_worth", [1, 10**9], ids=["by scan", "by key"])
def test_what_is_all_done_is_judged_without_being_held_and_the_staged_rows_are_the_same(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch, keys_worth: int
) -> None:
    fill(world, 3)
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", keys_worth)
    kept: dict[str, set[str]] = {}
    whole = judging.judge_and_stage

    def seen(held: Any, *rest: Any) -> Any:
        for row in held.where("kind IN ('held', 'outcomes')").collect():
            ids = packets.unpack(bytes(row["packet"])).column("message_id").to_pylist()
            kept[row["kind"]] = kept.get(row["kind"], set()) | set(ids)
        return whole(held, *rest)

    monkeypatch.setattr(judging, "judge_and_stage", seen)
    at_once, counts = staged(world, spark)
    judged, kept = kept, {}
    monkeypatch.setattr(gather, "WORTH_PLANNING_TWICE", 10**9)
    assert staged(world, spark)[0] == at_once
    verdicts, stubs, counted = at_once[0]
    # A discarded delivery has a verdict with its evidence, and so its stub is held.
    done = {row[0:2] for row in stubs if row[4] == "confirmed"} - {row[0:2] for row in verdicts}
    assert len(done) > 10 and {name for _, name in done} == judged["outcomes"]
    assert judged["held"] == kept["held"] - judged["outcomes"] and "outcomes" not in kept
    assert sum(row[3] for row in counted) == counts["deliveries"]


def test_a_scan_that_does_not_answer_costs_lookups_and_nothing_else(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 4)
    whole, _ = staged(world, spark)

    def broken(*_: Any) -> Scan:
        return Scan([Part({"logs": "SELECT * FROM a_table_that_is_gone"})], 1)

    monkeypatch.setattr(PostgresLogs, "scan_done", broken)
    by_key, counts = staged(world, spark)
    assert by_key == whole
    assert counts["asked_by_key"] == counts["deliveries"]
    assert world.rows("control", "SELECT DISTINCT complete FROM staged_read") == [(True,)]


def test_a_table_that_may_hold_two_rows_for_one_key_is_not_scanned(
    world: System, spark: Any, in_parts: None
) -> None:
    """The scan would find the row that is CONSUMED, and not the other one."""
    key = world.sent("m-1")
    world.rows("billing_db", "ALTER TABLE consumer_log DROP CONSTRAINT consumer_log_pkey")
    for state in ("CONSUMED", "FAILED"):
        world.log(key, "billing", state)
    world.log(key, "shipping")
    _, counts = staged(world, spark)
    assert (counts["asked_by_key"], counts["proven_by_scan"]) == (1, 1)
    assert (
        counts.get("confirmed") == 1
    )  # of shipping; neither of billing's rows is taken for the truth


def judged(world: System, spark: Any) -> tuple[Any, Any]:
    """A run that saw "done" by a scan and "lost" by key, and is not promoted yet."""
    for group in ("billing", "shipping"):
        world.log(world_stub(world, "done"), group)
    world.sent("lost")
    for group in ("billing", "shipping"):
        world.pass_over(group)
    control = world.control()
    run = open_run(control, "reconcile", "*", world.settings)
    assert (
        judge(spark, world.settings, world.connections, control, run, Scope())["proven_by_scan"]
        == 2
    )
    return control, run


def world_stub(world: System, name: str) -> Key:
    found = world.rows("shop_a", "SELECT 1 FROM message_stub WHERE message_id = %s", name)
    return Key("orders", name) if found else world.sent(name)


STATUSES = "SELECT message_id, status FROM message_stub ORDER BY 1"


@pytest.mark.parametrize("now", ["another", "went back", "another table", "away"])
def test_nothing_is_promoted_when_a_scanned_store_is_another_server_went_back_or_is_away(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    control, run = judged(world, spark)
    connections = world.connections
    if now == "away":
        connections = Connections(
            resolver={**world.urls, "billing_db": "postgresql://x@127.0.0.1:1/gone"}.get
        )
    elif now == "another":
        world.rows(
            "control", "UPDATE staged_read SET lineage = '1' || lineage WHERE lineage IS NOT NULL"
        )
    elif now == "another table":  # as after a dump was read back
        world.rows("billing_db", "VACUUM FULL consumer_log")
    else:  # the server has come less far than the one that was scanned
        world.rows(
            "control",
            r"UPDATE staged_read SET lineage = regexp_replace(lineage, '^(\S+ \S+) \S+', '\1 FFFF/0')",
        )
    with pytest.raises(StoreUnavailable, match="billing_db"):
        promote(world.settings, connections, control, run)
    close_run(control, run, "failed", Counts())
    control.close()
    assert world.rows("shop_a", STATUSES) == [("done", "pending"), ("lost", "pending")]
    assert world.rows("control", "SELECT message_id FROM resend_request") == []
    run_once(world.settings, world.connections, lambda: spark, lambda *_: None)
    assert world.rows("shop_a", STATUSES) == [("done", "confirmed"), ("lost", "pending")]
    assert world.rows("control", "SELECT message_id FROM resend_request") == [("lost",)]


@pytest.mark.parametrize("status", ["confirmed", "exhausted"])
def test_a_promotion_that_is_finished_later_leaves_due_what_a_store_may_have_lost_since(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """`exhausted` too: it says that every other group of the message is done."""
    control, run = judged(world, spark)
    world.rows(
        "control", "UPDATE staged_stub SET new_status = %s WHERE message_id = 'done'", status
    )
    with monkeypatch.context() as patched:
        patched.setattr(
            PostgresStubs, "promote", lambda *_: (_ for _ in ()).throw(OSError("cut off"))
        )
        with pytest.raises(Exception, match="cut off"):
            promote(world.settings, world.connections, control, run)
    close_run(control, run, "failed", Counts())
    control.close()
    world.rows(
        "control", "UPDATE staged_read SET lineage = '1' || lineage WHERE lineage IS NOT NULL"
    )
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", 10**9)
    world.rows("billing_db", "DELETE FROM consumer_log")  # what the failover lost
    run_once(world.settings, world.connections, lambda: spark, lambda *_: None)
    assert world.rows("shop_a", STATUSES) == [("done", "pending"), ("lost", "pending")]
    requests = world.rows("control", "SELECT message_id, groups FROM resend_request ORDER BY 1")
    assert ("done", ["billing"]) in requests, "the lost work is found by the later run"


def test_a_proof_over_a_store_that_changed_is_incomplete(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("billing", "shipping"):
        world.log(world_stub(world, "done"), group)
    monkeypatch.setattr(PostgresLogs, "continues", lambda *_: False)
    control = world.control()
    now = datetime.now(UTC)
    run = open_run(
        control,
        "prove",
        scope_now(control, world.settings, "orders", now - timedelta(hours=1), now),
        world.settings,
    )
    assert prove(spark, world.settings, world.connections, control, run).answer is Answer.INCOMPLETE
    control.close()


def test_a_scan_reads_no_more_than_it_is_worth_however_wrong_the_estimate_is(world: System) -> None:
    """The planner's guess may be wrong by any factor, as after a bulk load."""
    world.rows("billing_db", "ALTER TABLE consumer_log SET (autovacuum_enabled = false)")
    world.log(Key("orders", "m-0"), "billing")
    world.rows("billing_db", "ANALYZE consumer_log")
    for number in range(1, 60):
        world.log(Key("orders", f"m-{number}"), "billing")
    since = datetime.now(UTC) - timedelta(days=1)
    with PostgresLogs("billing_db", world.urls["billing_db"]) as logs:
        scan = logs.scan_done({"billing": since}, {"billing": 10.0}, 1)
        assert scan is not None and scan.rows < 10
        found = sum(
            rows
            for part in scan.parts
            for rows in logs.read_part(part, lambda name, table: table.num_rows)
        )
    assert 0 < found <= 21


def test_few_due_are_asked_by_key_without_a_scan(world: System, spark: Any) -> None:
    world.sent("m-1")
    _, counts = staged(world, spark)
    assert counts["asked_by_key"] == 2 and "proven_by_scan" not in counts


def test_the_plan_shows_the_scan_the_shuffle_and_the_cogroup_by_name(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log(world.sent("m-1"), "billing")
    plans: dict[str, str] = {}

    def shown(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def seen(*arguments: Any) -> Any:
            frame = whole(*arguments)
            plans[name] = frame._jdf.queryExecution().toString()
            return frame

        monkeypatch.setattr(module, name, seen)

    shown(read, "scanned_stubs")
    shown(gather, "look_up")
    _, counts = staged(world, spark)
    assert "MapInArrow scan_stubs(" in plans["scanned_stubs"]
    assert "FlatMapCoGroupsInArrow" in plans["look_up"] and "prove_and_ask(" in plans["look_up"]
    assert "MapInArrow scan_logs(" in plans["look_up"]
    # A task for each bucket, and no second shuffle for the cogroup.
    shuffle = "Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(bucket"
    assert plans["look_up"].count(shuffle) == plans["look_up"].count("Exchange ") == 2
    assert 0 < counts["scan_estimate"] < counts["scan_worth"], (
        "the run does not show why it scanned"
    )
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    descriptions = [jobs.apply(at).description() for at in range(jobs.size())]
    shown_as = {text.get() for text in descriptions if text.isDefined()}
    assert {
        "stub scan of shard shop_a",
        "log scan, cogroup by bucket, the rest by key",
        "rule and staging",
    } <= shown_as


def test_a_group_whose_scan_would_cost_more_is_asked_by_key_and_the_run_shows_how_many_were_scanned(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sent("due")
    for number in range(40):  # what the window holds beside it
        world.log(Key("orders", f"other-{number}"), "billing")
    world.log(Key("orders", "due"), "shipping")
    for store in ("billing_db", "shipping_db"):
        world.rows(store, "ANALYZE consumer_log")
    monkeypatch.setattr(scan_logs, "ROWS_FOR_A_KEY", 8)
    _, counts = staged(world, spark)
    assert (counts["groups_scanned"], counts["scan_worth"]) == (1, 2 * 8)
    assert counts["scan_estimate"] >= 41, "of both groups: billing's is too many"
    assert counts["proven_by_scan"] == counts["asked_by_key"] == 1


def test_a_proof_says_the_same_with_a_scan_and_by_key_and_shows_how_it_read(
    world: System, spark: Any, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 5)
    now = datetime.now(UTC)
    start = now - timedelta(hours=1)

    def proven() -> tuple[Any, dict[str, int]]:
        control = world.control()
        run = open_run(
            control,
            "prove",
            scope_now(control, world.settings, "orders", start, now),
            world.settings,
        )
        proof = prove(spark, world.settings, world.connections, control, run)
        close_run(control, run, "done", Counts())
        control.close()
        return (proof.answer, proof.stubs, proof.counts, proof.lost), counts_of(proof)

    by_scan, scanned = proven()
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", 10**9)
    by_key, asked = proven()
    assert by_scan == by_key and by_key[3], "a window that shows little"
    assert asked["asked_by_key"] == asked["deliveries"] and "scan_worth" not in asked
    assert scanned["asked_by_key"] + scanned["proven_by_scan"] == asked["asked_by_key"]
    assert scanned["proven_by_scan"] > 20 and scanned["scan_estimate"] < scanned["scan_worth"]


LOST = {("lost-a", "billing"): "LOST", ("lost-b", "billing"): "LOST"}
NOBODY_KNOWS = dict.fromkeys(
    ((f"{what}-{shard}", "billing") for what in ("done", "lost") for shard in "ab"), "UNKNOWN"
)
PASSES = {
    "stubs": (judging, "read_due"),
    "look": (gather, "read_groups"),
    "logs": (gather, "look_up"),
    "floors": (gather, "read_after_logs"),
    "rule": (judging, "judge_and_stage"),
}
"""What each pass of a judgement begins with."""
AWAY = {
    ("shop_a", "stubs"): {("lost-b", "billing"): "LOST"},
    ("shop_a", "look"): {**LOST, ("lost-a", "billing"): "UNKNOWN"},
    ("shop_a", "logs"): LOST,
    ("shop_a", "floors"): LOST,
    ("shop_a", "rule"): LOST,
    ("billing_db", "stubs"): NOBODY_KNOWS,
    ("billing_db", "look"): NOBODY_KNOWS,
    ("billing_db", "logs"): NOBODY_KNOWS,
    # What is done was read before; that the rest was not purged, nobody can say.
    ("billing_db", "floors"): dict.fromkeys(LOST, "UNKNOWN"),
    ("billing_db", "rule"): LOST,
}
"""A database that is away from the beginning of a pass on, and every verdict but CONFIRMED."""


def one_lost_on_each_shard(world: System) -> None:
    for shard in "ab":
        for what in ("done", "lost"):
            key = world.sent(f"{what}-{shard}", shard=f"shop_{shard}")
            for group in ("billing", "shipping"):
                if (what, group) != ("lost", "billing"):
                    world.log(key, group)
    for group in ("billing", "shipping"):
        world.pass_over(group)


@contextmanager
def goes_away(
    postgres: Postgres, world: System, database: str, at: str, patch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The database refuses everybody from the beginning of this pass until the end."""
    name = world.urls[database].rsplit("/", 1)[1]
    allow = f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS'
    module, begins = PASSES[at]
    whole = getattr(module, begins)
    with closing(psycopg2.connect(postgres.admin_dsn())) as admin, admin.cursor() as cursor:
        admin.autocommit = True

        def go(*given: Any, **named: Any) -> Any:
            cursor.execute(f"{allow} false")
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                (name,),
            )
            return whole(*given, **named)

        try:
            with patch.context() as patched:
                patched.setattr(module, begins, go)
                yield
        finally:
            cursor.execute(f"{allow} true")


@pytest.mark.parametrize(("database", "at"), AWAY, ids="-".join)
def test_a_store_that_goes_away_in_any_pass_makes_nothing_lost_and_costs_its_own_deliveries_alone(
    world: System,
    postgres: Postgres,
    spark: Any,
    in_parts: None,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    at: str,
) -> None:
    one_lost_on_each_shard(world)
    with goes_away(postgres, world, database, at, monkeypatch):
        ((verdicts, _, _), broken), counts = staged(world, spark)
    assert {(row[1], row[2]): row[4] for row in verdicts} == AWAY[database, at]
    assert broken == []
    assert counts["deliveries"] == (4 if (database, at) == ("shop_a", "stubs") else 8)
    kept = {"shop_a": "shard shop_a", "billing_db": "store billing_db"}[database]
    told = world.rows("control", "SELECT subject FROM staged_read WHERE NOT complete")
    assert (kept in {subject for (subject,) in told}) == (AWAY[database, at] != LOST)


@pytest.mark.parametrize("at", ["look", "rule"])
def test_a_control_database_that_goes_away_in_a_pass_leaves_nothing_to_promote(
    world: System,
    postgres: Postgres,
    spark: Any,
    in_parts: None,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    one_lost_on_each_shard(world)
    with (
        pytest.raises(Exception, match=r"control|terminat|connection|closed"),
        goes_away(postgres, world, "control", at, monkeypatch),
    ):
        staged(world, spark)
    assert world.rows("control", "SELECT count(*) FROM staged_stub") == [(0,)]
    assert world.rows("control", "SELECT count(*) FROM staged_count") == [(0,)]
    world.rows("control", "DELETE FROM duty_lease")  # the run that died was silent for long enough
    ((verdicts, _, _), _), _ = staged(world, spark)
    assert {(row[1], row[2]): row[4] for row in verdicts} == LOST
