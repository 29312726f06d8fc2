"""Takes away what is over in the control database, table by table, children before what they point at, runs last."""

from __future__ import annotations

from typing import Any

from psycopg2 import errors, sql

from backstop.config.kept import control_kept
from backstop.config.settings import Settings
from backstop.model.records import Counts
from backstop.retention.pace import Pace
from backstop.runs.run import Run, hold
from backstop.sql.named import load

_SQL = load("backstop.retention", "control.sql")

BY_RUN = (
    "verdict",
    "verdict_count",
    "staged_verdict",
    "staged_stub",
    "staged_part",
    "staged_count",
    "staged_read",
    "staged_letter",
    "data_check",
    "incident",
)
BY_AGE = (
    "progress_history",
    "retry_place",
    "delay_look",
    "watch_finding",
    "open_delivery",
    "quarantine",
    "anomaly",
    "alert",
)
POINTED_AT = ("alert_message", "case_file", "resend_batch", "cause", "drain_batch", "run")
"""Other tables point at these: a row goes when none does any more. Runs last, because nearly everything points at them."""


def purge_control(settings: Settings, control: Any, run: Run, pace: Pace) -> Counts:
    """Each step is a transaction that holds the run. A dry run counts one step of each table."""
    before = run.as_of - control_kept(settings)
    counts = Counts()
    for table in (*BY_RUN, *BY_AGE):
        counts += _steps(settings, control, run, pace, table, _whole(table), {"before": before})
    for table in POINTED_AT:
        counts += _steps(
            settings,
            control,
            run,
            pace,
            table,
            _unless_pointed_at(control, table),
            {"before": before},
        )
    return counts


def _whole(name: str) -> sql.Composable:
    return sql.SQL(_SQL[name])


def _unless_pointed_at(control: Any, table: str) -> sql.Composable:
    """The query, leaving out what any table of this database points at: also one that is newer than this file."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["pointing_at"], {"table": table})
        conditions = [
            sql.SQL(_SQL["unless_named"]).format(
                table=sql.Identifier(other), column=sql.Identifier(column), key=sql.Identifier(key)
            )
            for other, column, key in cursor.fetchall()
        ]
    return sql.SQL(" ").join([_whole(table), *conditions, sql.SQL(_SQL["one_step"])])


def _steps(
    settings: Settings,
    control: Any,
    run: Run,
    pace: Pace,
    table: str,
    chosen: sql.Composable,
    values: dict[str, Any],
) -> Counts:
    counts, rows = Counts(), settings.retention.step_rows
    locked = chosen if table in BY_RUN else sql.SQL(" ").join([chosen, sql.SQL(_SQL["passing_by"])])
    delete = sql.SQL(_SQL["delete"]).format(chosen=locked, table=sql.Identifier(table))
    while True:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        try:
            with pace.step(), control, control.cursor() as cursor:
                hold(cursor, run)
                cursor.execute(chosen if run.dry_run else delete, {**values, "limit": rows})
                gone = cursor.rowcount
        except (errors.ForeignKeyViolation, errors.DeadlockDetected):
            # Somebody began to point at one of them in this moment: the next run finds the others.
            counts.add(f"{table}_put_off")
            return counts
        counts.add(table, gone)
        if gone < rows or run.dry_run:
            return counts
