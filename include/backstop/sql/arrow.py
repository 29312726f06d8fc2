"""Columns in Arrow's words, and what COPY gives as CSV read into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
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
