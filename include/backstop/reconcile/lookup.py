"""Looks up each owed delivery's log row by key, from the executors, in batches: the cost follows what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.verdicts import frames
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

        from backstop.verdicts.evaluate import Engine
        from backstop.verdicts.read_logs import read_logs

        away: set[str] = set()
        engine = Engine()
        try:
            with Sources(settings, connections) as sources:
                for batch in batches:
                    owed = pa.Table.from_batches([batch])
                    found, answered = read_logs(sources, owed, away)
                    delivery = engine.run("delivery", {"owed": owed, "found_log": found, "answered": answered})
                    yield from delivery.to_batches()
        finally:
            engine.close()

    return lookup
