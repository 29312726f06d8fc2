"""Scans what is due, or a window, into packets, once: held fast before anything else is looked at.

`localCheckpoint` rather than a cache: a lost block then fails the job instead of being read again later, which would
break the order of reading that makes the verdicts safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, reason
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import StubStatus
from backstop.reconcile.packets import (
    ATTEMPTS,
    PACKETS,
    STUBS,
    Packet,
    buckets_for,
    by_bucket,
    describe,
    in_batches,
    limits,
    no_packets,
    pack,
    pack_rows,
    share_of,
    unpack,
    with_buckets,
)
from backstop.sql.named import load
from backstop.stores.protocol import Scan, Scope, StubSource

if TYPE_CHECKING:
    import pyarrow as pa

    from backstop.verdicts.evaluate import Engine

OPEN = (StubStatus.PENDING, StubStatus.EXHAUSTED)
"""What a run over due stubs may meet."""
_SQL = load("backstop.reconcile", "packets.sql")
OpenScan = Callable[[StubSource, int], AbstractContextManager[Scan]]
"""Opens a shard's scan, cut into at least this many parts if it is large."""
READ, SENT_TO, FAILED = "read", "sent_to", "failed"
"""Kinds of packets of a shard's scan, which the driver collects: rows of Read; where copies went; why a part did not answer."""


@dataclass(frozen=True, slots=True)
class Read:
    """How many stubs of one shard, topic and status were read, and whether their rows are sound."""

    shard: str
    topic: str | None
    status: str | None
    sound: bool
    rows: int
    oldest: int
    """All but one in a hundred were created since, in microseconds."""
    brokers: tuple[str, ...]
    """Where their newest copies went, as recorded."""


@dataclass(frozen=True, slots=True)
class Due:
    """What was read: packets of stubs (with how they are broken) and of attempts, by bucket."""

    packets: DataFrame
    read: Sequence[Read]
    attempts_went_to: set[tuple[str, str]]
    """(topic, broker)"""
    shards: Sequence[str]
    """Those that were read; the attempts come in one snapshot with the stubs."""
    buckets: int
    read_at: Mapping[str, datetime]
    """By shard: as of which instant, by its own clock; one that cannot say is absent."""


def read_due(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    sources: Sources,
    as_of: datetime,
    scope: Scope,
    partitions: int,
) -> Due:
    """Every reachable shard's due stubs and attempts; an unreachable one is noted in `sources.unreachable`."""
    return _read(
        spark,
        settings,
        connections,
        sources,
        lambda store, parts: store.scan_due(as_of, scope, parts),
        OPEN,
        partitions,
    )


def read_window(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    sources: Sources,
    topic: str,
    start: datetime,
    end: datetime,
    partitions: int,
) -> Due:
    """The same of a topic's stubs created in [start, end), whatever became of them."""
    return _read(
        spark,
        settings,
        connections,
        sources,
        lambda store, parts: store.scan_window(topic, start, end, parts),
        list(StubStatus),
        partitions,
    )


def _read(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    sources: Sources,
    scan: OpenScan,
    statuses: Sequence[StubStatus],
    partitions: int,
) -> Due:
    widest = max((len(settings.groups_of(topic)) for topic in settings.topics), default=1)
    with (
        ExitStack() as snapshots,
        ThreadPoolExecutor(max_workers=max(1, len(settings.producers))) as threads,
    ):
        # One thread a shard: they are asked, and Spark reads them, side by side; what one of them raises is its own.
        names = list(settings.producers)
        # Together they keep every core at work; a part more costs a task and a connection.
        parts = share_of(partitions, len(names))
        opened = dict(
            zip(
                names,
                threads.map(lambda name: _open(sources, name, scan, parts), names),
                strict=True,
            )
        )
        for _, snapshot in opened.values():
            snapshots.callback(snapshot.close)
        buckets = buckets_for(
            widest * sum(found.rows for found, _ in opened.values() if found is not None),
            partitions,
        )
        given = limits(buckets, settings.topics, statuses)

        def read_shard(name: str) -> _Shard | None:
            found, snapshot = opened[name]
            with snapshot:  # ended as soon as this shard is read: it holds back its server's vacuum
                return (
                    None
                    if found is None
                    else _read_shard(spark, settings, connections, sources, name, found, given)
                )

        shards = dict(zip(opened, threads.map(read_shard, opened), strict=True))
    answered = {name: found for name, found in shards.items() if found is not None}
    frames = [found.packets for found in answered.values() if found.packets is not None]
    read = [
        Read(
            row["shard"],
            row["topic"],
            row["status"],
            row["sound"],
            row["rows"],
            row["oldest"] or 0,
            tuple(broker for broker in row["brokers"] if broker is not None),
        )
        for found in answered.values()
        for table in found.read
        for row in table.to_pylist()
    ]
    sent_to = {
        (row["topic"], row["broker"])
        for found in answered.values()
        for table in found.sent_to
        for row in table.to_pylist()
    }
    packets = reduce(DataFrame.union, frames) if frames else no_packets(spark)
    read_at = {
        name: scan.read_at
        for name, (scan, _) in opened.items()
        if name in answered and scan and scan.read_at
    }
    return Due(packets, read, sent_to, list(answered), buckets, read_at)


@dataclass(frozen=True, slots=True)
class _Shard:
    packets: DataFrame | None
    read: Sequence[Any]
    sent_to: Sequence[Any]


def _open(sources: Sources, name: str, scan: OpenScan, parts: int) -> tuple[Scan | None, ExitStack]:
    """The shard's scan and what ends it; null: it did not answer, which is noted."""
    stack = ExitStack()
    try:
        return stack.enter_context(scan(sources.shard(name), parts)), stack
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this shard's alone
        stack.close()
        if f"shard {name}" not in sources.unreachable:  # the first reason says most
            sources.missed(f"shard {name}", _as_unavailable(sources, name, reason(error), error))
        return None, stack


def _read_shard(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    sources: Sources,
    name: str,
    scan: Scan,
    given: Mapping[str, Any],
) -> _Shard | None:
    """Its packets, held fast, and what they hold; null: it did not answer."""
    if not scan.parts and scan.frame is None:
        return _Shard(None, [], [])
    try:
        describe(spark, f"stub scan of shard {name}")
        packets = (
            scanned_stubs(spark, settings, connections, name, scan.parts, given)
            if scan.frame is None
            else scan.frame.mapInArrow(pack_rows(STUBS, partial(_packets_of, given)), PACKETS)
        )
        packets = packets.localCheckpoint(eager=True)
        reports = [
            (row["kind"], row["packet"])
            for row in packets.where(f"kind NOT IN ('{STUBS}', '{ATTEMPTS}')").collect()
        ]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this shard's alone
        sources.missed(f"shard {name}", _as_unavailable(sources, name, reason(error), error))
        return None
    for kind, packet in reports:
        if kind == FAILED:
            sources.missed(f"shard {name}", _as_unavailable(sources, name, bytes(packet).decode()))
            return None
    tables: dict[str, list[Any]] = {READ: [], SENT_TO: []}
    for kind, packet in reports:
        tables[kind].append(unpack(bytes(packet)))
    return _Shard(packets, tables[READ], tables[SENT_TO])


def scanned_stubs(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    name: str,
    parts: Sequence[Any],
    given: Mapping[str, Any],
) -> DataFrame:
    """Packets of the shard's stubs and attempts by bucket, and of what was read; a part that does not answer says so."""
    numbers = spark.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(_scan_stubs(settings, connections, name, parts, given), PACKETS)


def _scan_stubs(
    settings: Settings,
    connections: Connections,
    name: str,
    parts: Sequence[Any],
    given: Mapping[str, Any],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    read_id = uuid4().hex

    def scan_stubs(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from backstop.runs.worker_memory import remembered
        from backstop.spark.python_daemon import spare_tasks
        from backstop.verdicts.evaluate import Engine

        spare_tasks()
        failed = remembered(read_id)
        if name in failed:
            # Each further wait for a time-out would tell nothing new.
            yield from in_batches([Packet(0, FAILED, failed[name].encode())])
            return
        engine = Engine()
        packets_of = partial(_packets_of, given, engine)
        try:
            with Sources(settings, connections) as sources:
                for batch in numbers:
                    for number in batch.column("id").to_pylist():
                        for packets in sources.shard(name).read_part(parts[number], packets_of):
                            yield from in_batches(packets)
        except Unavailable as error:
            # The other parts of the shard are thrown away with it: half of a shard is no answer.
            failed[name] = error.what
            yield from in_batches([Packet(0, FAILED, error.what.encode())])
        finally:
            engine.close()

    return scan_stubs


def _packets_of(
    given: Mapping[str, Any], engine: Engine, kind: str, part: pa.Table
) -> list[Packet]:
    dealt = with_buckets(kind, part, given, engine)
    about = READ if kind == STUBS else SENT_TO
    return [
        *by_bucket(kind, dealt),
        Packet(0, about, pack(engine.query(_SQL[about], {"part": dealt}))),
    ]


def _as_unavailable(
    sources: Sources, shard: str, why: str, error: Exception | None = None
) -> Unavailable:
    """Spark wraps a lost database in errors of its own; only the store can say whether it is away.

    Another fault is the shard's alone, too: the run ends red with it, and judges the other shards.
    """
    if isinstance(error, Unavailable):
        return error
    try:
        sources.shard(shard).clock()
    except Unavailable as gone:
        return gone
    return StoreFailed(
        f"The stubs of shard {shard} could not be read: {why.rstrip('.')}.",
        unaffected="Its stubs stay due, and nothing of them is resent; the other shards were judged.",
        next_step="Correct what is named; the next run reads it again.",
    )
