"""Writes dead letters to a file, as JSON lines or Parquet, with their contents; memory does not grow with their number.

The file holds payloads: only its owner may read it, and it appears under its name when it is whole.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from backstop.reports.letters import LetterFilter
from backstop.sql.named import load

_SQL = load("backstop.reports", "letters.sql")
FORMATS = ("jsonl", "parquet")
_INLINE_BYTES = 256 * 1024
_ROWS_AT_ONCE = 50
_GROUP_BYTES, _GROUP_ROWS = 16 * 1024 * 1024, 10_000
"""Of one row group in Parquet, which is made in memory."""
_ROW_BYTES = 500
"""About what a row takes besides its bytes."""
Row = dict[str, Any]


def export_letters(
    conn: Any, wanted: LetterFilter, form: str, path: Path, limit: int | None = None
) -> int:
    """Writes them in the order in which they came, as of one instant; returns how many."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write = _write_lines if form == "jsonl" else _write_parquet
            written = write(read_letters(conn, wanted, limit), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return written


def read_letters(
    conn: Any, wanted: LetterFilter, limit: int | None = None
) -> Generator[Row, None, None]:
    """Each letter with its content, read from the database a few at a time."""
    with conn:
        with conn.cursor() as cursor:
            # The contents that are read by themselves are of the same instant.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        with conn.cursor("letters") as letters, conn.cursor() as contents:
            letters.itersize = _ROWS_AT_ONCE
            letters.execute(
                _SQL["export"], {**wanted.values(), "limit": limit, "inline": _INLINE_BYTES}
            )
            for values in letters:
                row: Row = dict(
                    zip([column.name for column in letters.description], values, strict=True)
                )
                if row.pop("aside") or row["content_bytes"] > _INLINE_BYTES:
                    contents.execute(_SQL["content"], {"dead_letter_id": row["dead_letter_id"]})
                    [row["content"]] = contents.fetchone()
                row["headers"] = bytes(row["headers"])
                row["content"] = None if row["content"] is None else bytes(row["content"])
                yield row


def _write_lines(rows: Iterable[Row], file: Any) -> int:
    written = 0
    for row in rows:
        headers, content = row.pop("headers"), row.pop("content")
        row["headers_base64"] = base64.b64encode(headers).decode()
        row["content_base64"] = None if content is None else base64.b64encode(content).decode()
        file.write(json.dumps(row, default=_plain, ensure_ascii=False).encode() + b"\n")
        written += 1
    return written


def _plain(value: Any) -> str:
    return str(value.isoformat())


def _write_parquet(rows: Iterable[Row], file: Any) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(pa)
    written, group, size = 0, list[Row](), 0
    with pq.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(group, schema))
            group.clear()

        for row in rows:
            for name in ("properties", "proof"):
                row[name] = None if row[name] is None else json.dumps(row[name], ensure_ascii=False)
            group.append(row)
            size += len(row["content"] or b"") + len(row["headers"]) + _ROW_BYTES
            written += 1
            if size >= _GROUP_BYTES or len(group) >= _GROUP_ROWS:
                flush()
                size = 0
        flush()
    return written


def _schema(pa: Any) -> Any:
    instant = pa.timestamp("us", tz="UTC")
    kinds = {
        "dead_letter_id": pa.int64(),
        "broker": pa.string(),
        "queue": pa.string(),
        "broker_id": pa.string(),
        "consumer_group": pa.string(),
        "topic": pa.string(),
        "message_id": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "queue_epoch": pa.string(),
        "tag": pa.string(),
        "partition_key": pa.string(),
        "headers": pa.binary(),
        "content": pa.large_binary(),
        "content_bytes": pa.int64(),
        "properties": pa.string(),
        "cause_text": pa.string(),
        "error": pa.string(),
        "deliveries": pa.int32(),
        "died_at": instant,
        "drained_at": instant,
        "invalid": pa.string(),
        "cause_id": pa.int64(),
        "category": pa.string(),
        "state": pa.string(),
        "decision": pa.string(),
        "reason": pa.string(),
        "decided_at": instant,
        "decided_by": pa.string(),
        "send_number": pa.int32(),
        "proof": pa.string(),
        "case_id": pa.int64(),
        "closed_at": instant,
    }
    return pa.schema(list(kinds.items()))
