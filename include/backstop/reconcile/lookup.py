"""Looks up what each group logged of each stub, by key and in batches, from the executors: the cost follows what is due.

What was found is held by Spark as packed Arrow tables, one a batch: row by row through the JVM it took three times as long
to hand over as to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.verdicts import frames
from backstop.verdicts.sources import Sources

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ATTEMPTS = f"array<struct<{', '.join(f'`{name}`: {kind}' for name, kind in frames.ATTEMPT.items())}>>"
_STUB = {**frames.STUB, "attempts": ATTEMPTS}
_FOUND = {"consumer_group": "string", **frames.LOG}
_BROKEN = ["consumer_group", "topic", "message_id", "log_broken"]
PACKED = "`held` binary, `consumer_group` string, `topic` string, `message_id` string, `log_broken` string"
"""Either `held`: a packed table of whole stubs, each with its attempts, once for each group that owes it with the group's log
row, or once without group when none does. Or the others: a log row that breaks its contract."""


def with_logs(
    stubs: DataFrame, tables: Mapping[str, Any], settings: Settings, connections: Connections
) -> DataFrame:
    """Rows of STUB and their `attempts` -> rows of PACKED.

    `tables`: policy, group_tag and start_offset, as Arrow tables. A store that does not answer leaves `log_answered` false,
    never "no row".
    """
    return stubs.select(*_STUB).mapInArrow(_lookup(dict(tables), settings, connections), PACKED)


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The packed tables of these batches, one at a time."""
    import pyarrow as pa

    for batch in batches:
        for packed in batch.column("held"):
            if packed.is_valid:
                with pa.ipc.open_stream(packed.as_buffer()) as stream:
                    yield stream.read_all()


def _pack(held: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, held.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(held)
    broken = held.filter(pc.is_valid(held.column("log_broken"))).select(_BROKEN)
    rows = {"held": pa.array([packed.getvalue().to_pybytes(), *[None] * broken.num_rows], pa.binary())}
    for name in _BROKEN:
        rows[name] = pa.array([None, *broken.column(name).to_pylist()], pa.string())
    return pa.RecordBatch.from_pydict(rows)


def _lookup(
    tables: Mapping[str, Any], settings: Settings, connections: Connections
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def lookup(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from backstop.verdicts.evaluate import Engine
        from backstop.verdicts.read_logs import read_logs

        away: set[str] = set()
        engine = Engine()
        try:
            with Sources(settings, connections) as sources:
                for batch in batches:
                    if batch.num_rows == 0:
                        continue
                    stubs = pa.Table.from_batches([batch])
                    owed = engine.run("deliveries", {**tables, "stub": stubs})
                    found, answered = read_logs(sources, owed, away)
                    delivery = engine.run("delivery", {"owed": owed, "found_log": found, "answered": answered})
                    yield _pack(_beside(stubs, delivery))
        finally:
            engine.close()

    return lookup


def _beside(stubs: pa.Table, delivery: pa.Table) -> pa.Table:
    """Each stub beside its deliveries' log rows, and alone where it has none; a stub's rows next to one another."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(delivery.column("stub_id"), stubs.column("stub_id").combine_chunks())
    owed = stubs.take(places)
    alone = stubs.filter(pc.invert(pc.is_in(stubs.column("stub_id"), delivery.column("stub_id").combine_chunks())))
    for name in _FOUND:
        found = delivery.column(name)
        owed = owed.append_column(name, found)
        alone = alone.append_column(name, pa.nulls(alone.num_rows, found.type))
    return pa.concat_tables([owed, alone]).sort_by("stub_id")
