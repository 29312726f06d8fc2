"""Message tables in a lake, read by a real Spark: what a snapshot proves, up to when it denies, and what it costs when it is broken."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from backstop.brokers.protocol import Retries
from backstop.brokers.redis_streams import RedisStreams
from backstop.checks.run import run_suites
from backstop.config.mapped import LogMapping, StubMapping
from backstop.evidence.judge_by_key import Judge
from backstop.evidence.read import read_groups
from backstop.evidence.sources import Sources
from backstop.model.records import EARLIEST, LATEST, Counts, Key
from backstop.reconcile.answer_proof import Answer
from backstop.reconcile.record import record_looks
from backstop.reconcile.run_proof import run_proof
from backstop.runs.duty import RunCheck
from backstop.runs.run import Run, close_run, open_run
from backstop.stores.lake.columns import nameless_rows, stub_rows, type_of
from backstop.stores.lake.stores import LakeLogs
from backstop.stores.open import open_mapped_logs, open_mapped_stubs
from backstop_lab.servers import fetch_iceberg
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from lake_world import CONSUMER, INBOX, OUTBOX, OWN, PRODUCER, Lake, lake
from system import build_template

pytestmark = pytest.mark.nightly

FORMATS = ("iceberg", "parquet")
ONE_NOW = ("iceberg", pytest.param("parquet", marks=pytest.mark.soak))
"""What the formats share: Parquet's turn is in the long tests."""
LAKE = {"dialect": "iceberg", "tables": ["theirs.outbox"]}
Open = Callable[..., Any]
WAITS = ("BACKLOGGED", "ahead_of_group")
LOST = ("LOST", "passed_over")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    folder = tmp_path_factory.mktemp("lake")
    with (
        Postgres(folder / "pg") as postgres,
        Valkey(folder / "valkey", appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


@pytest.fixture
def opened(servers: tuple[Postgres, Valkey], spark: Any, tmp_path: Path) -> Open:
    return lambda dialect, **changes: lake(servers, spark, dialect, tmp_path / "lake", **changes)


def learned(shop: Lake) -> Lake:
    """What a run leaves that looked at the tables and the broker and found one message done: absence counts from now on. The run
    itself is in the first test."""
    done = shop.receive(shop.sent())
    shop.commit()
    settings, connections = shop.system.settings, shop.system.connections
    with closing(shop.system.control()) as control, Sources(settings, connections) as sources:
        run = open_run(control, "reconcile", "*", settings)
        with control, control.cursor() as cursor:
            looks = read_groups(sources, cursor, run.as_of, {"orders"}, set())
            record_looks(cursor, run, looks)
        close_run(control, run, "done", Counts())
    assert not sources.unreachable
    shop.system.rows(
        "control",
        "INSERT INTO mapped_look (store, mapping, mapped_at, server, began_at, ended_at, window_from, rows_read, left_out, run_id)"
        " SELECT 'shop', %s, now(), '', now(), now(), now() - interval '1 day', 1, 0, %s",
        settings.producers["shop"].mapping.fingerprint,  # type: ignore[union-attr]
        run.run_id,
    )
    shop.system.rows(
        "control",
        "INSERT INTO mapped_stub (store, topic, message_id, state, row_version, created_at, first_seen_at, state_seen_at, last_seen_at,"
        " status, next_check_at) SELECT 'shop', 'orders', %s, 'sent', '', now(), now(), now(), now(), 'confirmed', now()",
        done,
    )
    counts_absence(shop)
    return shop


def counts_absence(shop: Lake) -> None:
    shop.system.rows(
        "control",
        "INSERT INTO mapped_log_proof (store, mapping, consumer_group, topic) SELECT 'billing_db', %s, 'billing', 'orders'",
        shop.system.settings.consumers["billing_db"].mapping.fingerprint,  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("dialect", FORMATS)
def test_a_lake_tells_lost_rolled_back_under_way_and_done_apart(opened: Open, dialect: str) -> None:
    with opened(dialect) as shop:
        shop.by_spark = True
        shop.receive(shop.sent())
        shop.commit()
        shop.run()  # it learns that what was done is found here
        lost, under_way, done, begun = shop.sent(), shop.promise(), shop.sent(), shop.sent()
        shop.receive(done)
        shop.receive(begun, "begun")
        shop.commit()
        shop.run()  # met
        shop.run()  # the broker is looked at: every group is past all of it
        found = shop.verdicts()
        assert found[lost] == WAITS, "the snapshot is older than what was seen of the broker"
        assert found[done] == ("confirmed", "")

        shop.commit()
        shop.run()
        assert {one: found for one, found in shop.verdicts().items() if one != done} == {
            next(iter(shop.outbox)): ("confirmed", ""),
            lost: LOST,
            under_way: WAITS,
            begun: ("IN_PROGRESS", "lease_without_expiry"),
        }


@pytest.mark.parametrize("dialect", ONE_NOW)
def test_work_that_is_done_after_a_snapshot_is_never_lost(opened: Open, dialect: str) -> None:
    with opened(dialect) as shop:
        learned(shop)
        late = shop.sent()
        shop.commit()
        shop.run()
        shop.receive(late)  # and acknowledged; the lake does not have it yet
        for _ in range(2):
            shop.run()
            assert shop.verdicts()[late] == WAITS
        shop.commit("inbox")
        shop.run()
        assert shop.verdicts()[late] == ("confirmed", "")


def another_job_writes(inbox: Path) -> None:
    """It has deleted a partition, and not ended."""
    (inbox / "day=2" / "_temporary" / "0").mkdir(parents=True)


def another_job_has_written(inbox: Path) -> None:
    """A partition, with a marker of its own."""
    later = (inbox / "_SUCCESS").stat().st_mtime + 1
    for file in inbox.glob("*.parquet"):
        os.utime(file, (later, later))


@pytest.mark.parametrize("happens", [another_job_writes, another_job_has_written])
def test_a_directory_that_is_rewritten_below_its_marker_denies_nothing(
    opened: Open, happens: Callable[[Path], None]
) -> None:
    with opened("parquet") as shop:
        learned(shop)
        sent, done = shop.sent(), shop.sent()
        shop.receive(done)
        shop.commit()
        happens(shop.folder / "theirs" / "inbox")
        shop.run()
        unknown = ("UNKNOWN", "progress_unknown")
        assert (shop.verdicts()[sent], shop.verdicts()[done]) == (unknown, ("confirmed", ""))
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            (snapshot,) = [one for one in logs.check() if one.subject.endswith(": snapshot")]
        assert "denies nothing" in snapshot.says and not snapshot.good


@pytest.mark.parametrize(
    ("row", "is_text"), [('{"id": "7"}', True), ('{"id": 7}', False), ("no json", False)]
)
def test_an_id_in_json_that_is_a_number_may_be_of_any_message(
    spark: Any, row: str, is_text: bool
) -> None:
    mapping = LogMapping.model_validate(
        {
            "dialect": "iceberg",
            "tables": ["inbox"],
            "delay": "1m",
            "times": "instant",
            "message_id": "payload.id",
            "received_at": "at",
        }
    )
    frame = spark.createDataFrame([(row,)], "payload string")
    found = spark.sql(nameless_rows(mapping, frame.schema, "billing"), rows=frame).collect()
    assert found == ([] if is_text else [(1,)])


def test_an_id_in_a_struct_must_be_a_text_as_a_column_must(spark: Any) -> None:
    (field,) = spark.sql("SELECT named_struct('id', 7L, 'name', 'm') AS payload").schema.fields
    types = {field.name: field.dataType}
    assert [type_of(types, name).typeName() for name in ("payload.id", "payload.name")] == [
        "long",
        "string",
    ]


def test_a_version_is_made_of_all_that_has_a_hash_however_deep_a_map_stands(spark: Any) -> None:
    words = "map<string, string>"
    schema = (
        f"{OUTBOX}, words {words}, details struct<count: int, words: {words}, deep: struct<`a.b`: int,"
        f" words: {words}>>, list array<{words}>, tags array<struct<tag: string>>"
    )
    now = datetime.now(UTC)
    map_of = {"a": "b"}

    def versions(*rows: tuple[Any, ...]) -> list[str]:
        made = [("m", "orders", "sent", now, "{}", map_of, *row) for row in rows]
        frame = spark.createDataFrame(made, schema)
        sql = stub_rows(StubMapping.model_validate({**PRODUCER, **LAKE}), frame.schema)
        return [row["row_version"] for row in spark.sql(sql, rows=frame).collect()]

    before = ((1, map_of, (1, map_of)), [map_of], [("x",)])
    found = versions(
        before,
        before,
        ((2, map_of, (1, map_of)), *before[1:]),
        ((1, map_of, (2, map_of)), *before[1:]),
        (*before[:2], [("y",)]),
        (None, *before[1:]),
    )
    assert found[0] == found[1] and len({*found}) == 5, found


def test_a_declared_delay_keeps_a_message_waiting(opened: Open) -> None:
    with opened("parquet", consumer={"delay": "2m"}) as shop:
        learned(shop)
        minutes_earlier(shop)
        sent = shop.sent()
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        shop.run()
        assert shop.verdicts()[sent] == WAITS, "it may have been done, and not have arrived"
        minutes_earlier(shop)
        shop.run()
        assert shop.verdicts()[sent] == LOST


def minutes_earlier(shop: Lake) -> None:
    """As if the broker had been looked at earlier; what was seen of it stays."""
    shop.system.rows(
        "control", "UPDATE progress_history SET recorded_at = recorded_at - interval '3 minutes'"
    )


LOGGED = (None, "begun", "odd", "groupless", "failed", "done")


def verdict_of(row: str, log: str | None) -> str:
    if log == "done":
        return "confirmed"
    if log in ("begun", "odd", "groupless"):
        return "IN_PROGRESS"
    if row == "new":
        return "BACKLOGGED"
    return "STALLED" if log == "failed" else "LOST"


@pytest.mark.parametrize("dialect", FORMATS)
def test_the_truth_table_holds_for_each_state_of_a_row_and_of_its_log(
    opened: Open, dialect: str
) -> None:
    with opened(dialect) as shop:
        learned(shop)
        made = {shop.promise(row): (row, log) for row in ("new", "sent", "odd") for log in LOGGED}
        past = datetime.now(UTC) - timedelta(minutes=1)
        for message_id, (_, log) in made.items():
            if log is not None:
                group, state = (None, "done") if log == "groupless" else ("billing", log)
                shop.receive(message_id, state, group)
                shop.inbox[message_id] = (*shop.inbox[message_id][:4], past)
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        shop.run()
        found = shop.verdicts()
        expected = {one: verdict_of(*states) for one, states in made.items()}
        assert {one: found.get(one, ("broken",))[0] for one in made} == {
            one: "broken" if made[one][0] == "odd" else verdict for one, verdict in expected.items()
        }
        with (
            closing(shop.system.control()) as control,
            Judge(shop.system.settings, shop.system.connections, control) as judge,
        ):
            by_key = judge.judge([Key("orders", one) for one in made if made[one][0] != "odd"])
        assert {one.message_id: str(one.verdict).upper() for one in by_key} == {
            one: verdict.upper() for one, verdict in expected.items() if made[one][0] != "odd"
        }, "by key it is the same snapshot"


def test_a_row_is_of_the_one_topic_and_of_the_group_that_can_be_read(opened: Open) -> None:
    theirs = ("orders", "orders_v2", "old")
    named: list[dict[str, str]] = [
        {},
        {"orders": "orders_v2"},
        {"orders": "orders_v2", "orders_v2": "orders"},
        {"old": "orders", "orders": "orders_v2"},
    ]
    with opened("parquet") as shop:
        at = datetime.now(UTC)
        rows: list[tuple[Any, ...]] = [
            (f"m-{name}", name, "billing", "done", at) for name in theirs
        ]

        def logs(topics: dict[str, str]) -> LakeLogs:
            given = {**CONSUMER, "dialect": "parquet", "tables": ["theirs/inbox"], "topics": topics}
            mapping = LogMapping.model_validate(given)
            return LakeLogs("billing_db", shop.url, shop.system.urls["control"], mapping)

        shop.write("inbox", rows, INBOX)
        for topics in named:
            with logs(topics) as inbox:
                true = {
                    (ours, f"m-{name}")
                    for name in theirs
                    if (ours := topics.get(name, None if name in topics.values() else name))
                }
                for asked in (theirs, theirs[::-1], [theirs[0]]):
                    whole = inbox.read_whole({"billing": asked}).collect()
                    keys = [Key(topic, f"m-{name}") for topic in asked for name in theirs]
                    by_key = inbox.log_table("billing", keys).to_pylist()
                    for found in (whole, by_key):
                        assert {(row["topic"], row["message_id"]) for row in found} == {
                            one for one in true if one[0] in asked
                        }, (topics, asked)
                assert inbox.floor("billing") == EARLIEST
        shop.write("inbox", [*rows, (None, "orders", "shipping", "done", at)], INBOX)
        with logs({}) as inbox:
            assert inbox.floor("billing") == EARLIEST
        shop.write("inbox", [*rows, (None, "orders", None, "done", at)], INBOX)
        with logs({}) as inbox:
            assert inbox.floor("billing") == LATEST, "it may be any message of any group"


def test_compaction_and_retention_commit_without_making_a_snapshot_newer(opened: Open) -> None:
    with opened("iceberg") as shop:
        learned(shop)
        sent = shop.sent()
        shop.commit()
        shop.run()
        shop.run()
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            assert isinstance(logs, LakeLogs)
            before = logs.complete_until(datetime.now(UTC) + timedelta(days=1))
            catalog, _, table = shop.table("inbox").partition(".")
            shop.spark.sql(
                f"CALL {catalog}.system.rewrite_data_files(table => '{table.replace('`', '')}',"
                " options => map('rewrite-all', 'true'))"
            ).collect()
            operations = shop.spark.sql(
                f"SELECT operation, snapshot_id FROM {shop.table('inbox')}.snapshots ORDER BY committed_at"
            ).collect()
            assert operations[-1]["operation"] == "replace"
            rewritten = operations[-1]["snapshot_id"]
            assert logs.complete_until(datetime.now(UTC) + timedelta(days=2)) == before

            empty = shop.spark.createDataFrame([], INBOX)
            empty.writeTo(shop.table("inbox")).append()
            assert logs.complete_until(datetime.now(UTC) + timedelta(days=3)) > before, (
                "a writer without data says that it is there"
            )
            shop.spark.sql(
                f"CALL {catalog}.system.rollback_to_snapshot('{table.replace('`', '')}', {rewritten})"
            ).collect()
        shop.run()
        assert shop.verdicts()[sent] == WAITS


ROW_LEVEL = {
    "DELETE, copy-on-write": ("copy-on-write", "DELETE FROM {} WHERE id = '{}'"),
    "UPDATE, copy-on-write": ("copy-on-write", "UPDATE {} SET state = 'gone' WHERE id = '{}'"),
    "UPDATE, merge-on-read": ("merge-on-read", "UPDATE {} SET state = 'gone' WHERE id = '{}'"),
}


def test_erasure_while_the_pipeline_stands_still_makes_nothing_lost(opened: Open) -> None:
    """Spark writes rows again that share a file with what is deleted or changed: an overwrite, and none of its rows are new."""
    with opened("iceberg") as shop:
        learned(shop)
        for message_id in ROW_LEVEL:
            shop.inbox[message_id] = (message_id, "other", "other", "done", datetime.now(UTC))
        late = shop.sent()
        shop.commit()
        shop.run()
        shop.receive(late)  # and acknowledged; the pipeline has not brought it yet
        shop.run()  # the broker is looked at: the group is past it
        table = shop.table("inbox")
        for message_id, (mode, statement) in ROW_LEVEL.items():
            shop.spark.sql(
                f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '2',"
                f" 'write.delete.mode' = '{mode}', 'write.update.mode' = '{mode}')"
            )
            shop.spark.sql(statement.format(table, message_id))
            assert operations(shop)[-1] == "overwrite", message_id
            shop.run()
            assert shop.verdicts()[late] == WAITS, message_id
        shop.commit("inbox")
        assert operations(shop)[-1] == "append"
        shop.run()
        assert shop.verdicts()[late] == ("confirmed", "")


def operations(shop: Lake) -> list[str]:
    rows = shop.spark.sql(
        f"SELECT operation FROM {shop.table('inbox')}.snapshots ORDER BY committed_at"
    )
    return [row["operation"] for row in rows.collect()]


def test_a_snapshot_that_moves_during_a_run_is_read_as_it_was(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("iceberg") as shop:
        learned(shop)
        sent = shop.sent()
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        inner = LakeLogs.read_whole

        def moved(self: LakeLogs, groups: Any) -> Any:
            monkeypatch.setattr(LakeLogs, "read_whole", inner)
            shop.receive(sent)
            shop.commit("inbox")
            return inner(self, groups)

        monkeypatch.setattr(LakeLogs, "read_whole", moved)
        shop.run()
        assert shop.verdicts()[sent] == LOST, "by the snapshot that its progress is compared with"
        shop.run()
        assert shop.verdicts()[sent] == ("confirmed", "")


def break_files(shop: Lake) -> None:
    """As an expiry that does not wait for readers: the files of the snapshot go."""
    for file in (shop.folder / "theirs" / "inbox").rglob("*.parquet"):
        file.unlink()


def in_the_future(shop: Lake) -> None:
    at = datetime.now(UTC).timestamp() + 3600
    os.utime(shop.folder / "theirs" / "inbox" / "_SUCCESS", (at, at))


def other_columns(shop: Lake) -> None:
    shop.write("inbox", [("m", 1)], "identifier string, grp int")


def other_types(shop: Lake) -> None:
    schema = INBOX.replace("id string", "id bigint").replace("at timestamp", "at string")
    shop.write("inbox", [(1, "orders", "billing", "done", "now")], schema)


BROKEN: dict[str, tuple[str, Callable[[Lake], Any], str]] = {
    "no table": (
        "parquet",
        lambda shop: shutil.rmtree(shop.folder / "theirs/inbox"),
        "no _SUCCESS",
    ),
    "no lake": ("iceberg", lambda shop: shutil.rmtree(shop.folder), "is not there"),
    "no marker": (
        "parquet",
        lambda shop: (shop.folder / "theirs/inbox/_SUCCESS").unlink(),
        "no _SUCCESS file",
    ),
    "files gone, Parquet": ("parquet", break_files, "was rewritten, or its snapshot expired"),
    "files gone, Iceberg": ("iceberg", break_files, "was rewritten, or its snapshot expired"),
    "in the future": ("parquet", in_the_future, "ahead of the control database"),
    "other columns": ("parquet", other_columns, "it has no column id, only identifier, grp"),
    "other types": ("parquet", other_types, "id is bigint, and must be a text"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_lake_table_costs_only_itself(opened: Open, case: str) -> None:
    dialect, breaks, says = BROKEN[case]
    with opened(
        dialect,
        producers=OWN,
        also={"shipping_db": {"connection": "shipping_db"}},
        groups={
            group: {"store": f"{group}_db", "progress": "acknowledged"}
            for group in ("billing", "shipping")
        },
        topics={
            "orders": {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "observe"}
        },
    ) as shop:
        shop.receive(shop.sent())
        shop.commit("inbox")
        lost = shop.system.sent("lost")
        for group in ("billing", "shipping"):
            shop.system.pass_over(group)
        shop.run()
        breaks(shop)
        all_due(shop)
        said = shop.run_without()
        assert says in said
        found = shop.system.rows(
            "control",
            "SELECT consumer_group, verdict FROM open_delivery WHERE message_id = %s",
            lost.message_id,
        )
        assert dict(found) == {"billing": "UNKNOWN", "shipping": "LOST"}


def test_a_broken_outbox_costs_only_itself(opened: Open) -> None:
    with opened("parquet", shards=OWN) as shop:
        learned(shop)
        sent = shop.sent()
        shop.commit()
        shop.run()
        known = shop.verdicts()
        shop.write("outbox", [("m", "orders")], "id string, topic string")
        lost = shop.system.sent("lost")
        shop.system.pass_over("billing")
        all_due(shop)
        shop.run_without()
        shop.commit("inbox")
        all_due(shop)
        said = shop.run_without()
        assert "it has no column state" in said
        assert shop.verdicts()[lost.message_id] == LOST
        assert shop.verdicts()[sent] == known[sent], "as the last look knew it"
        shop.commit("outbox")
        shop.run()


def test_what_the_broker_has_removed_since_a_snapshot_is_not_lost(opened: Open) -> None:
    """Its stub has an offset below the first that the broker still has: done and removed after the snapshot, for all that is known."""
    with opened("iceberg", producers=OWN) as shop:
        shop.receive(shop.sent())
        counts_absence(shop)
        shop.system.sent("first")
        shop.system.pass_over("billing")
        shop.commit("inbox")
        shop.run()
        shop.commit("inbox")
        removed = shop.system.sent("removed").message_id
        shop.system.pass_over("billing")
        empty_streams(shop)
        all_due(shop)
        shop.run()
        assert shop.verdicts()[removed] == WAITS
        shop.commit("inbox")
        all_due(shop)
        shop.run()
        assert shop.verdicts()[removed] == LOST


def all_due(shop: Lake) -> None:
    shop.system.rows(
        "shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 minute'"
    )


def empty_streams(shop: Lake) -> None:
    """Retention takes everything that the topic had."""
    import redis

    client = redis.Redis.from_url(shop.system.urls["broker"])
    for key in client.scan_iter("*", _type="stream"):
        client.xtrim(key, maxlen=0, approximate=False)


def test_what_waited_for_another_delivery_before_the_snapshot_is_not_lost(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited when the snapshot was complete, does not wait now, and may have been done in between."""
    waiting = 0
    monkeypatch.setattr(
        RedisStreams,
        "list_retries",
        lambda self, topic, group, since=None: Retries(waiting, None, {}),
    )
    with opened("parquet") as shop:
        learned(shop)
        sent = shop.sent()
        shop.commit()
        waiting = 1
        shop.run()  # met
        shop.run()
        shop.commit()
        waiting = 0
        shop.run()
        assert shop.verdicts()[sent] == WAITS
        shop.commit()
        shop.run()
        assert shop.verdicts()[sent] == LOST


@pytest.mark.parametrize("dialect", ONE_NOW)
def test_a_window_of_the_lake_is_proved_as_far_as_its_snapshot_is_complete(
    opened: Open, dialect: str
) -> None:
    with opened(dialect) as shop:
        learned(shop)
        done, lost = shop.receive(shop.sent()), shop.sent()
        shop.promise("sent", topic="other")
        end = datetime.now(UTC)
        shop.run()
        early = prove(shop, end)
        assert early.answer is Answer.INCOMPLETE
        assert "complete until" in early.sentence, early.sentence
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        proof = prove(shop, end)
        standings = {(one.standing, one.verdict): one.deliveries for one in proof.counts}
        assert sum(proof.stubs.values()) == 3
        assert proof.answer is not Answer.INCOMPLETE, proof.sentence
        assert standings == {("done", "CONFIRMED"): 2, ("lost", "LOST"): 1}, standings
        assert [one[0] for one in proof.lost] == [lost] != [done]


def checked(shop: Lake) -> RunCheck:
    def check(run: Run, suites: Sequence[str]) -> None:
        with TemporaryDirectory() as docs:
            run_suites(suites, shop.system.urls["control"], run.run_id, None, docs)

    return check


def prove(shop: Lake, until: datetime) -> Any:
    return run_proof(
        shop.system.settings,
        shop.system.connections,
        lambda: shop.spark,
        checked(shop),
        "orders",
        until - timedelta(hours=1),
        until,
        folder=None,
        formats=(),
    )


@pytest.mark.parametrize("dialect", ONE_NOW)
def test_each_command_starts_the_spark_that_reads_the_lake(
    opened: Open, dialect: str, tmp_path: Path
) -> None:
    """As a person runs them, each in a process of its own; Iceberg's jar stands in spark-defaults.conf."""
    with opened(dialect) as shop:
        learned(shop)
        done, lost = shop.receive(shop.sent()), shop.sent()
        end = datetime.now(UTC)
        shop.commit()
        cli = commands(shop, tmp_path)
        shop.run()
        shop.run()
        shop.commit()

        _, checked = cli("check")
        found = {one["subject"]: one for one in checked["findings"]}
        assert found["shard shop: snapshot"]["good"] and found["store billing_db: snapshot"]["good"]
        # Alone: no log is found for it.
        code, (story,) = cli("where", "orders", lost)
        assert (code, [one["verdict"] for one in story["deliveries"]]) == (0, ["LOST"]), story
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            found_logs = logs.logs("billing", [Key("orders", done), Key("orders", lost)])
            assert list(found_logs) == [Key("orders", done)]
            assert logs.logs("billing", [Key("orders", lost)]) == {}
        code, proof = cli(
            "prove",
            "orders",
            "--from",
            (end - timedelta(hours=1)).isoformat(),
            "--to",
            end.isoformat(),
        )
        assert (code, [one[0] for one in proof["lost"]]) == (1, [lost]), proof
        ((case_id,),) = shop.system.rows(
            "control",
            "WITH made AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('overdue', 'orders', 'billing', '')"
            " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
            " SELECT case_id, 'shop', 'orders', %s, 'billing' FROM made RETURNING case_id",
            lost,
        )
        code, decided = cli("cases", "decide", str(case_id), "discard", "--why", "it was a test")
        assert (code, decided["counts"]) == (0, {"discarded": 1}), decided


def commands(shop: Lake, folder: Path) -> Callable[..., tuple[int, Any]]:
    """What runs `backstop ... --json` in a process of its own: its exit code, and what it printed."""
    settings = folder / "backstop.yaml"
    settings.write_text(shop.system.settings.model_dump_json(exclude_unset=True))
    defaults = folder / "spark-defaults.conf"
    defaults.write_text(f"spark.jars {fetch_iceberg.jar()}\n")
    own = {
        "BACKSTOP_CONFIG": str(settings),
        # By its name: a folder of configuration would begin Java's class path, and then Spark's shared classes do not fit it.
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {defaults} pyspark-shell",
        **{f"AIRFLOW_CONN_{name.upper()}": url for name, url in shop.system.urls.items()},
    }
    given = {
        name: value
        for name, value in os.environ.items()
        if name != "PYSPARK_GATEWAY_PORT" and name != "PYSPARK_GATEWAY_SECRET"
    }

    def run(*arguments: str) -> tuple[int, Any]:
        ended = subprocess.run(
            [sys.executable, "-m", "backstop.cli", *arguments, "--json"],
            env={**given, **own},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.stdout, ended.stderr[-3000:]
        return ended.returncode, json.loads(ended.stdout)

    return run


def test_a_proof_takes_a_row_for_sent_no_earlier_than_the_commit_that_says_so(
    opened: Open,
) -> None:
    """An UPDATE brings the state after the last append, and after the broker was read: nobody has passed the message."""
    with opened("iceberg") as shop:
        learned(shop)
        shop.promise()
        end = datetime.now(UTC)
        shop.commit("outbox")
        shop.run()
        shop.run()
        shop.commit("inbox")
        shop.spark.sql(f"UPDATE {shop.table('outbox')} SET state = 'sent' WHERE state = 'new'")
        proof = prove(shop, end)
        assert sum(proof.stubs.values()) == 2 and proof.answer is not Answer.INCOMPLETE, proof
        assert not proof.lost


def test_what_may_have_gone_to_a_broker_that_the_topic_left_is_not_lost(opened: Open) -> None:
    with opened("parquet") as shop:
        learned(shop)
        lost = shop.sent()
        end = datetime.now(UTC)
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        shop.system.rows(
            "control", "INSERT INTO topic_broker VALUES ('orders', 'left', '-infinity', now())"
        )
        # As if the queues of the present broker had been met after that.
        shop.system.rows("control", "UPDATE queue_epoch SET accepted = false")
        proof = prove(shop, end)
        assert not proof.lost and proof.answer is not Answer.NOTHING_LOST, proof.sentence
        shop.run()
        assert shop.verdicts()[lost] == ("UNKNOWN", "new_epoch")
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            key = Key("orders", lost)
            (row,) = stubs.stub_table([key]).to_pylist()
            went_to = stubs.attempt_table([key]).column("broker").to_pylist()
        assert not row["first_to_all"] and sorted(went_to) == ["embedded", "left"]


def test_a_proof_needs_rows_that_stay(opened: Open) -> None:
    with opened("parquet", producer={"kept": "2h"}) as shop:
        learned(shop)
        proof = run_proof(
            shop.system.settings,
            shop.system.connections,
            lambda: shop.spark,
            checked(shop),
            "orders",
            datetime.now(UTC) - timedelta(hours=3),
            datetime.now(UTC) - timedelta(hours=1),
            folder=None,
            formats=(),
        )
        assert proof.answer is Answer.INCOMPLETE
        assert "some of the window may be gone" in proof.sentence


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_random_deliveries_are_lost_only_where_they_are(opened: Open, seed: int) -> None:
    """Messages are sent, done, kept back and lost at random between random commits of the two tables: after each run nothing that was
    done, or is still to come, is called lost, and at the end everything has the verdict that is true."""
    chance = random.Random(seed)
    with opened(chance.choice(FORMATS)) as shop:
        learned(shop)
        fate: dict[str, str] = {}
        for _ in range(5):
            for _ in range(chance.randrange(6)):
                fate[shop.promise()] = "open"
            for message_id in [one for one, what in fate.items() if what == "open"]:
                if chance.random() < 0.4:
                    shop.send(message_id)
                    fate[message_id] = chance.choice(("done", "done", "lost", "failed"))
                    if fate[message_id] != "lost":
                        shop.receive(message_id, fate[message_id])
            shop.commit(*chance.choice((("outbox",), ("inbox",), ("outbox", "inbox"))))
            if chance.random() < 0.5:
                shop.run()
            found = shop.verdicts()
            for message_id, what in fate.items():
                verdict = found.get(message_id, ("", ""))[0]
                if verdict in ("LOST", "UNSENT"):
                    assert what == "lost", (message_id, what, verdict)
        shop.commit()
        shop.run()
        shop.run()
        shop.commit()
        shop.run()
        truth = {"done": "confirmed", "lost": "LOST", "failed": "STALLED"}
        for message_id, what in fate.items():
            if what in truth:
                verdict = shop.verdicts()[message_id][0]
                assert verdict == truth[what] or (what, verdict) == ("failed", "IN_PROGRESS")


@pytest.mark.parametrize("dialect", FORMATS)
def test_check_says_what_a_lake_table_can_prove_and_until_when(opened: Open, dialect: str) -> None:
    with opened(dialect, consumer={"delay": "2m", "kept": "30d"}) as shop:
        shop.receive(shop.sent())
        shop.commit()
        settings, connections = shop.system.settings, shop.system.connections
        with (
            open_mapped_stubs(settings, connections, "shop") as stubs,
            open_mapped_logs(settings, connections, "billing_db") as logs,
        ):
            found = {one.subject: one for one in [*stubs.check(), *logs.check()]}
            assert all(one.good for one in found.values()), found
            assert "UNSENT, LOST and CONFIRMED" in found["shard shop: proves"].says
            assert "never" in found["store billing_db: repair"].says
            assert "with a delay of 2m" in found["store billing_db: snapshot"].says
            assert "rows stay 30d" in found["store billing_db: proves"].says
            assert "none yet" in found["shard shop: looks"].says
            updates = found["shard shop: updates"].says
            assert "counts as sent again" in updates and "older than 7d" in updates

            shop.system.rows(
                "control",
                "INSERT INTO mapped_look (store, mapping, mapped_at, server, began_at, ended_at, window_from, rows_read, left_out, run_id)"
                " SELECT 'shop', '', now(), '', now(), now(), now(), 3, 2, 1",
            )
            (looks,) = [one for one in stubs.check() if one.subject == "shard shop: looks"]
            assert not looks.good and "3 rows" in looks.says and "2 left out" in looks.says

            shop.write("inbox", [(1, "orders")], "id int, topic string")
            (columns,) = [one for one in logs.check() if "columns" in one.subject]
            assert not columns.good and "it has no column grp, only id, topic" in columns.says


def test_a_log_that_is_faster_than_the_lake_is_no_orphan(opened: Open) -> None:
    own = {
        "shipping": {"store": "shipping_db", "progress": "acknowledged"},
        "billing": {"store": "billing_db", "progress": "acknowledged"},
    }
    orders = {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "observe"}
    also = {"shipping_db": {"connection": "shipping_db"}}
    with opened("parquet", also=also, groups=own, topics={"orders": orders}) as shop:
        learned(shop)
        late = shop.sent()  # not committed to the lake yet
        shop.system.log(Key("orders", late), "shipping", first_received_at="2026-01-01")
        shop.run()
        orphans = "SELECT message_id FROM anomaly WHERE kind = 'ORPHAN'"
        assert shop.system.rows("control", orphans) == []
