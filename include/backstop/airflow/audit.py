"""What the tasks of the DAG `audit` do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, task

from backstop.airflow import steps
from backstop.airflow.control_room import control_room, log_errors, opened_run

AUDITED = Asset("backstop_audited")
"""A day without a breach is one of its partitions."""


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the day, its run and its token."""
    return open_audit(context, params["day"])


@log_errors
def open_audit(context: Mapping[str, Any], day: str | None) -> steps.Opened:
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
    with control_room() as room:
        audited = day_of(room.settings, datetime.now(UTC), chosen).name  # refuses before a run is opened
        run = open_run(room.control, "audit", "*", room.settings)
        return {"run_id": run.run_id, "token": run.token, "dry_run": False, "no_send": False, "due": 1, "day": audited}


@task(execution_timeout=timedelta(hours=3))
@log_errors
def look(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Every invariant at every place."""
    from backstop.audit.day import day_of
    from backstop.audit.run_once import look_everywhere, require_complete
    from backstop.errors import Unavailable

    with opened_run(opened) as (room, run):
        day = day_of(room.settings, run.as_of, date.fromisoformat(opened["day"]))
        counts = look_everywhere(room.settings, room.connections, room.control, run, day)
        try:
            require_complete(room.control, run)
        except Unavailable:
            ti.xcom_push(key=steps.SOMETHING_AWAY, value=True)
            raise
    return dict(counts)


@task(outlets=[AUDITED])
def publish_day(opened: str, report: str, **context: Any) -> str:
    """The day is a partition of the asset, with its Data Docs."""
    run = json.loads(opened)
    event = context["outlet_events"][AUDITED]
    event.add_partitions(run["day"])
    event.extra = {"run_id": run["run_id"], "day": run["day"], "report": report}
    return str(run["day"])
