"""Gathers what the rule needs of stubs that were read: look, look up. What a run due by time and a proof of a window share.

    stubs, attempts | progress | offsets, retry depth | logs | log floors, dead letters  ->  judge_batches.py

The order of reading is what makes the rule safe while messages flow; each bar is a read that ended before the next began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.reconcile import record
from backstop.reconcile.judge_batches import Rule
from backstop.reconcile.lookup import ATTEMPTS, with_logs
from backstop.reconcile.quarantine import OPEN, Read, quarantine_logs, quarantine_stubs
from backstop.reconcile.read import Due
from backstop.records import StubStatus
from backstop.runs.run import Run, hold
from backstop.verdicts import frames, look
from backstop.verdicts.evaluate import table
from backstop.verdicts.owed_since import read_owed_since
from backstop.verdicts.sources import Sources

_SQL = load("backstop.verdicts", "queries.sql")
_WORTH_COMPILING = 50_000
"""With fewer stubs than this, compiling Spark's part to bytecode costs more (seconds of every run) than it saves."""


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

    def split(self, name: str, other: str, share: float) -> None:
        """Of the seconds of `name`, this share was spent on `other`, in one pass with it."""
        moved = round(self.seconds[name] * share, 3)
        self.seconds[name] = round(self.seconds[name] - moved, 3)
        self.seconds[other] = round(self.seconds.get(other, 0.0) + moved, 3)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read, and what judges it: `held` has the columns of lookup.PACKED, `broken` those of staged_stub.

    `missed`: what did not answer or cannot be judged by, and why.
    """

    held: DataFrame
    rule: Rule
    broken: DataFrame
    read: list[Read]
    missed: Mapping[str, str]
    unlisted: int
    """Groups of which not all that waits for another delivery could be listed."""


def gather(
    spark: SparkSession, settings: Settings, connections: Connections, control: Any, run: Run, sources: Sources,
    due: Due, phases: Phases, statuses: Sequence[StubStatus] = OPEN,
) -> Gathered:  # fmt: skip
    """Every sound stub with its deliveries' logs, held fast, and the rule over them. Broken rows go to the quarantine, what
    was seen of queues and groups to the progress tables; both writes hold the run's token (RunLost)."""
    _compile_spark(spark, False)
    stubs, broken, read = quarantine_stubs(due.stubs, settings, control, run, statuses)
    topics = {one.topic for one in read if one.sound}
    _compile_spark(spark, sum(one.rows for one in read) >= _WORTH_COMPILING)
    went_to = {(one.topic, broker) for one in read if one.sound for broker in one.brokers}
    stubs, attempts_went_to = _with_attempts(stubs, due.attempts)
    phases.end("read")

    with control, control.cursor() as cursor:
        looks = look.look_at_groups(sources, cursor, run.as_of, topics, went_to | attempts_went_to)
        look.look_at_shards(looks, sources, cursor, due.shards)
    with control, control.cursor() as cursor:
        hold(cursor, run)
        record.record_looks(cursor, run, looks)
        owed_from = read_owed_since(cursor, settings, topics)
    policy = table(frames.POLICY, frames.policy_rows(settings, owed_from, topics))
    phases.end("look")

    tables = {
        "policy": policy, "group_tag": table(frames.GROUP_TAG, frames.group_tag_rows(settings)),
        "start_offset": table(frames.START_OFFSET, frames.start_offset_rows(settings)),
    }  # fmt: skip
    held = with_logs(stubs, tables, settings, connections).localCheckpoint(eager=True)
    with control, control.cursor() as cursor:
        look.look_after_logs(looks, sources, cursor)
    quarantine_logs(held, settings, control, run)
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["every_decision"], {"topics": sorted(topics)})
        decisions = [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
    rule = Rule({
        "policy": policy, "instant": table(frames.INSTANT, [{"as_of": frames.micros(run.as_of)}]),
        "group_state": table(frames.GROUP_STATE, looks.group_state_rows()),
        "shard_state": table(frames.SHARD_STATE, looks.shard_state_rows()),
        "progress": table(frames.PROGRESS, looks.progress_rows()), "waiting": table(frames.WAITING, looks.waiting_rows()),
        "dead_letter": table(frames.DEAD_LETTER, looks.dead),
        "decision": table(frames.DECISION, decisions), "no_taker": table(frames.NO_TAKER, frames.no_taker_rows(settings)),
    })  # fmt: skip
    phases.end("lookup")
    missed = {**_doubtful_clocks(settings, looks, sources.unreachable), **sources.unreachable}
    return Gathered(held, rule, broken, read, missed, looks.unlisted)


def _with_attempts(stubs: DataFrame, attempts: DataFrame) -> tuple[DataFrame, set[tuple[str, str]]]:
    """(each stub with the list of its attempts' rows, null: it has none; topic and broker of these attempts)."""
    by_topic = attempts.groupBy("topic").agg(f.collect_set("broker").alias("brokers")).collect()
    if not by_topic:
        return stubs.withColumn("attempts", f.lit(None).cast(ATTEMPTS)), set()
    went_to = {(row["topic"], broker) for row in by_topic for broker in row["brokers"]}
    lists = attempts.groupBy("topic", "message_id").agg(f.collect_list(f.struct(*frames.ATTEMPT)).alias("attempts"))
    return stubs.join(lists, ["topic", "message_id"], "left"), went_to


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


def _compile_spark(spark: SparkSession, worth_it: bool) -> None:
    """Bytecode for large runs, an interpreter for small ones."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(worth_it).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if worth_it else "NO_CODEGEN")
