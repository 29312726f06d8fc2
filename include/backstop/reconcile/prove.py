"""Proves what became of every message of a window: read, judge, count, export. Nothing is promoted or sent.

    every stub of the window | the rule, as in a run | one row a delivery -> counts, files, digest -> the sentence

What is written here is not published: run_proof.py signs it and lets people see it once its data check has passed.

A proof rests on logs, not on what an earlier run wrote into a stub (proof_rows.sql). It has its own run, so that it goes on
beside everything else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.config.connections import Connections
from backstop.config.durations import written
from backstop.config.kept import stubs_kept
from backstop.config.settings import Settings
from backstop.config.signing_key import signing_key
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError
from backstop.model.records import Counts
from backstop.reconcile.answer_proof import Answer, Counted, Window, answer
from backstop.reconcile.count_due import control_now
from backstop.reconcile.export_proof import COLUMNS, FORMATS, write_export
from backstop.reconcile.gather import Phases, gather
from backstop.reconcile.judge_batches import Rule, judge_batches
from backstop.reconcile.lineage import not_continued
from backstop.reconcile.packets import describe
from backstop.reconcile.read import read_window
from backstop.reconcile.sign_proof import MANIFEST, write_manifest
from backstop.runs.run import Run, hold
from backstop.runs.scope import scope_of
from backstop.spark.cores import cores_of
from backstop.sql.named import load, read_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SQL = load("backstop.reconcile", "queries.sql")


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found. `lost` holds at most the first LOST_SHOWN lost deliveries, as (message_id, group, verdict, reason)."""

    run_id: int
    window: Window
    answer: Answer
    sentence: str
    stubs: dict[str, int]
    counts: list[Counted]
    lost: list[tuple[str, str, str, str]]
    folder: Path | None
    lookups: Counts
    """How the logs were read, as `Gathered.lookups`."""


LOST_SHOWN = 50
_WORTH_COMPILING = 50_000
"""Stubs: a proof's deliveries are rows of Spark, and with fewer than these compiling its plans costs more than it saves."""


def window_of(
    settings: Settings, topic: str, start: datetime, end: datetime, now: datetime
) -> Window:
    """The window that can be proven: cut where a transaction may still commit a stub with an older time.

    Raises ConfigurationError for an unknown topic, an empty window, or one that only lies ahead.
    """
    if topic not in settings.topics:
        raise ConfigurationError(
            f"There is no topic {topic!r}.",
            unaffected="Nothing was read.",
            next_step=f"Name one of: {', '.join(settings.topics)}.",
        )
    policy = settings.policy_for(topic)
    last = now - policy.longest_transaction - policy.max_clock_skew
    if end <= start or start >= last:
        raise ConfigurationError(
            f"From {start.isoformat()} to {end.isoformat()} nothing can be proven now: "
            + (
                "the window is empty."
                if end <= start
                else "producers may still commit stubs of it."
            ),
            unaffected="Nothing was read.",
            next_step=f"Name a window that begins before it ends, and before {last.isoformat(timespec='seconds')}.",
        )
    return Window(topic, start, min(end, last))


def prove(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    *,
    folder: Path | None = None,
    formats: Sequence[str] = FORMATS,
    say: Callable[[str], None] = lambda _: None,
) -> Proof:
    """The proof of the run's scope (one topic, one window), stored in the control database, and in `folder` if there is one.

    Every write holds the run's token (RunLost). What did not answer makes the answer INCOMPLETE, never good. The export has no
    manifest, and no signature, before it is published.
    """
    key = None if folder is None else signing_key(settings)  # before all is read for nothing
    if folder is not None and (folder / MANIFEST).exists():
        # Run ids begin again in a new control database, or one that was restored.
        raise ConfigurationError(
            f"{folder} already holds a proof.",
            unaffected="Nothing was read, and that proof is as it was.",
            next_step="Prove again: the next run has a folder of its own. In a new control database, set $BACKSTOP_PROOFS to a"
            " new folder.",
        )
    scope = scope_of(run.scope)
    assert scope.topics and scope.created_from and scope.created_to  # as `scope_now` names it
    window = Window(scope.topics[0], scope.created_from, scope.created_to)
    phases = Phases(run.phase, say)
    phases.begin("read")
    partitions = max(2, cores_of(spark))
    with Sources(settings, connections) as sources:
        due = read_window(
            spark,
            settings,
            connections,
            sources,
            window.topic,
            window.start,
            window.end,
            partitions,
        )
        gathered = gather(
            spark,
            settings,
            connections,
            control,
            run,
            sources,
            due,
            phases,
            partitions,
            evidence_of_all=True,  # a proof shows each delivery's
        )
    phases.begin("export")
    if sum(one.rows for one in due.read) >= _WORTH_COMPILING:
        spark.conf.set("spark.sql.codegen.wholeStage", "true")
        spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    describe(spark, "rule and export")
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    rows = gathered.held.mapInArrow(_rows(gathered.rule), schema).localCheckpoint(eager=True)
    counts = [
        Counted(row["consumer_group"], row["standing"], row["verdict"], row["reason"], row["count"])
        for row in rows.groupBy("consumer_group", "standing", "verdict", "reason").count().collect()
    ]
    counts.sort(key=lambda one: (one.consumer_group, one.standing, one.verdict, one.reason))
    stubs: Counter[str] = Counter()
    for read in due.read:
        stubs[read.status or "null"] += read.rows
    broken = gathered.broken_stubs
    owed = rows.select("topic", "message_id").distinct().count()
    lost = [
        (row["message_id"], row["consumer_group"], row["verdict"], row["reason"])
        for row in rows.where("standing = 'lost'")
        .orderBy("message_id", "consumer_group")
        .limit(LOST_SHOWN)
        .collect()
    ]
    with Sources(settings, connections) as sources:
        changed = not_continued(settings, sources, gathered.scans.lineages)
    missed = {
        **gathered.missed,
        **dict.fromkeys(
            (f"store {store}" for store in changed),
            "since its logs were read it is another server, was restarted or put back, or does not answer",
        ),
    }
    # By now, and not as the run began: retention works beside it.
    if window.start < control_now(control) - (kept := stubs_kept(settings, window.topic)):
        missed["stubs of it"] = f"closed ones are kept {written(kept)}, and some may be purged"
    total = sum(stubs.values())
    said, sentence = answer(window, total, owed, counts, broken, missed)
    if folder is not None:
        folder.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # ids are in it; whoever shall read it is given a copy
    files, digest = write_export(
        _tables(rows), folder or Path(), formats if folder is not None else ()
    )
    if folder is not None:
        manifest = {
            "run_id": run.run_id,
            "as_of": run.as_of.isoformat(),
            "topic": window.topic,
            "from": window.start.isoformat(),
            "to": window.end.isoformat(),
            "policy_version": settings.version,
            "answer": str(said),
            "sentence": sentence,
            "stubs": stubs,
            "deliveries": digest.rows,
            "counts": digest.by_standing,
            "missed": dict(missed),
            "broken": broken,
            "digest": str(digest),
        }
        write_manifest(folder, manifest, files, signed=key is not None)
    phases.end()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(
            _SQL["save_proof"],
            {
                "run_id": run.run_id,
                "topic": window.topic,
                "start": window.start,
                "end": window.end,
                "answer": str(said),
                "sentence": sentence,
                "stubs": json.dumps(stubs),
                "owed_stubs": owed,
                "broken": broken,
                "deliveries": digest.rows,
                "missed": json.dumps(dict(missed)),
                "digest": str(digest),
            },
        )
        for one in counts:
            cursor.execute(
                _SQL["save_proof_count"],
                {
                    "run_id": run.run_id,
                    "group": one.consumer_group,
                    "standing": one.standing,
                    "verdict": one.verdict,
                    "reason": one.reason,
                    "deliveries": one.deliveries,
                },
            )
        cursor.execute(
            _SQL["save_phases"], {"run_id": run.run_id, "phases": json.dumps(phases.seconds)}
        )
    return Proof(
        run.run_id, window, said, sentence, stubs, counts, lost, folder, gathered.lookups()
    )


def counts_of(proof: Proof) -> Counts:
    """As a run's counts."""
    counts = Counts()
    counts.add("stubs_read", sum(proof.stubs.values()))
    for one in proof.counts:
        counts.add("deliveries", one.deliveries)
        counts.add(one.standing, one.deliveries)
    return counts + proof.lookups


def _rows(rule: Rule) -> Callable[[Iterator[Any]], Iterator[Any]]:
    statement = read_sql("backstop.reconcile", "proof_rows.sql")
    given = {name: rule.tables[name] for name in ("instant", "group_state")}

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        from backstop.sql.arrow import arrow_schema
        from backstop.verdicts.evaluate import Engine

        with closing(Engine()) as engine:
            for batch in judge_batches(rule, engine, batches):
                found = engine.query(
                    statement, {"judged": batch.judged, "stub": batch.stubs, **given}
                )
                yield from found.select(list(COLUMNS)).cast(arrow_schema(COLUMNS)).to_batches()

    return rows


def _tables(rows: DataFrame) -> Iterator[Any]:
    """The rows as Arrow tables, one partition after the other: no more than one is held here."""
    from pyspark.sql import functions as f

    numbered = rows.select(*COLUMNS, f.spark_partition_id().alias("part"))
    for part in sorted(row["part"] for row in numbered.select("part").distinct().collect()):
        yield numbered.where(f.col("part") == part).toArrow()
