"""Arrow tables as single values, so that Spark hands over packets of thousands of rows and never a row.

A row of a packet frame is one packet: what it holds (`kind`), the bucket of its keys, and the table (Arrow's stream, lz4). Of
STUBS, ATTEMPTS and LOGS all rows of one key are in one bucket, whichever store they came from; every other packet carries 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstop.model.records import EARLIEST, ID_BYTES, LATEST, TOPIC_BYTES
from backstop.sql.named import load
from backstop.stores.protocol import LAST_NUMBER, PART_COLUMNS
from backstop.verdicts.frames import micros

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backstop.verdicts.evaluate import Engine

PACKETS = "`bucket` int, `kind` string, `packet` binary"
STUBS, ATTEMPTS, LOGS = "stubs", "attempts", "logs"
"""Kinds of packets: the rows of PART_COLUMNS[kind], and of stubs how they are broken. lookup.py has those that it makes."""
DELIVERIES_OF_BUCKET = 120_000
"""What a worker holds at once, in 2 to 3 KB each: the bound of its memory, whatever is due. 150,000 take two workers 0.17 GiB
more, 100,000 take 0.08 less and 2 to 6 % of a run's time more; with 20,000 half of the time goes into planning."""
FEW_DELIVERIES = 20_000
_SQL = load("backstop.reconcile", "packets.sql")


def buckets_for(deliveries: int, partitions: int) -> int:
    """The number of buckets for at most so many deliveries: 1 for few, else a multiple of `partitions`, so that all cores end
    together."""
    if deliveries <= FEW_DELIVERIES:
        return 1
    rounds = -(-deliveries // (DELIVERIES_OF_BUCKET * partitions))
    return rounds * partitions


def share_of(partitions: int, scans: int) -> int:
    """The least number of parts of each of `scans` scans that run side by side, so that every core has one."""
    return -(-partitions // max(1, scans))


def no_packets(spark: SparkSession) -> DataFrame:
    """An empty packet frame. `createDataFrame` would start a second Python daemon for it, which takes seconds."""
    return spark.range(0).selectExpr(
        "CAST(id AS int) AS bucket", "'' AS kind", "CAST('' AS binary) AS packet"
    )


def describe(spark: SparkSession, what: str) -> None:
    """Names the jobs that this thread starts from now on, as Spark's pages show them."""
    if hasattr(spark, "sparkContext"):
        spark.sparkContext.setJobDescription(what)


@dataclass(frozen=True, slots=True)
class Packet:
    """One row of a packet frame."""

    bucket: int
    kind: str
    packet: bytes


PacketsOf = Callable[["Engine", str, "pa.Table"], list[Packet]]
"""Packets of rows of one kind."""


def pack(table: pa.Table) -> bytes:
    """The table as one value."""
    import pyarrow as pa

    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        packed, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as stream:
        stream.write_table(table)
    return bytes(packed.getvalue().to_pybytes())


def unpack(packet: Any) -> pa.Table:
    """The inverse of `pack`; also takes an Arrow scalar."""
    import pyarrow as pa

    with pa.ipc.open_stream(packet if isinstance(packet, bytes) else packet.as_buffer()) as stream:
        return stream.read_all()


def of_kind(packets: pa.Table, kind: str) -> list[pa.Table]:
    """The tables of one kind, in a table of packets."""
    import pyarrow.compute as pc

    return [
        unpack(packet)
        for packet in packets.filter(pc.equal(packets.column("kind"), kind)).column("packet")
    ]


def with_buckets(kind: str, part: pa.Table, given: Mapping[str, Any], engine: Engine) -> pa.Table:
    """The rows with what packets.sql says of them under `kind`: their bucket, and of stubs how they are broken. `given`: `limits`.

    Their own columns never pass the engine: to copy twenty of them there and back costs more than all that it finds out.
    """
    import numpy as np
    import pyarrow as pa

    places = np.arange(part.num_rows)
    found = engine.query(_SQL[kind], {"part": part.append_column("at", pa.array(places)), **given})
    if not np.array_equal(found.column("at").to_numpy(), places):
        found = found.sort_by("at")
    for name in found.column_names:
        if name != "at":
            part = part.append_column(name, found.column(name))
    return part


def by_bucket(kind: str, table: pa.Table) -> list[Packet]:
    """The rows of a table with a column `bucket`, which is left out, as one packet a bucket."""
    import pyarrow.compute as pc

    buckets = table.column("bucket")
    rows = table.drop_columns(["bucket"])
    present = pc.unique(buckets).to_pylist()
    if len(present) == 1:
        return [Packet(present[0], kind, pack(rows))]
    return [
        Packet(bucket, kind, pack(rows.filter(pc.equal(buckets, bucket)))) for bucket in present
    ]


def pack_rows(
    kind: str, packets_of: PacketsOf
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over rows of PART_COLUMNS[kind] that Spark itself read: their packets."""

    def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from backstop.sql.arrow import arrow_schema
        from backstop.verdicts.evaluate import Engine

        schema = arrow_schema(PART_COLUMNS[kind])
        engine = Engine()
        try:
            for batch in batches:
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).cast(schema)
                    yield from in_batches(packets_of(engine, kind, rows))
        finally:
            engine.close()

    return pack_batches


def as_batch(packets: Iterable[Packet]) -> pa.RecordBatch:
    """Rows of PACKETS."""
    import pyarrow as pa

    rows = list(packets)
    return pa.RecordBatch.from_pydict(
        {
            "bucket": pa.array([row.bucket for row in rows], pa.int32()),
            "kind": pa.array([row.kind for row in rows], pa.string()),
            "packet": pa.array([row.packet for row in rows], pa.binary()),
        }
    )


def in_batches(packets: Iterable[Packet]) -> Iterator[pa.RecordBatch]:
    """One batch a packet: Spark's hand-over holds one at a time."""
    for packet in packets:
        yield as_batch([packet])


def limits(buckets: int, topics: Iterable[str], statuses: Iterable[str]) -> dict[str, Any]:
    """The relations beside the rows that the texts of packets.sql read."""
    import pyarrow as pa

    return {
        "dealt": pa.table({"buckets": pa.array([buckets], pa.int32())}),
        "bound": pa.table(
            {
                "id_bytes": [ID_BYTES],
                "topic_bytes": [TOPIC_BYTES],
                "last_number": [LAST_NUMBER],
                "earliest": [micros(EARLIEST)],
                "latest": [micros(LATEST)],
            }
        ),
        "known_topic": pa.table({"topic": pa.array(list(topics), pa.string())}),
        "met_status": pa.table(
            {"status": pa.array([str(status) for status in statuses], pa.string())}
        ),
    }
