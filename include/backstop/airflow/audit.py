"""What the tasks of the audit DAG do. Light: DAG files import it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from backstop.airflow import steps as duty


def daily(variable: str, default: str) -> Any:
    """The timetable that $variable (a cron expression, or "none") asks for: each run stands for the day before it."""
    from airflow.sdk import CronPartitionTimetable

    text = (os.environ.get(variable) or default).strip()
    if text.lower() == "none":
        return None
    return CronPartitionTimetable(text, timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")


@duty.told
def open_audit(context: Mapping[str, Any], day: str | None) -> dict[str, Any]:
    """Opens the run of a day: the one that a person names, else the partition of this DAG run, else yesterday."""
    from backstop.audit.day import day_of
    from backstop.errors import ConfigurationError
    from backstop.runs.run import open_run

    named = day or context["dag_run"].partition_key
    try:
        chosen = date.fromisoformat(named) if named else None
    except ValueError:
        raise ConfigurationError(
            f"{named!r} is not a date.", kept="Nothing was started.", next_step="Write it as 2026-11-21."
        ) from None
    with duty.control_room() as room:
        audited = day_of(room.settings, datetime.now(UTC), chosen).name  # refuses before a run is opened
        run = open_run(room.control, "audit", "*", room.settings)
        return {"run_id": run.run_id, "token": run.token, "dry_run": False, "no_send": False, "due": 1, "day": audited}


@duty.told
def look(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Looks everywhere and writes down what it found. Raises Unavailable, after all else was done, when something was away."""
    from backstop.audit.day import day_of
    from backstop.audit.run_once import look_everywhere, require_complete
    from backstop.errors import Unavailable

    with duty.going_on(opened) as (room, run):
        day = day_of(room.settings, run.as_of, date.fromisoformat(opened["day"]))
        counts = look_everywhere(room.settings, room.connections, room.control, run, day)
        try:
            require_complete(room.control, run)
        except Unavailable:
            ti.xcom_push(key=duty.SOMETHING_AWAY, value=True)
            raise
    return dict(counts)
