"""Writes a proof's deliveries, as JSON lines and Parquet, and the digest by which any export of them is known again.

The digest does not depend on the order of rows: the sum of the SHA-256 of each row's canonical JSON, modulo 2^256. Ids,
offsets and instants (microseconds since 1970) only, never a payload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstop.model.read_json import read_json

COLUMNS: Mapping[str, str] = {
    "shard": "string",
    "topic": "string",
    "message_id": "string",
    "consumer_group": "string",
    "standing": "string",
    "verdict": "string",
    "reason": "string",
    "status": "string",
    "send_count": "int",
    "refusals": "int",
    "created_at": "bigint",
    "queue_id": "int",
    "queue_offset": "bigint",
    "log_state": "string",
    "log_updated_at": "bigint",
    "next_look_at": "bigint",
    "missing": "string",
}
FORMATS = ("jsonl", "parquet")
_MODULUS = 2**256


@dataclass(slots=True)
class Digest:
    """Row by row, in any order."""

    rows: int = 0
    total: int = 0
    by_standing: dict[str, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> str:
        """Takes one row in; returns its canonical JSON."""
        line = json.dumps(
            {name: row[name] for name in COLUMNS}, ensure_ascii=False, separators=(",", ":")
        )
        self.rows += 1
        self.total = (
            self.total + int.from_bytes(hashlib.sha256(line.encode()).digest())
        ) % _MODULUS
        standing = str(row["standing"])
        self.by_standing[standing] = self.by_standing.get(standing, 0) + 1
        return line

    def __str__(self) -> str:
        return f"{self.total:064x}"


def write_export(
    tables: Iterable[Any], folder: Path, formats: Sequence[str]
) -> tuple[list[Path], Digest]:
    """Arrow tables with COLUMNS -> the files written (none without formats) and the digest of all rows."""
    from contextlib import ExitStack

    import pyarrow.parquet as pq

    from backstop.sql.arrow import arrow_schema

    digest, schema = Digest(), arrow_schema(COLUMNS)
    paths = {kind: folder / f"deliveries.{kind}" for kind in formats}
    with ExitStack() as stack:
        lines = (
            stack.enter_context(paths["jsonl"].open("w", encoding="utf-8"))
            if "jsonl" in paths
            else None
        )
        columns = (
            stack.enter_context(pq.ParquetWriter(paths["parquet"], schema))
            if "parquet" in paths
            else None
        )
        for table in tables:
            part = table.select(list(COLUMNS)).cast(schema)
            if columns is not None:
                columns.write_table(part)
            for row in part.to_pylist():
                line = digest.add(row)
                if lines is not None:
                    lines.write(line + "\n")
    return list(paths.values()), digest


def read_export(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of an exported file."""
    if path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield read_json(line)
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()
