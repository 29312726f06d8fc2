"""What the tasks of the DAG `sweep` do."""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.sdk import TriggerRule, task

from backstop.airflow import steps
from backstop.airflow.control_room import control_room, log_errors, opened_run
from backstop.airflow.wake import WORK, wake_duties

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no lease ended."""
    return steps.or_skip(open_sweep([params["group"]] if params["group"] else [], params["dry_run"]), "no lease ended")


@log_errors
def open_sweep(groups: list[str], dry_run: bool) -> steps.Opened | None:
    """Opens a sweep over these groups (none: all) and counts, in milliseconds, what ended. Null: nothing did."""
    from backstop.records import Counts
    from backstop.runs.run import close_run, open_run
    from backstop.sweep.parts import parts_of
    from backstop.sweep.run_once import count_before, scope_of_groups

    with control_room() as room:
        parts_of(room.settings, groups or None)
        run = open_run(room.control, "sweep", scope_of_groups(groups), room.settings, dry_run=dry_run)
        with steps.closed_on_error(room, run):
            counted = count_before(room.settings, room.connections, room.control, run)
            idle = not counted.leases and not counted.is_sample_due
            if idle:
                counted.require_reachable()
        if idle:
            close_run(room.control, run, "done", Counts(due=0))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": False, "due": counted.leases}


@log_errors
def sweep_here(opened: steps.Opened) -> dict[str, int]:
    """What spark_jobs/sweep.py does, part after part in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.sweep.run_once import in_this_process, sweep_all

    with opened_run(opened) as (room, run):
        tell = (lambda told: log.info("backstop would %s", told)) if run.dry_run else None
        spread = in_this_process(room.settings, room.connections, run, tell)
        return dict(sweep_all(room.settings, room.connections, room.control, run, spread))


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS, outlets=[WORK])
def audit_after(suite: str, opened: str, **context: Any) -> str:
    """Runs after a failed job as well: that is when it matters most. The cases and alerts of the sweep are committed by then."""
    checked = steps.check(suite, json.loads(opened))
    wake_duties(context)
    return checked
