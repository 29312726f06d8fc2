"""Cuts a bulk read into ranges of one snapshot: statements that executors COPY, each on a connection of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from psycopg2.extensions import cursor as Cursor

from backstop.sql.connection import PostgresConnection, readable
from backstop.sql.named import load
from backstop.stores.protocol import PART_COLUMNS, Part, Scan

_SQL = load("backstop.stores.postgresql", "stubs.sql")
ROWS_OF_PART = 75_000
"""At most, where the values by which ranges are cut differ, and up to MOST_PARTS of them."""
FEW_ROWS = 2_000
"""So few are one part: a further task costs more than reading them."""
MOST_PARTS = 256
MOST_SHARES = 8
"""Of a range whose rows no instant tells apart; each share reads the whole range and keeps its own."""


def parts_of(rows: int, partitions: int) -> int:
    """Into how many parts so many rows are cut."""
    return 1 if rows <= FEW_ROWS else min(MOST_PARTS, max(partitions, -(-rows // ROWS_OF_PART)))


def scan(
    connection: PostgresConnection,
    selects: Mapping[str, str],
    bounds: str,
    values: Mapping[str, Any],
    partitions: int,
    estimate: str | None = None,
) -> AbstractContextManager[Scan]:
    """A Scan over `selects` (by names of PART_COLUMNS), which take `values` and have columns message_id and cut_at; `bounds`
    gives the number of rows (null: the planner's estimate of `estimate`) and, for `fractions` of them, the cuts. Raises
    StoreUnavailable on entering.

    The transaction that exported the snapshot stays open until the context ends: stubs and attempts are of one instant, and
    no stub can move from one range to another between two reads.
    """

    def cut(cursor: Cursor, snapshot: str) -> Scan:
        cursor.execute(_SQL["clock"])
        ((read_at,),) = cursor.fetchall()
        # Rolled back, so that the open transaction keeps no lock of the table, which a migration would wait for.
        cursor.execute("SAVEPOINT bounds")
        cursor.execute(
            bounds, {"fractions": [number / MOST_PARTS for number in range(MOST_PARTS)], **values}
        )
        ((rows, cuts),) = cursor.fetchall()
        if rows is None:
            cursor.execute(f"EXPLAIN (FORMAT JSON) {estimate}", values)
            ((plan,),) = cursor.fetchall()
            rows = max(1, int(plan[0]["Plan"]["Plan Rows"]))
        cursor.execute("ROLLBACK TO SAVEPOINT bounds")
        if not rows:
            return Scan([], 0, read_at)
        wanted = parts_of(rows, partitions)
        chosen = dict.fromkeys(cuts[number * MOST_PARTS // wanted] for number in range(wanted))
        # A cut at the first instant would leave a range without rows. The ends are open.
        ends = ["-infinity", *(at for at in chosen if at != cuts[0]), "infinity"]
        ranges = [
            cursor.mogrify(_SQL["range"], {"start": start, "end": end}).decode()
            for start, end in pairwise(ends)
        ]
        if wanted >= 2 * len(ranges):
            # Many of one instant, as after an outage: each range is read by several, by the hash of the id.
            shares = min(MOST_SHARES, wanted // len(ranges))
            ranges = [
                f"{within} AND "
                + cursor.mogrify(_SQL["share"], {"shares": shares, "share": share}).decode()
                for within in ranges
                for share in range(shares)
            ]
        texts = {}
        for name, select in selects.items():
            whole = cursor.mogrify(
                readable(cursor, select, {**PART_COLUMNS[name], "cut_at": "timestamptz"}), values
            ).decode()
            texts[name] = f"SELECT {', '.join(PART_COLUMNS[name])} FROM ({whole}) AS cut WHERE "
        return Scan(
            [
                Part({name: text + within for name, text in texts.items()}, snapshot)
                for within in ranges
            ],
            rows,
            read_at,
        )

    return connection.snapshot(cut)
