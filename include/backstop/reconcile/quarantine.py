"""Sets broken rows aside: counted and shown once per (store, row, reason), never judged and never dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from psycopg2.extras import execute_values

from backstop.config.settings import Settings
from backstop.reconcile.row_key import row_key
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.stores.mapped.stubs import LeftOut
from backstop.verdicts.evaluate import table
from backstop.verdicts.frames import micros

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
BROKEN_STAGED = {
    "shard": "string",
    "topic": "string",
    "message_id": "string",
    "old_status": "string",
    "new_status": "string",
    "send_count": "int",
    "deliveries": "int",
    "next_look_at": "bigint",
}
_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 5_000
TOO_LONG = "key_too_long"
"""No key of the control database holds such a row: its quarantine is all that is written about it."""

Broken = tuple[str, str, str, str | None, str | None, str | None]
"""store, row_key, reason, topic, message_id, consumer_group"""


def quarantine_stubs(broken: Sequence[Row], settings: Settings, control: Any, run: Run) -> pa.Table:
    """Writes broken stubs to `quarantine`; returns what is staged of them, as columns of staged_stub."""
    _write(
        control,
        run,
        (
            (
                f"shard {row['shard']}",
                row_key(row["topic"], row["message_id"]),
                row["broken"],
                row["topic"],
                row["message_id"],
                None,
            )
            for row in broken
        ),
    )
    # They stay pending, and are looked at again from time to time: somebody may fix the policy or the row.
    again = micros(run.as_of + settings.policy_for(None).unknown_horizon)
    return table(
        BROKEN_STAGED,
        [
            {
                **row,
                "old_status": row["status"],
                "new_status": row["status"],
                "deliveries": 0,
                "next_look_at": again,
            }
            for row in broken
            if row["broken"] != TOO_LONG
        ],
    )


def quarantine_left_out(shard: str, left_out: Iterable[LeftOut], control: Any, run: Run) -> None:
    """Rows of a mapped table that no look remembers, because their key is too long."""
    _write(
        control,
        run,
        (
            (f"shard {shard}", f"sha256:{one.digest}", TOO_LONG, one.topic, one.message_id, None)
            for one in left_out
        ),
    )


def quarantine_logs(broken: Sequence[Row], settings: Settings, control: Any, run: Run) -> None:
    """Log rows that break their contract; their deliveries are still judged: something is there, so it waits."""
    _write(
        control,
        run,
        (
            (
                f"store {settings.groups[row['consumer_group']].store}",
                row_key(row["consumer_group"], row["topic"], row["message_id"]),
                row["log_broken"],
                row["topic"],
                row["message_id"],
                row["consumer_group"],
            )
            for row in broken
        ),
    )


def _write(control: Any, run: Run, rows: Iterable[Broken]) -> None:
    # In one order, so that two runs beside one another cannot wait for each other's rows.
    for batch in _batches(iter(sorted(rows, key=lambda row: row[:3]))):
        with control, control.cursor() as cursor:
            hold(cursor, run)
            execute_values(
                cursor, _SQL["quarantine"], [(*row, run.run_id) for row in batch], page_size=_BATCH
            )


def _batches(rows: Iterator[Broken]) -> Iterator[list[Broken]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch
