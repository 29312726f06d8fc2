"""Scans the logs of groups of which much is due: one pass over what they received since then, in place of a question a key.

A key costs its database 13 us and us 2, a scanned row 1 and 2 (ADR 23); the planner's estimate of the rows decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.reconcile.packets import (
    PACKETS,
    Packet,
    by_bucket,
    in_batches,
    limits,
    share_of,
    with_buckets,
)
from backstop.reconcile.read import Due
from backstop.verdicts.frames import instant

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_WORTH_A_SCAN = 20_000
"""With fewer due of a group, asking by key is over before a scan would have begun."""
ROWS_FOR_A_KEY = 15 / 3.5
"""A key looked up costs as much as so many rows scanned."""
Part = tuple[str, Any]
"""A group of the store, and the part of its scan."""


@dataclass(slots=True)
class Scans:
    """What is scanned, and why: of all groups with enough due, the rows that scans are expected to read (`estimate`), and with
    how many rows (`worth`) asking for each key would cost the same; the logs of so many of them (`groups`) are scanned.
    `lineages`: of each store that is scanned, its server's name and history before the scan."""

    parts: list[Part] = field(default_factory=list)
    lineages: dict[str, str] = field(default_factory=dict)
    groups: int = 0
    estimate: int = 0
    worth: int = 0


def choose_scans(settings: Settings, sources: Sources, due: Due, partitions: int) -> Scans:
    """The scans that cost less than asking for each key. A store that does not answer is asked by key later, and told then."""
    keys: Counter[str] = Counter()
    since: dict[str, datetime] = {}
    for one in due.read:
        if not one.sound or one.topic is None:
            continue
        for group in settings.groups_of(one.topic):
            keys[group] += one.rows
            # The consumer's clock may be behind the producer's.
            first = _earlier(
                instant(one.oldest), 2 * settings.policy_for(one.topic, group).max_clock_skew
            )
            since[group] = min(first, since.get(group, first))
    of_store: dict[str, list[str]] = defaultdict(list)
    for group, number in keys.items():
        if number >= KEYS_WORTH_A_SCAN:
            of_store[settings.groups[group].store].append(group)
    scans = Scans()
    parts = share_of(partitions, sum(map(len, of_store.values())))
    for store, groups in of_store.items():
        try:
            logs = sources.logs_of(groups[0])
            lineage = logs.lineage()
            worth = {group: keys[group] * ROWS_FOR_A_KEY for group in groups}
            found = logs.scan_done({group: since[group] for group in groups}, worth, parts)
        except Unavailable:
            continue
        if found is None:
            continue
        scans.estimate += sum(found.estimates.values())
        scans.worth += sum(int(worth[group]) for group in found.estimates)
        if found.parts:
            scans.groups += sum(rows < worth[group] for group, rows in found.estimates.items())
            scans.parts += [(groups[0], part) for part in found.parts]
            scans.lineages[store] = lineage
    return scans


def scanned_logs(
    spark: SparkSession, settings: Settings, connections: Connections, scans: Scans, buckets: int
) -> DataFrame | None:
    """Packets of the log rows that were found, by bucket; `None` when nothing is scanned. A part that does not answer gives
    none."""
    if not scans.parts:
        return None
    numbers = spark.range(0, len(scans.parts), 1, len(scans.parts))
    return numbers.mapInArrow(_scan_logs(settings, connections, scans.parts, buckets), PACKETS)


def _scan_logs(
    settings: Settings, connections: Connections, parts: Sequence[Part], buckets: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    given = {"dealt": limits(buckets, (), ())["dealt"]}

    def scan_logs(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from backstop.spark.python_daemon import spare_tasks
        from backstop.verdicts.evaluate import Engine

        spare_tasks()
        engine = Engine()

        def packets_of(kind: str, part: pa.Table) -> list[Packet]:
            return by_bucket(kind, with_buckets(kind, part, given, engine))

        try:
            with Sources(settings, connections) as sources:
                for batch in numbers:
                    for number in batch.column("id").to_pylist():
                        group, part = parts[number]
                        try:
                            read = sources.logs_of(group).read_part(part, packets_of)
                        except Unavailable:
                            continue  # its keys are asked one by one, and that answer is told
                        for packets in read:
                            yield from in_batches(packets)
        finally:
            engine.close()

    return scan_logs


def _earlier(at: datetime | None, by: timedelta) -> datetime:
    assert at is not None
    try:
        return at - by
    except OverflowError:
        return at
