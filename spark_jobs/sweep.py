"""Reads the leases that ended, in every consumer database and in Redis, asks the logs about them, and settles each.

    ended = mapInArrow(scan_ended)                                        records of Redis whose lease ended, as they are stored
    repartition_by(ended, tasks, part + portion).mapInArrow(settle)       the log is asked, then each is changed as it was seen

A database goes first, and is one statement (take_back): there the scan, the effect and the grouping are SQL beside the rows, and
only counts leave it. Samples and other programs' records are walks that go on where they stopped, each one task.
Writes states in the logs and in Redis, and the counts by group, host and decision into the control database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.evidence.sources import guarded
from backstop.model.errors import BackstopError, StoreFailed
from backstop.model.records import Counts
from backstop.runs.run import Run
from backstop.runs.without_collector import without_collector
from backstop.spark.cores import cores_of
from backstop.spark.job import main_of
from backstop.spark.repartition import repartition_by
from backstop.sweep.open_stores import OpenStores
from backstop.sweep.parts import Part
from backstop.sweep.run_once import LIMIT, groups_of_scope, sweep_all
from backstop.sweep.sweep_part import note_away, sweep_part
from backstop.sweep.sweep_redis import BATCH, settle_ended
from backstop.sweep.tally import Differs, SweepDecision, Tally, TallyKey

if TYPE_CHECKING:
    import pyarrow as pa

ENDED = "part int, portion int, name binary, text binary, seen_at bigint, missed string"
"""A record of Redis whose lease ended: its bucket as a number in the list of parts, which PORTION of it, and what was read when;
or why the bucket did not answer."""
PORTION = 50_000
"""Records of a bucket that one task settles together: they take it seconds."""
REPORT = "tally string"
SEEN = ("name", "text", "seen_at")
_COLUMNS = [column.split()[0] for column in ENDED.split(", ")]


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Every part of the run's scope; returns the counts, which it also adds to the run's.

    A task that Spark runs twice settles nothing twice: each change is a compare-and-set. Raises Unavailable after all else
    was done when something did not answer, RunLost when the run is not ours any more.
    """
    # The refs are resolved here, so that executors elsewhere need neither file nor environment.
    carried = connections.carrying(settings.connection_refs())

    def spread(parts: Sequence[Part], walks: Mapping[str, str]) -> Iterator[Tally]:
        for report in swept(spark, settings, carried, run, parts, walks).collect():
            tally = read_tally(report["tally"])
            if run.dry_run:
                for line, number in tally.lines.items():
                    print(f"would {line.decision} {number} {line}", flush=True)
            yield tally

    with closing(connect(settings, connections)) as control:
        return sweep_all(settings, connections, control, run, spread)


def swept(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    run: Run,
    parts: Sequence[Part],
    walks: Mapping[str, str],
) -> DataFrame:
    """Rows of REPORT: what was done in these parts; `walks`: by place, where the last sweep stopped."""
    buckets = [part for part in parts if part.kind in ("front", "guard")]
    whole = [part for part in parts if part not in buckets]
    taken = spark.range(0, len(whole), 1, max(1, len(whole))).mapInArrow(
        _sweep_whole(settings, connections, run, whole, walks), REPORT
    )
    if not buckets:
        return taken
    ended = scanned_ended(spark, settings, connections, buckets)
    settled = settled_ended(ended, settings, connections, run, buckets)
    return settled.union(taken) if whole else settled


def scanned_ended(
    spark: SparkSession, settings: Settings, connections: Connections, buckets: Sequence[Part]
) -> DataFrame:
    """Rows of ENDED: what ended in these parts, all of kind front or guard, and nothing of it settled."""
    tasks = min(len(buckets), 2 * cores_of(spark))
    numbers = spark.range(0, len(buckets), 1, tasks)
    return numbers.mapInArrow(_scan_ended(settings, connections, buckets), ENDED)


def settled_ended(
    ended: DataFrame,
    settings: Settings,
    connections: Connections,
    run: Run,
    buckets: Sequence[Part],
) -> DataFrame:
    """Rows of REPORT: what was done with rows of ENDED, a portion of a bucket by one task. Only here the logs are asked."""
    tasks = min(len(buckets), 2 * cores_of(ended.sparkSession))
    number = f.pmod(f.col("part") + f.col("portion"), f.lit(tasks))
    # In order, so that a portion is settled and reported at once; a task keeps its connections for all of its own.
    portions = repartition_by(ended, tasks, number).sortWithinPartitions("part", "portion")
    return portions.mapInArrow(_settle(settings, connections, run, buckets), REPORT)


def _scan_ended(
    settings: Settings, connections: Connections, buckets: Sequence[Part]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def scan_ended(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with OpenStores(settings, connections) as stores:
            for batch in numbers:
                for number in batch.column("id").to_pylist():
                    part, found = buckets[number], 0
                    try:
                        with guarded(part.place, StoreFailed):
                            for now, names, texts in stores.bucket(part).scan(LIMIT):
                                yield _as_batch(number, found // PORTION, names, texts, now)
                                found += len(names)
                    except BackstopError as error:
                        yield _as_batch(number, 0, [None], [None], None, error.what)

    return scan_ended


def _as_batch(
    part: int,
    portion: int,
    names: Sequence[bytes | None],
    texts: Sequence[bytes | None],
    seen_at: int | None,
    missed: str | None = None,
) -> pa.RecordBatch:
    import pyarrow as pa

    rows = len(names)
    columns = [
        pa.array([part] * rows, pa.int32()),
        pa.array([portion] * rows, pa.int32()),
        pa.array(names, pa.binary()),
        pa.array(texts, pa.binary()),
        pa.array([seen_at] * rows, pa.int64()),
        pa.array([missed] * rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_COLUMNS)


def _settle(
    settings: Settings, connections: Connections, run: Run, buckets: Sequence[Part]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    job = uuid4().hex

    def settle(ended: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with OpenStores(settings, connections) as stores:
            for (number, _), pages in groupby(_pages(ended), itemgetter(0)):
                part, tally = buckets[number], Tally(_show if run.dry_run else None)
                unread: list[str] = []
                for _, page in pages:
                    unread += page.column("missed").drop_null().to_pylist()
                    if part.place not in tally.missed:
                        _settle_page(stores, part, page, tally, job, dry_run=run.dry_run)
                if unread:
                    tally.missed[part.place] = unread[0]
                yield pa.RecordBatch.from_pydict({"tally": [write_tally(tally)]})

    return settle


def _pages(
    ended: Iterator[pa.RecordBatch],
) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    """Rows of ENDED, which are in order, as pages of one portion, with its part and number."""
    for batch in ended:
        portions = zip(
            *(batch.column(name).to_pylist() for name in ("part", "portion")), strict=True
        )
        start = 0
        for portion, rows in groupby(portions):
            end = start + sum(1 for _ in rows)
            for at in range(start, end, BATCH):
                yield portion, batch.slice(at, min(BATCH, end - at))
            start = end


def _settle_page(
    stores: OpenStores, part: Part, page: pa.RecordBatch, tally: Tally, job: str, *, dry_run: bool
) -> None:
    import pyarrow.compute as pc

    from backstop.runs.worker_memory import remembered

    found = page.filter(pc.is_null(page.column("missed")))
    try:
        with guarded(part.place, StoreFailed), without_collector():
            bucket, log = stores.bucket(part), stores.log_behind(part)
            if log is not None:
                log.missed = log.missed or remembered(job).get(log.group)
            try:
                seen = bucket.as_seen(*(found.column(name).to_pylist() for name in SEEN))
                settle_ended(bucket, part.place, log, seen, tally, dry_run=dry_run)
            finally:
                note_away(stores.settings, log, tally)
                if log is not None and log.missed:
                    # Each further wait of this worker for the log's time-out would tell nothing new.
                    remembered(job)[log.group] = log.missed
    except BackstopError as error:
        tally.missed[part.place] = error.what


def _sweep_whole(
    settings: Settings,
    connections: Connections,
    run: Run,
    parts: Sequence[Part],
    walks: Mapping[str, str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    goes_on = [walks.get(part.place, "") for part in parts]

    def sweep_whole(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with OpenStores(settings, connections) as stores:
            for batch in numbers:
                for number in batch.column("id").to_pylist():
                    tally = sweep_part(
                        stores,
                        parts[number],
                        groups_of_scope(run.scope),
                        goes_on[number],
                        limit=LIMIT,
                        dry_run=run.dry_run,
                        tell=_show if run.dry_run else None,
                    )
                    yield pa.RecordBatch.from_pydict({"tally": [write_tally(tally)]})

    return sweep_whole


def _show(decision: SweepDecision) -> None:
    print(f"would {decision}", flush=True)


def write_tally(tally: Tally) -> str:
    """As a task hands it to the driver."""
    return json.dumps(
        {
            "lines": [
                [*line, number, tally.examples[line]] for line, number in tally.lines.items()
            ],
            "counts": tally.counts,
            "differs": tally.differs,
            "missed": tally.missed,
            "goes_on": tally.goes_on,
        }
    )


def read_tally(text: str) -> Tally:
    """As it was written."""
    said = json.loads(text)
    tally = Tally(counts=Counts(said["counts"]), missed=said["missed"], goes_on=said["goes_on"])
    for *line, number, example in said["lines"]:
        tally.lines[TallyKey(*line)], tally.examples[TallyKey(*line)] = number, example
    tally.differs = [Differs(*row) for row in said["differs"]]
    return tally


if __name__ == "__main__":
    main_of("sweep", run)
