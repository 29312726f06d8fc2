"""Judges every due delivery in Spark and stages the answers; nothing is promoted here.

stubs = mapInArrow(scan_stubs)                                             read.py, a scan and a checkpoint a shard
logs  = mapInArrow(scan_logs)                                              scan_logs.py, where much is due
held  = stubs.groupBy("bucket").cogroup(logs.groupBy("bucket")).applyInArrow(prove_and_ask)   lookup.py, checkpointed
                                                                           judge_proven.py: what is all done is judged here
held.mapInArrow(judge)                                                     judge_and_stage.py: verdict.sql, outcome.sql
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.recover_attempts import recover_attempts
from backstop.evidence.sources import Sources
from backstop.model.records import Counts
from backstop.reconcile import record
from backstop.reconcile.gather import Phases, gather
from backstop.reconcile.judge_and_stage import judge_and_stage
from backstop.reconcile.lineage import topics_of
from backstop.reconcile.look_at_mapped import look_at_mapped, prove_mapped_logs
from backstop.reconcile.packets import describe
from backstop.reconcile.read import read_due
from backstop.reconcile.stage import stage_stubs
from backstop.runs.run import Run, begin_stage, finish_stage, hold
from backstop.spark.cores import cores_of
from backstop.sql.named import load
from backstop.stores.protocol import Scope

_SQL = load("backstop.reconcile", "queries.sql")


def judge(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    scope: Scope,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Counts:
    """Stages verdicts, stub outcomes and counts of everything due at `run.as_of`; returns the counts by verdict.

    Every write holds the run's token; a judge that was taken over, or comes too late, raises RunLost. What did not answer is in the table
    `staged_read` as incomplete, and the deliveries that need it are UNKNOWN.
    """
    phases, counts = Phases(run.phase, say), Counts()
    phases.begin("read")
    stage = begin_stage(control, run)
    partitions = max(2, cores_of(spark))
    with Sources(settings, connections) as sources:
        if not run.dry_run:
            # Again before the read, because time has passed since the run began; what fails here makes the run incomplete.
            recovered = recover_attempts(sources)
            counts.add("recovered_attempts", recovered.attempts)
            sources.unreachable.update(recovered.missed())
        counts += look_at_mapped(settings, connections, control, run, sources)
        due = read_due(spark, settings, connections, sources, run.as_of, scope, partitions)
        gathered = gather(
            spark, settings, connections, control, run, sources, due, phases, partitions
        )
        away = len(sources.unreachable)
    phases.begin("judge")
    describe(spark, "rule and staging")
    by_verdict, share = judge_and_stage(
        gathered.held, gathered.rule, run.run_id, stage, settings, connections, gathered.counted
    )
    prove_mapped_logs(settings, connections, control, run, by_verdict)
    phases.begin("stage")
    phases.split("judge", "stage", share)
    if gathered.broken_stubs:
        stage_stubs(gathered.broken, run.run_id, stage, settings, connections)
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for row in by_verdict:
            cursor.execute(_SQL["stage_count"], {"run_id": run.run_id, "stage": stage, **row})
        subjects = {
            f"shard {name}": sum(one.rows for one in due.read if one.shard == name)
            for name in settings.producers
        }
        lineages = {f"store {name}": lineage for name, lineage in gathered.scans.lineages.items()}
        for subject in sorted({*subjects, *gathered.missed, *lineages, *gathered.read_at}):
            detail = gathered.missed.get(subject)
            cursor.execute(
                _SQL["stage_read"],
                {
                    "run_id": run.run_id,
                    "stage": stage,
                    "subject": subject,
                    "rows_read": subjects.get(subject, 0),
                    "complete": detail is None,
                    "detail": detail,
                    "lineage": lineages.get(subject),
                    "topics": topics_of(settings, subject.removeprefix("store "))
                    if subject in lineages
                    else None,
                    "read_at": gathered.read_at.get(subject),
                },
            )
        phases.end()
        cursor.execute(
            _SQL["save_phases"], {"run_id": run.run_id, "phases": record.as_json(phases.seconds)}
        )
        finish_stage(cursor, run, stage, settings.version)
    counts.add("stubs_read", sum(one.rows for one in due.read))
    for row in by_verdict:
        counts.add("deliveries", row["deliveries"])
        counts.add(row["verdict"].lower(), row["deliveries"])
        counts.add("eligible", row["eligible"])
    counts.add("unreachable", away)
    counts += gathered.lookups()
    if gathered.unlisted:
        counts.add("retries_not_listed", gathered.unlisted)
    return counts
