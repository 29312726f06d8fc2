"""Reads what is due, or a window, into Spark, once: stubs and their attempts are held fast before anything else is looked at.

`localCheckpoint` rather than a cache: a lost block then fails the job instead of being read again later, which would
break the order of reading that makes the verdicts safe.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from backstop.config.settings import Settings
from backstop.errors import StoreFailed, Unavailable
from backstop.stores.protocol import ATTEMPT_COLUMNS, STUB_COLUMNS, Scan, Scope, StubStore
from backstop.verdicts.frames import Columns
from backstop.verdicts.sources import Sources, reason


@dataclass(slots=True)
class Due:
    """What was read: `stubs` with STUB columns, `attempts`, and which shards' attempts are known."""

    stubs: DataFrame
    attempts: DataFrame
    shards: dict[str, bool] = field(default_factory=dict)


def ddl(columns: Columns) -> str:
    """A schema in Spark's words."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def read_due(
    spark: SparkSession, settings: Settings, sources: Sources, as_of: datetime, scope: Scope, partitions: int
) -> Due:
    """Every reachable shard's due stubs and attempts; an unreachable one is noted in `sources.unreachable`."""
    return _read(
        spark, settings, sources,
        lambda store: store.scan_due(as_of, scope, partitions), lambda store: store.scan_attempts(as_of, scope, partitions),
    )  # fmt: skip


def read_window(
    spark: SparkSession, settings: Settings, sources: Sources, topic: str, start: datetime, end: datetime, partitions: int
) -> Due:
    """The same of a topic's stubs created in [start, end), whatever became of them."""
    return _read(
        spark, settings, sources,
        lambda store: store.scan_window(topic, start, end, partitions),
        lambda store: store.scan_window_attempts(topic, start, end, partitions),
    )  # fmt: skip


def _read(
    spark: SparkSession, settings: Settings, sources: Sources,
    scan_stubs: Callable[[StubStore], Scan], scan_attempts: Callable[[StubStore], Scan],
) -> Due:  # fmt: skip
    names = list(settings.producers)
    for name in names:
        try:
            sources.shard(name)  # opened here: only what follows is done beside one another
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
    names = [name for name in names if f"shard {name}" not in sources.unreachable]
    # One thread a shard: Spark runs their jobs side by side, and each keeps its own order, attempts after stubs.
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as threads:
        read = threads.map(lambda name: _read_shard(spark, sources, name, scan_stubs, scan_attempts), names)
        found = dict(zip(names, read, strict=True))
    stubs = [stub for stub, _ in found.values() if stub is not None]
    attempts = [attempt for _, attempt in found.values() if attempt is not None]
    # The numbers are the same at each evaluation, because the rows and their partitions are held fast.
    every = _union(spark, stubs, STUB_COLUMNS).withColumn("stub_id", f.monotonically_increasing_id())
    known = {name: attempt is not None for name, (stub, attempt) in found.items() if stub is not None}
    return Due(every, _union(spark, attempts, ATTEMPT_COLUMNS), known)


def _read_shard(
    spark: SparkSession, sources: Sources, name: str,
    scan_stubs: Callable[[StubStore], Scan], scan_attempts: Callable[[StubStore], Scan],
) -> tuple[DataFrame | None, DataFrame | None]:  # fmt: skip
    """(its stubs, its attempts), held fast; null and everything after it: it did not answer."""
    store = sources.shard(name)
    try:
        stubs = _load(spark, scan_stubs(store), STUB_COLUMNS).localCheckpoint(eager=True)
    except (Unavailable, Py4JJavaError, PySparkException) as error:
        sources.missed(f"shard {name}", _as_unavailable(sources, name, error))
        return None, None
    try:
        return stubs, _load(spark, scan_attempts(store), ATTEMPT_COLUMNS).localCheckpoint(eager=True)
    except (Unavailable, Py4JJavaError, PySparkException) as error:
        sources.missed(f"shard {name}", _as_unavailable(sources, name, error))
        return stubs, None


def _as_unavailable(sources: Sources, shard: str, error: Exception) -> Unavailable:
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
        f"The stubs of shard {shard} could not be read: {reason(error).rstrip('.')}.",
        kept="Its stubs stay due, and nothing of them is resent; the other shards were judged.",
        next_step="Correct what is named; the next run reads it again.",
    )


def _load(spark: SparkSession, scan: Scan, columns: Columns) -> DataFrame:
    if scan.format == "jdbc":
        options = {**scan.options, **scan.secret_options}
        url, table = options.pop("url"), options.pop("dbtable")
        frame = spark.read.jdbc(url, table, predicates=list(scan.predicates), properties=options)
    else:
        whole = spark.read.format(scan.format).options(**scan.options, **scan.secret_options).load()
        frame = reduce(DataFrame.union, [whole.where(predicate) for predicate in scan.predicates])
    # The schema is met on the way in: a store that gives other columns fails here, by name.
    return frame.select(*[f.col(name).cast(kind).alias(name) for name, kind in columns.items()])


def _union(spark: SparkSession, frames: list[DataFrame], columns: Columns) -> DataFrame:
    return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], ddl(columns))
