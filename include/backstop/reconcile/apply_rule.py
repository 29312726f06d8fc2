"""Applies the rule to stubs that were read: look, look up, decide. What a run due by time and a proof of a window share.

    stubs, attempts | progress | offsets, retry depth | logs | log floors, dead letters  ->  verdict.sql

The order of reading is what makes the rule safe while messages flow; each bar is a read that ended before the next began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.reconcile import record
from backstop.reconcile.lookup import with_logs
from backstop.reconcile.quarantine import OPEN, Read, quarantine_logs, quarantine_stubs
from backstop.reconcile.read import Due
from backstop.records import StubStatus
from backstop.runs.run import Run, hold
from backstop.verdicts import frames, look
from backstop.verdicts.evaluate import table
from backstop.verdicts.sources import Sources

_SQL = load("backstop.verdicts", "queries.sql")
_WORTH_COMPILING = 50_000
"""With fewer stubs than this, compiling the rule to bytecode costs more (seconds of every run) than it saves."""
_BROADCAST_ROWS = 20_000


@dataclass(slots=True)
class Phases:
    """Seconds of each phase, by name; `say` is told each name as the phase ends."""

    say: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=monotonic)

    def end(self, name: str) -> None:
        """The phase that just ended was `name`."""
        now = monotonic()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._since, 3)
        self._since = now
        self.say(name)


@dataclass(frozen=True, slots=True)
class Applied:
    """What the rule said: `judged` has the columns of JUDGED (also the view "judged"), `broken` those of staged_stub.

    `missed`: what did not answer or cannot be judged by, and why. The views "stub", "instant" and "no_taker" stand.
    """

    judged: DataFrame
    broken: DataFrame
    read: list[Read]
    missed: Mapping[str, str]


def apply_rule(
    spark: SparkSession, settings: Settings, connections: Connections, control: Any, run: Run, sources: Sources,
    due: Due, phases: Phases, statuses: Sequence[StubStatus] = OPEN,
) -> Applied:  # fmt: skip
    """Every sound stub's deliveries, each with one verdict. Broken rows go to the quarantine, what was seen of queues and
    groups to the progress tables; both writes hold the run's token (RunLost)."""
    compile_rule(spark, False)
    stubs, broken, read = quarantine_stubs(due.stubs, settings, control, run, statuses)
    topics = {one.topic for one in read if one.sound}
    compile_rule(spark, sum(one.rows for one in read) >= _WORTH_COMPILING)
    phases.end("read")

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

    owed = spark.sql(frames.portable_sql("deliveries"))
    deliveries = with_logs(owed, settings, connections).localCheckpoint(eager=True)
    look.look_after_logs(looks, sources)
    quarantine_logs(deliveries, settings, control, run)
    phases.end("lookup")

    with control, control.cursor() as cursor:
        cursor.execute(_SQL["every_decision"], {"topics": sorted(topics)})
        decisions = [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
    _view(deliveries, "delivery")
    _view(_small(spark, due.attempts, frames.ATTEMPT), "attempt")
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
    return Applied(judged, broken, read, {**_doubtful_clocks(settings, looks, sources.unreachable), **sources.unreachable})


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


def compile_rule(spark: SparkSession, worth_it: bool) -> None:
    """Bytecode for large runs, an interpreter for small ones."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(worth_it).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if worth_it else "NO_CODEGEN")


def _small(spark: SparkSession, frame: DataFrame, columns: frames.Columns) -> DataFrame:
    """The frame as a local relation when it is small: its size is then known, so it is broadcast, and joins with nothing
    are left out of the plan. A frame held fast has no size that Spark knows of."""
    if frame.count() > _BROADCAST_ROWS:
        return frame
    return spark.createDataFrame(frame.select(*columns).toArrow())


def _view(frame: DataFrame, name: str) -> None:
    frame.createOrReplaceTempView(name)


def _rows(spark: SparkSession, name: str, columns: frames.Columns, rows: list[frames.Row]) -> None:
    # An Arrow table becomes a local relation, whose size Spark knows: it is broadcast, and needs no job of its own.
    _view(spark.createDataFrame(table(columns, rows)), name)
