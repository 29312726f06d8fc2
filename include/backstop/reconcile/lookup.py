"""Looks up each owed delivery's log row by key, from the executors, in batches: the cost follows what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import Unavailable
from backstop.records import Key, LogRow
from backstop.verdicts import frames
from backstop.verdicts.judge import log_row
from backstop.verdicts.sources import Sources

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def with_logs(owed: DataFrame, settings: Settings, connections: Connections) -> DataFrame:
    """Rows of OWED -> rows of DELIVERY. A store that does not answer leaves `log_answered` false, never "no row"."""
    schema = ", ".join(f"`{name}` {kind}" for name, kind in frames.DELIVERY.items())
    return owed.select(*frames.OWED).mapInArrow(_lookup(settings, connections), schema)


def _lookup(
    settings: Settings, connections: Connections
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def lookup(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = arrow_schema(frames.LOG)
        away: set[str] = set()
        with Sources(settings, connections) as sources:
            for batch in batches:
                groups = batch.column("consumer_group").to_pylist()
                topics = batch.column("topic").to_pylist()
                ids = batch.column("message_id").to_pylist()
                logs = {
                    group: _logs(sources, settings, away, group, [
                        Key(topic, message_id)
                        for topic, message_id, of in zip(topics, ids, groups, strict=True)
                        if of == group
                    ])
                    for group in set(groups)
                }  # fmt: skip
                rows = []
                for topic, message_id, group in zip(topics, ids, groups, strict=True):
                    answer = logs[group]
                    found = None if answer is None else answer.get(Key(topic, message_id))
                    rows.append(log_row(found, answered=answer is not None))
                added = pa.Table.from_pylist(rows, schema=schema)
                columns = list(batch.columns) + [added.column(name).combine_chunks() for name in frames.LOG]
                yield pa.RecordBatch.from_arrays(
                    [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns], names=list(frames.DELIVERY)
                )

    return lookup


def _logs(
    sources: Sources, settings: Settings, away: set[str], group: str, keys: list[Key]
) -> dict[Key, LogRow] | None:
    store = settings.groups[group].store
    if store in away:
        return None  # asked once in this task: each further wait for its time-out would tell nothing new
    try:
        return sources.logs_of(group).logs(group, keys)
    except Unavailable:
        away.add(store)
        return None


def arrow_schema(columns: frames.Columns) -> pa.Schema:
    """A schema in Arrow's words."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "double": pa.float64(),
    }  # fmt: skip
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
