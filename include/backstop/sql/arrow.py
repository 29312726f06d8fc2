"""Columns in Arrow's words, what COPY gives as CSV read into them, and what COPY takes in its binary format."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_KINDS = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
}


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """The Arrow schema of `columns` (name -> Spark's type name)."""
    return pa.schema([(name, _KINDS[kind]) for name, kind in columns.items()])


def concat(tables: Sequence[Any]) -> Any:
    """Tables of one schema as one."""
    return pa.concat_tables(tables)


def read_copy(answer: bytes, columns: Mapping[str, str]) -> Any:
    """An Arrow table of `columns`, in their order. The empty field is null, the quoted empty one is empty text."""
    schema = arrow_schema(columns)
    if not answer:
        return schema.empty_table()
    return csv.read_csv(
        pa.BufferReader(answer),
        read_options=csv.ReadOptions(
            column_names=schema.names, use_threads=False, block_size=len(answer)
        ),
        parse_options=csv.ParseOptions(
            newlines_in_values=True
        ),  # ids hold any Unicode, line ends too
        convert_options=csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )


_WIDTHS = {"boolean": 1, "int": 4, "bigint": 8, "timestamptz": 8}
_POSTGRES_EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from which the server counts."""


def write_copy(rows: pa.Table, columns: Mapping[str, str]) -> bytes:
    """The rows as COPY ... WITH (FORMAT binary) takes them; `columns`: name -> boolean, int, bigint, text, jsonb, or timestamptz
    (given in microseconds since 1970).

    A third of the server's work for CSV. Columns are joined as a whole; no value becomes an object of Python.
    """
    number = rows.num_rows
    pieces: list[Any] = []
    fixed = [np.tile(np.frombuffer(struct.pack(">h", len(columns)), np.uint8), (number, 1))]
    """Neighbours of one width for all rows are one piece."""
    for name, kind in columns.items():
        column = rows.column(name).combine_chunks()
        missing = np.asarray(pc.is_null(column))
        if kind in _WIDTHS:
            width = _WIDTHS[kind]
            numbers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0)) - (
                _POSTGRES_EPOCH if kind == "timestamptz" else 0
            )
            data = _big_endian(numbers, width)
            if not missing.any():
                fixed += [_big_endian(np.full(number, width), 4), data]
                continue
            value = pc.if_else(pa.array(~missing), _joined([data]), pa.scalar(b""))
            lengths = np.where(missing, -1, width)
        else:
            value = pc.fill_null(column.cast(pa.binary()), b"")
            if kind == "jsonb":  # its first byte is the format's version
                value = pc.if_else(
                    pa.array(missing), value, pc.binary_join_element_wise(b"\x01", value, b"")
                )
            lengths = np.where(missing, -1, np.asarray(pc.binary_length(value)))
        pieces += [_joined([*fixed, _big_endian(lengths, 4)]), value]
        fixed = []
    body = pc.binary_join_element_wise(*pieces, *([_joined(fixed)] if fixed else []), b"")
    start, end = (
        struct.unpack_from("<i", body.buffers()[1], 4 * place)[0] for place in (0, number)
    )
    return b"".join(
        (
            b"PGCOPY\n\xff\r\n\0",
            bytes(8),
            memoryview(body.buffers()[2])[start:end] if number else b"",
            struct.pack(">h", -1),
        )
    )


def _big_endian(numbers: Any, width: int) -> Any:
    """One row of bytes for each number."""
    return numbers.astype(f">i{width}").view(np.uint8).reshape(len(numbers), width)


def _joined(columns: Sequence[Any]) -> Any:
    """Rows of bytes side by side, as an Arrow array."""
    rows = np.ascontiguousarray(np.concatenate(columns, axis=1))
    kind = pa.binary(rows.shape[1])
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)]).cast(pa.binary())
