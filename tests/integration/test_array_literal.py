"""A list written as PostgreSQL's text of an array arrives as it was, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import psycopg2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from backstop.sql.array_literal import array_literal
from backstop_lab.servers.postgres import Postgres


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg2.extensions.connection]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        connection = psycopg2.connect(server.admin_dsn("postgres"))
        connection.autocommit = True
        yield connection
        connection.close()


def read_back(
    conn: psycopg2.extensions.connection, kind: str, values: list[object]
) -> list[object]:
    with conn.cursor() as cursor:
        cursor.execute(
            f"SELECT v FROM unnest(%(values)s::{kind}[]) AS v", {"values": array_literal(values)}
        )  # type: ignore[arg-type]
        return [
            bytes(row[0]) if isinstance(row[0], memoryview) else row[0] for row in cursor.fetchall()
        ]


TEXT = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


@settings(max_examples=300, deadline=None)
@given(
    some.lists(
        some.none()
        | TEXT
        | some.sampled_from(['"', "\\", '\\"', '","', "NULL", "", "{}", "a,b", " x ", "'", "%s"])
    )
)
def test_text_arrives_as_it_was(conn: psycopg2.extensions.connection, values: list[object]) -> None:
    assert read_back(conn, "text", values) == values


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", []),
        ("text", [""]),
        ("text", ["NULL", None]),
        ("bigint", [1, -(2**63), 2**63 - 1]),
        ("bigint", [None, 7]),
        ("bigint", [None, None]),
        ("float8", [0.1, -1e300, 1e-7]),
        ("float8", [None, 2.5]),
        ("boolean", [True, False, None]),
        ("bytea", [b"", b"\x00\xff\\\"'", None]),
        ("timestamptz", [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), None]),
        ("timestamptz", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
        ("timestamptz", [datetime(2026, 6, 1, tzinfo=timezone(timedelta(hours=5, minutes=30)))]),
    ],
)
def test_each_type_arrives_as_it_was(
    conn: psycopg2.extensions.connection, kind: str, values: list[object]
) -> None:
    with conn.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
    assert read_back(conn, kind, values) == values


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError):
        array_literal([["nested"]])  # type: ignore[list-item]
