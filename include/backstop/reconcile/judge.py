"""Judges every due delivery in Spark and stages the answers: read, look, look up, decide, stage.

    stubs, attempts | progress | offsets, retry depth | logs | log floors, dead letters  ->  verdict.sql  ->  staging

The order of reading is what makes the rule safe while messages flow; each bar is a read that ended before the next began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.reconcile import record
from backstop.reconcile.lookup import arrow_schema, with_logs
from backstop.reconcile.quarantine import quarantine_logs, quarantine_stubs
from backstop.reconcile.read import read_due
from backstop.reconcile.stage import STAGED_STUB, STAGED_VERDICT, stage_frame
from backstop.records import Counts
from backstop.runs.run import Run, begin_stage, hold
from backstop.stores.protocol import Scope
from backstop.verdicts import frames, look
from backstop.verdicts.sources import Sources

_VERDICTS = load("backstop.verdicts", "queries.sql")
_SQL = load("backstop.reconcile", "queries.sql")
_WORTH_COMPILING = 50_000
"""With fewer stubs than this, compiling the rule to bytecode costs more (seconds of every run) than it saves."""


@dataclass(slots=True)
class Phases:
    """Seconds of each phase, by name."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=monotonic)

    def end(self, name: str) -> None:
        """The phase that just ended was `name`."""
        now = monotonic()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._since, 3)
        self._since = now


def judge(
    spark: SparkSession, settings: Settings, connections: Connections, control: Any, run: Run, scope: Scope,
    *, say: Callable[[str], None] = lambda _: None,
) -> Counts:  # fmt: skip
    """Stages verdicts, stub outcomes and counts of everything due at `run.as_of`; returns the counts by verdict.

    Every write holds the run's token; a judge that was taken over raises RunLost. What did not answer is in the table
    `staged_read` as incomplete, and the deliveries that need it are UNKNOWN.
    """
    phases, counts = Phases(), Counts()
    stage = begin_stage(control, run)
    _compile(spark, False)
    partitions = max(2, spark.sparkContext.defaultParallelism) if hasattr(spark, "sparkContext") else 8
    with Sources(settings, connections) as sources:
        due = read_due(spark, settings, sources, run.as_of, scope, partitions)
        stubs, broken, read = quarantine_stubs(due.stubs, settings, control, run)
        topics = {one.topic for one in read if one.sound}
        _compile(spark, sum(one.rows for one in read) >= _WORTH_COMPILING)
        phases.end("read")
        say("read")

        _view(stubs, "stub")
        with control, control.cursor() as cursor:
            looks = look.look_at_groups(sources, cursor, run.as_of, topics)
            look.look_at_shards(looks, sources, cursor, due.shards)
        with control, control.cursor() as cursor:
            hold(cursor, run)
            record.record_looks(cursor, run, looks)
        _rows(spark, "policy", frames.POLICY, frames.policy_rows(settings, topics))
        _rows(spark, "group_tag", frames.GROUP_TAG, frames.group_tag_rows(settings))
        _rows(spark, "start_offset", frames.START_OFFSET, frames.start_offset_rows(settings))
        phases.end("look")
        say("look")

        owed = spark.sql(frames.portable_sql("deliveries"))
        deliveries = with_logs(owed, settings, connections).localCheckpoint(eager=True)
        look.look_after_logs(looks, sources)
        quarantine_logs(deliveries, settings, control, run)
        phases.end("lookup")
        say("lookup")

        with control, control.cursor() as cursor:
            cursor.execute(_VERDICTS["every_decision"], {"topics": sorted(topics)})
            decisions = [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
        _view(deliveries, "delivery")
        _view(due.attempts, "attempt")
        _rows(spark, "instant", frames.INSTANT, [{"as_of": frames.micros(run.as_of)}])
        _rows(spark, "group_state", frames.GROUP_STATE, looks.group_state_rows())
        _rows(spark, "shard_state", frames.SHARD_STATE, looks.shard_state_rows())
        _rows(spark, "progress", frames.PROGRESS, looks.progress_rows())
        _rows(spark, "dead_letter", frames.DEAD_LETTER, looks.dead)
        _rows(spark, "decision", frames.DECISION, decisions)
        _rows(spark, "no_taker", frames.NO_TAKER, frames.no_taker_rows(settings))
        judged = spark.sql(frames.portable_sql("verdict")).localCheckpoint(eager=True)
        _view(judged, "judged")
        phases.end("judge")
        say("judge")

        by_verdict = judged.groupBy("topic", "consumer_group", "verdict").agg(
            f.count("*").alias("deliveries"),
            f.sum(f.col("eligible").cast("bigint")).alias("eligible"),
            f.sum(f.col("newly").cast("bigint")).alias("newly"),
        ).collect()  # fmt: skip
        kept = judged.where("verdict NOT IN ('CONFIRMED', 'WAITING') OR case_kind IS NOT NULL").withColumn(
            "evidence", f.to_json(f.struct(*frames.EVIDENCE))
        )
        stage_frame(kept, "staged_verdict", STAGED_VERDICT, run.run_id, stage, settings, connections)
        outcomes = spark.sql(frames.portable_sql("outcome")).select(*STAGED_STUB).union(broken.select(*STAGED_STUB))
        stubs_read = stage_frame(outcomes, "staged_stub", STAGED_STUB, run.run_id, stage, settings, connections)
        with control, control.cursor() as cursor:
            hold(cursor, run)
            for row in by_verdict:
                cursor.execute(_SQL["stage_count"], {"run_id": run.run_id, "stage": stage, **row.asDict()})
            subjects = {f"shard {name}": sum(one.rows for one in read if one.shard == name) for name in settings.producers}
            missed = {**_doubtful_clocks(settings, looks, sources.unreachable), **sources.unreachable}
            for subject in sorted({*subjects, *missed}):
                detail = missed.get(subject)
                cursor.execute(_SQL["stage_read"], {
                    "run_id": run.run_id, "stage": stage, "subject": subject, "rows_read": subjects.get(subject, 0),
                    "complete": detail is None, "detail": detail,
                })  # fmt: skip
            phases.end("stage")
            cursor.execute(_SQL["save_phases"], {"run_id": run.run_id, "phases": record.as_json(phases.seconds)})
        say("stage")
    counts.add("stubs_read", stubs_read)
    for row in by_verdict:
        counts.add("deliveries", row["deliveries"])
        counts.add(row["verdict"].lower(), row["deliveries"])
        counts.add("eligible", row["eligible"])
    counts.add("unreachable", len(sources.unreachable))
    return counts


def _doubtful_clocks(settings: Settings, looks: look.Looks, away: Mapping[str, str]) -> dict[str, str]:
    """Who answered, and is too far from the control database's clock to judge by; what is away is no clock's fault."""
    problems: dict[str, str] = {}
    for (topic, group), seen in looks.groups.items():
        store = f"store {settings.groups[group].store}"
        if not seen.clock_good and topic in looks.queues and store not in away:
            problems[f"clock of group {group}"] = "the clocks of its store, its broker and the control database differ"
    for shard, (clock_good, _) in looks.shards.items():
        if not clock_good and f"shard {shard}" not in away:
            problems[f"clock of shard {shard}"] = "its clock and the control database's differ"
    return problems


def _compile(spark: SparkSession, worth_it: bool) -> None:
    spark.conf.set("spark.sql.codegen.wholeStage", str(worth_it).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if worth_it else "NO_CODEGEN")


def _view(frame: DataFrame, name: str) -> None:
    frame.createOrReplaceTempView(name)


def _rows(spark: SparkSession, name: str, columns: frames.Columns, rows: list[frames.Row]) -> None:
    # An Arrow table becomes a local relation, whose size Spark knows: it is broadcast, and needs no job of its own.
    table = pa.Table.from_pylist([{column: row[column] for column in columns} for row in rows], arrow_schema(columns))
    _view(spark.createDataFrame(table), name)
