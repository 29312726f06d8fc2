"""Reads what the rule needs about stubs that were read already: progress, logs, then floors and dead letters. A run and a proof share it.

    stubs, attempts | progress | offsets, retry depth | logs (scanned or) by key | log floors, dead letters  ->  judge_batches.py
                                                        decisions, logs of stubs that are all done           ->  judge_proven.py

The order of reading is what makes the rule safe while messages flow; each bar is a read that ended before the next began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.evidence import Readings
from backstop.evidence.read import read_after_logs, read_groups, read_shard_clocks
from backstop.evidence.read_owing import read_owing
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.reconcile import record
from backstop.reconcile.judge_batches import Rule
from backstop.reconcile.judge_proven import WORTH_PLANNING_TWICE
from backstop.reconcile.lookup import (
    BROKEN_LOGS,
    BROKEN_STUBS,
    COUNTS,
    HELD,
    LOOKED_UP,
    MISSED,
    OUTCOMES,
    look_up,
)
from backstop.reconcile.packets import describe, unpack
from backstop.reconcile.quarantine import quarantine_logs, quarantine_stubs
from backstop.reconcile.read import Due
from backstop.reconcile.read_lakes import read_lakes
from backstop.reconcile.scan_logs import Scans, choose_scans, scanned_logs
from backstop.runs.phase import CurrentPhase
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.verdicts import frames
from backstop.verdicts.evaluate import table

_SQL = load("backstop.evidence", "queries.sql")


@dataclass(slots=True)
class Phases:
    """Seconds of each phase, by name. `current` shows the one under way; `say` gets each name as the phase ends."""

    current: CurrentPhase
    say: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _name: str | None = None
    _since: float = 0.0

    def begin(self, name: str) -> None:
        """Ends the phase before, if there is one."""
        self.end()
        self._name, self._since = name, monotonic()
        self.current.begin(name)

    def end(self) -> None:
        if self._name is None:
            return
        took = monotonic() - self._since
        self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + took, 3)
        self.say(self._name)
        self._name = None

    def split(self, name: str, other: str, share: float) -> None:
        """Of the seconds of `name`, this share was spent on `other`, in one pass with it."""
        moved = round(self.seconds[name] * share, 3)
        self.seconds[name] = round(self.seconds[name] - moved, 3)
        self.seconds[other] = round(self.seconds.get(other, 0.0) + moved, 3)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read, and what judges it: `held` are packets of lookup.HELD, and of lookup.OUTCOMES where that was asked for.

    `missed`: what did not answer or cannot be judged by, and why.
    """

    held: DataFrame
    rule: Rule
    broken: Any
    """Broken stubs, as an Arrow table of the columns of staged_stub, but for those that no staging holds."""
    broken_stubs: int
    missed: Mapping[str, str]
    unlisted: int
    """Groups of which not all that waits for another delivery could be listed."""
    proven: int
    """Deliveries that a scan of the logs showed to be done."""
    asked: int
    """Deliveries whose log row was asked for by key."""
    scans: Scans
    """What was scanned, and why. A promotion must meet each of its lineages again."""
    counted: list[dict[str, Any]]
    """The verdicts of what OUTCOMES are of: rows of judge_and_stage.COUNTED."""
    read_at: Mapping[str, datetime]
    """By subject ("shard shop_a", "store billing_db"): as of which instant it was read, by a clock that can be trusted."""

    def lookups(self) -> Counts:
        """How the logs were read, and why, as a run shows it."""
        counts = Counts(asked_by_key=self.asked)
        if self.scans.worth:
            counts.add("groups_scanned", self.scans.groups)
            counts.add("scan_estimate", self.scans.estimate)
            counts.add("scan_worth", self.scans.worth)
        if self.proven:
            counts.add("proven_by_scan", self.proven)
        return counts


def gather(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    sources: Sources,
    due: Due,
    phases: Phases,
    partitions: int,
    *,
    evidence_of_all: bool = False,
) -> Gathered:
    """Every sound stub with its deliveries' logs, held fast, and the rule over them. Broken rows go to the quarantine, what
    was seen of queues and groups to the progress tables; both writes hold the run's token (RunLost). `evidence_of_all`: of stubs
    that are all done, too, the evidence is kept, not the outcome alone."""
    topics = {one.topic for one in due.read if one.sound and one.topic is not None}
    went_to = {
        (one.topic, broker)
        for one in due.read
        if one.sound and one.topic is not None
        for broker in one.brokers
    }
    phases.begin("look")

    with control, control.cursor() as cursor:
        looks = read_groups(sources, cursor, run.as_of, topics, went_to | due.attempts_went_to)
        read_shard_clocks(looks, sources, cursor, due.shards)
    with control, control.cursor() as cursor:
        hold(cursor, run)
        record.record_looks(cursor, run, looks)
        owing = read_owing(cursor, settings, topics)
        known = {
            "policy": owing["policy"],
            "instant": table(frames.INSTANT, [{"as_of": frames.micros(run.as_of)}]),
            "no_taker": table(frames.NO_TAKER, frames.no_taker_rows(settings)),
            "decision": _decisions(cursor, topics),
        }
    phases.begin("lookup")

    scans = choose_scans(settings, sources, due, partitions)
    describe(
        spark,
        "log scan, cogroup by bucket, the rest by key" if scans.parts else "logs by key, by bucket",
    )
    logs = scanned_logs(spark, settings, connections, scans, due.buckets)
    lakes = read_lakes(settings, sources, topics, due.buckets)
    for packets in lakes.packets:
        logs = packets if logs is None else logs.union(packets)
    is_worth = sum(one.rows for one in due.read) >= WORTH_PLANNING_TWICE
    decides = known if is_worth and not evidence_of_all else None
    read_at = _read_at(settings, sources, looks, due)  # no answer that follows is older
    held = look_up(
        due.packets, logs, due.buckets, owing, settings, connections, decides, lakes.answered
    ).localCheckpoint(eager=True)
    findings = _findings(held)
    for row in findings[MISSED]:
        sources.unreachable.setdefault(row["subject"], row["why"])
    with control, control.cursor() as cursor:
        read_after_logs(looks, sources, cursor)
    broken = quarantine_stubs(findings[BROKEN_STUBS], settings, control, run)
    quarantine_logs(findings[BROKEN_LOGS], settings, control, run)
    with control, control.cursor() as cursor:
        decisions = _decisions(cursor, topics)  # again: somebody may have decided since
    rule = Rule(
        {
            **known,
            "group_state": table(frames.GROUP_STATE, looks.group_state_rows()),
            "shard_state": table(frames.SHARD_STATE, looks.shard_state_rows()),
            "progress": table(frames.PROGRESS, looks.progress_rows()),
            "waiting": table(frames.WAITING, looks.waiting_rows()),
            "delay_look": table(frames.DELAY_LOOK, looks.delay_rows()),
            "dead_letter": looks.dead.table(),
            "decision": decisions,
        }
    )
    phases.end()
    missed = {**_doubtful_clocks(settings, looks, sources.unreachable), **sources.unreachable}
    looked_up = findings[LOOKED_UP]
    return Gathered(
        held=held,
        rule=rule,
        broken=broken,
        broken_stubs=len(findings[BROKEN_STUBS]),
        missed=missed,
        unlisted=looks.unlisted,
        proven=sum(row["proven"] for row in looked_up),
        asked=sum(row["asked"] for row in looked_up),
        scans=scans,
        counted=findings[COUNTS],
        read_at=read_at,
    )


def _decisions(cursor: Any, topics: set[str]) -> Any:
    """The deliveries of these topics that people discarded, as rows of DECISION."""
    cursor.execute(_SQL["every_decision"], {"topics": sorted(topics)})
    return table(
        frames.DECISION, [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
    )


def _read_at(
    settings: Settings, sources: Sources, looks: Readings, due: Due
) -> dict[str, datetime]:
    """The instant, by the source's own clock, from which on it was read; a source whose clock is in doubt, or that is away, is
    absent."""
    found = {f"shard {name}": at for name, at in due.read_at.items() if looks.shards[name][0]}
    of_store = {
        settings.groups[group].store: group
        for (_, group), seen in looks.groups.items()
        if seen.clock_good and seen.log_until is None  # a lake is read as of its snapshot
    }
    for store, group in of_store.items():
        if f"store {store}" not in sources.unreachable:
            try:
                found[f"store {store}"] = sources.logs_of(group).clock()
            except Unavailable as error:
                sources.missed(f"store {store}", error)
    return found


def _findings(held: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The rows of all packets but HELD and OUTCOMES, by kind."""
    findings: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in (BROKEN_STUBS, BROKEN_LOGS, MISSED, LOOKED_UP, COUNTS)
    }
    for row in (
        held.where(f"kind NOT IN ('{HELD}', '{OUTCOMES}')").select("kind", "packet").collect()
    ):
        findings[row["kind"]] += unpack(bytes(row["packet"])).to_pylist()
    return findings


def _doubtful_clocks(
    settings: Settings, looks: Readings, away: Mapping[str, str]
) -> dict[str, str]:
    """Who answered, and is too far from the control database's clock to judge by; what is away is no clock's fault."""
    problems: dict[str, str] = {}
    for (topic, group), seen in looks.groups.items():
        store = f"store {settings.groups[group].store}"
        if not seen.clock_good and topic in looks.queues and store not in away:
            problems[f"clock of group {group}"] = (
                "the clocks of its store, its broker and the control database differ"
            )
    for shard, (clock_good, _) in looks.shards.items():
        if not clock_good and f"shard {shard}" not in away:
            problems[f"clock of shard {shard}"] = "its clock and the control database's differ"
    return problems
