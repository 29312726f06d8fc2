"""What the tasks of the DAG `retention` do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import control_room, docs_folder, log_errors

LONGEST = timedelta(hours=11)
"""The task's own limit is an hour longer: a purge ends by itself, between two steps."""


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything while the window is shut."""
    return steps.or_skip(open_retention(params["dry_run"], params["now"]), "the window is shut")


@log_errors
def open_retention(dry_run: bool, now: bool) -> steps.Opened | None:
    """Opens the run. Null: the window is shut, and the run is recorded as done."""
    from backstop.records import Counts
    from backstop.retention.kept import require_safe
    from backstop.retention.run_once import pace_of
    from backstop.runs.run import close_run, open_run

    with control_room() as room:
        require_safe(room.settings)
        run = open_run(room.control, "retention", "*", room.settings, dry_run=dry_run)
        if pace_of(room.settings, run, now=now or dry_run) is None:
            close_run(room.control, run, "done", Counts(window_is_shut=1))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": False, "due": 0, "now": now or dry_run}


@task(execution_timeout=LONGEST + timedelta(hours=1))
@log_errors
def purge(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """The whole purge."""
    from backstop.errors import Unavailable
    from backstop.retention.run_once import pace_of
    from backstop.retention.run_once import purge as purge_all
    from backstop.runs.control import connect
    from backstop.runs.run import add_counts, find, keep_alive

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        pace = pace_of(room.settings, run, now=bool(opened["now"]))
        if pace is None:
            return {}
        pace.end_after(LONGEST)
        with keep_alive(lambda: connect(room.settings, room.connections), run) as lost:
            pace.stop = lost
            try:
                counts = purge_all(room.settings, room.connections, room.control, run, pace, docs_folder())
            except Unavailable:
                ti.xcom_push(key=steps.SOMETHING_AWAY, value=True)
                raise
        add_counts(room.control, run, counts)
    return dict(counts)
