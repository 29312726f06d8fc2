"""What the tasks of the retention DAG do. Light: DAG files import it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from backstop.airflow import steps as duty

LONGEST = timedelta(hours=11)
"""The task's own limit is an hour longer: a purge ends by itself, between two steps."""


@duty.told
def open_retention(dry_run: bool, now: bool) -> dict[str, Any] | None:
    """Opens the run. Null: the window is shut, and the run is recorded as done."""
    from backstop.records import Counts
    from backstop.retention.kept import require_safe
    from backstop.retention.run_once import pace_of
    from backstop.runs.run import close_run, open_run

    with duty.control_room() as room:
        require_safe(room.settings)
        run = open_run(room.control, "retention", "*", room.settings, dry_run=dry_run)
        if pace_of(room.settings, run, now=now or dry_run) is None:
            close_run(room.control, run, "done", Counts(window_is_shut=1))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": False, "due": 0, "now": now or dry_run}


@duty.told
def purge(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Takes away what is over, step by step, until the window shuts; returns its counts."""
    from backstop.errors import Unavailable
    from backstop.retention.run_once import pace_of
    from backstop.retention.run_once import purge as purge_all
    from backstop.runs.control import connect
    from backstop.runs.run import add_counts, find, keep_alive

    with duty.control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        pace = pace_of(room.settings, run, now=bool(opened["now"]))
        if pace is None:
            return {}
        pace.end_after(LONGEST)
        with keep_alive(lambda: connect(room.settings, room.connections), run) as lost:
            pace.stop = lost
            try:
                counts = purge_all(room.settings, room.connections, room.control, run, pace, duty.docs_folder())
            except Unavailable:
                ti.xcom_push(key=duty.SOMETHING_AWAY, value=True)
                raise
        add_counts(room.control, run, counts)
    return dict(counts)
