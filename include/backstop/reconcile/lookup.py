"""Looks up what each group logged of each stub, bucket by bucket, in the executors.

Stubs and the log rows that a scan found meet by bucket (a cogroup). The scan proves, the key denies: a valid CONSUMED row is
final, whenever it was read. Whatever it does not prove is asked by key on the primary, now; only such an answer can say that
a row is absent or in another state. A scan may therefore miss rows or fail: that costs lookups, never a false verdict.
A stub whose every delivery is proven needs no further evidence and is judged here, where that is asked for (judge_proven.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.reconcile.judge_proven import judge_proven
from backstop.reconcile.packets import (
    ATTEMPTS,
    LOGS,
    PACKETS,
    STUBS,
    Packet,
    as_batch,
    no_packets,
    of_kind,
    pack,
    unpack,
)
from backstop.spark.repartition import repartition_by
from backstop.sql.named import load
from backstop.verdicts import frames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backstop.verdicts.evaluate import Engine

_FOUND = {"consumer_group": "string", **frames.LOG}
_BROKEN_LOG = ["consumer_group", "topic", "message_id", "log_broken"]
_BROKEN_STUB = ["shard", "topic", "message_id", "status", "send_count", "broken"]
HELD = "held"
"""A table of whole stubs, each once, with the list of its attempts and that of its deliveries: each group that owes it with the
group's log row."""
OUTCOMES = "outcomes"
"""What becomes of stubs that were judged here: rows of judge_proven.OUTCOME."""
BROKEN_STUBS, BROKEN_LOGS, MISSED, LOOKED_UP = "broken_stubs", "broken_logs", "missed", "looked_up"
"""Rows that break their contract; what did not answer (subject, why); how many deliveries were proven and asked."""
COUNTS = "counts"
"""How many deliveries of OUTCOMES got which verdict: rows of judge_and_stage.COUNTED."""
_SQL = load("backstop.reconcile", "packets.sql")


def look_up(
    stubs: DataFrame,
    logs: DataFrame | None,
    buckets: int,
    tables: Mapping[str, Any],
    settings: Settings,
    connections: Connections,
    decides: Mapping[str, Any] | None = None,
    whole: Mapping[str, bool] | None = None,
) -> DataFrame:
    """Packets of stubs and attempts, and packets of scanned logs -> packets of HELD and of the other kinds above.

    `tables`: policy, group_tag and start_offset, as Arrow tables. `decides`: the relations of judge_proven.DECIDES, with which
    what is proven is judged here; null: every stub is held. `whole`: the groups whose logs were read whole, of lake tables, and
    whether that was answered: nobody can ask them by key. A store that does not answer leaves `log_answered` false, never
    "no row".
    """
    prove_and_ask = _look_up(dict(tables), decides, whole or {}, settings, connections)
    if (
        buckets == 1 and logs is None
    ):  # most runs: one task asks by key, and there is nothing to shuffle
        return stubs.coalesce(1).mapInArrow(_whole(prove_and_ask), PACKETS)
    logs = no_packets(stubs.sparkSession) if logs is None else logs
    by_bucket, logs_of_bucket = (
        repartition_by(packets, buckets, "bucket").groupBy("bucket") for packets in (stubs, logs)
    )
    return by_bucket.cogroup(logs_of_bucket).applyInArrow(prove_and_ask, PACKETS)


def _whole(
    prove_and_ask: Callable[[pa.Table, pa.Table], pa.Table],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The same over all packets of stubs at once, where no logs were scanned."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if stubs := list(batches):
            yield from prove_and_ask(
                pa.Table.from_batches(stubs), pa.Table.from_batches([as_batch([])])
            ).to_batches()

    return ask


def tables_of(
    batches: Iterator[pa.RecordBatch], kinds: Collection[str]
) -> Iterator[tuple[str, pa.Table]]:
    """The tables of these kinds in batches of packets, each with its kind, one at a time."""
    for batch in batches:
        for kind, packet in zip(batch.column("kind"), batch.column("packet"), strict=True):
            if kind.as_py() in kinds:
                yield kind.as_py(), unpack(packet)


def _look_up(
    tables: Mapping[str, Any],
    decides: Mapping[str, Any] | None,
    whole: Mapping[str, bool],
    settings: Settings,
    connections: Connections,
) -> Callable[[pa.Table, pa.Table], pa.Table]:
    job = uuid4().hex

    def prove_and_ask(stubs: pa.Table, logs: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        from backstop.spark.python_daemon import spare_tasks
        from backstop.verdicts.evaluate import Engine, table

        spare_tasks()
        given = of_kind(stubs, STUBS)
        if not given:  # logs alone: nobody asked about them
            return pa.Table.from_batches([as_batch([])])
        engine = Engine()
        try:
            every = _numbered(engine, pa.concat_tables(given))
            del given
            broken = every.filter(pc.is_valid(every.column("broken")))
            sound = every.filter(pc.is_null(every.column("broken"))) if broken.num_rows else every
            sound = sound.drop_columns(["broken"])
            # What was needed to find them is gone by the time they are judged: each of it is as large as they are.
            delivery, looked_up, missed = _deliveries(
                engine, sound, of_kind(logs, LOGS), tables, whole, settings, connections, job
            )
            decided = judge_proven(decides, engine, sound, delivery) if decides else None
            left = sound if decided is None else decided.rest
            attempts = pa.concat_tables([table(frames.ATTEMPT, []), *of_kind(stubs, ATTEMPTS)])
            held = engine.query(_SQL["with_attempts"], {"part": left, "attempt": attempts})
        finally:
            engine.close()
        packets = [Packet(0, LOOKED_UP, pack(looked_up))]
        if held.num_rows:
            packets.append(Packet(0, HELD, pack(with_deliveries(held, delivery))))
        if decided is not None:
            packets.append(Packet(0, OUTCOMES, pack(decided.outcomes)))
            packets.append(Packet(0, COUNTS, pack(decided.counted)))
        if broken.num_rows:
            packets.append(Packet(0, BROKEN_STUBS, pack(broken.select(_BROKEN_STUB))))
        odd = delivery.filter(pc.is_valid(delivery.column("log_broken")))
        if odd.num_rows:
            packets.append(Packet(0, BROKEN_LOGS, pack(odd.select(_BROKEN_LOG))))
        if missed:
            packets.append(
                Packet(
                    0,
                    MISSED,
                    pack(pa.table({"subject": list(missed), "why": list(missed.values())})),
                )
            )
        return pa.Table.from_batches([as_batch(packets)])

    return prove_and_ask


def _numbered(engine: Engine, every: pa.Table) -> pa.Table:
    """The stubs of a bucket, each once and with a `stub_id`."""
    import numpy as np
    import pyarrow as pa

    if engine.query(_SQL["met_twice"], {"part": every}).num_rows:
        return engine.query(_SQL["numbered"], {"part": every})
    return every.append_column("stub_id", pa.array(np.arange(every.num_rows)))


def _deliveries(
    engine: Engine,
    sound: pa.Table,
    scanned: Sequence[pa.Table],
    tables: Mapping[str, Any],
    whole: Mapping[str, bool],
    settings: Settings,
    connections: Connections,
    job: str,
) -> tuple[pa.Table, pa.Table, Mapping[str, str]]:
    """Every delivery that these stubs owe, with its log row; how many were proven and asked; what did not answer, and why."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from backstop.evidence.read_logs import read_logs
    from backstop.runs.worker_memory import remembered
    from backstop.verdicts.evaluate import table

    # Stores that did not answer this worker: each further wait for their time-out would tell nothing new.
    why_away = remembered(job)
    away = set(why_away)
    owed = engine.run("deliveries", {**tables, "stub": sound})
    found_by_scan = pa.concat_tables([table(frames.FOUND_LOG, []), *scanned])
    mine = pc.is_in(owed.column("consumer_group"), pa.array(list(whole), pa.string()))
    askable = owed.filter(pc.invert(mine)) if whole else owed
    rest = engine.query(_SQL["not_proven"], {"owed": askable, "scanned": found_by_scan})
    proven = engine.query(_SQL["proven"], {"owed": owed, "scanned": found_by_scan})
    with Sources(settings, connections) as sources:
        found, answered = read_logs(sources, rest, away)
        why_away.update(
            {store: sources.unreachable[f"store {store}"] for store in away - set(why_away)}
        )
        missed = {
            **sources.unreachable,
            **{f"store {store}": why for store, why in why_away.items()},
        }
    # Of a group whose every key is proven nothing was asked, and nothing is open.
    groups, asked = (
        set(pc.unique(rows.column("consumer_group")).to_pylist()) for rows in (owed, answered)
    )
    all_proven = table(
        frames.ANSWERED,
        [{"consumer_group": group, "answered": whole.get(group, True)} for group in groups - asked],
    )
    delivery = engine.run(
        "delivery",
        {
            "owed": owed,
            "found_log": pa.concat_tables([found, proven]),
            "answered": pa.concat_tables([answered, all_proven]),
        },
    )
    numbers = {"proven": [askable.num_rows - rest.num_rows], "asked": [rest.num_rows]}
    return delivery, pa.table(numbers), missed


def with_deliveries(stubs: pa.Table, delivery: pa.Table) -> pa.Table:
    """Each stub with the list of its deliveries' groups and log rows (`deliveries`, of `_FOUND`), which is empty where nobody
    owes it. Deliveries of other stubs are left out."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(delivery.column("stub_id"), stubs.column("stub_id").combine_chunks())
    if places.null_count:
        mine = pc.is_valid(places)
        delivery, places = delivery.filter(mine), places.filter(mine)
    found = delivery.select(list(_FOUND)).take(pc.sort_indices(places))
    counts = np.bincount(np.asarray(places), minlength=stubs.num_rows)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = pa.StructArray.from_arrays(
        [column.combine_chunks() for column in found.columns], found.column_names
    )
    return stubs.append_column("deliveries", pa.ListArray.from_arrays(pa.array(ends), rows))


def deliveries_of(held: pa.Table) -> pa.Table:
    """The inverse: a row for each delivery, with its stub's columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = held.column("deliveries").combine_chunks()
    rows = pa.Table.from_struct_array(lists.flatten())
    delivery = held.drop_columns(["deliveries", "attempts"]).take(pc.list_parent_indices(lists))
    for name in rows.column_names:
        delivery = delivery.append_column(name, rows.column(name))
    return delivery
