"""What the tasks of the DAG `sweep` do."""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.sdk import TriggerRule, task

from backstop.airflow import steps
from backstop.airflow.control_room import Room
from backstop.airflow.wake import WORK, wake_duties

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no lease ended."""
    return steps.or_skip(open_sweep(params["group"], params["dry_run"]), "no lease ended")


def open_sweep(group: str | None, dry_run: bool) -> steps.Opened | None:
    """A sweep over one group (null: all)."""

    def scope(room: Room) -> str:
        from backstop.sweep.parts import parts_of
        from backstop.sweep.run_once import scope_of_groups

        groups = [group] if group else None
        parts_of(room.settings, groups)  # refuses a group that there is not
        return scope_of_groups(groups)

    return steps.open_duty("sweep", scope=scope, dry_run=dry_run)


def sweep_here(opened: steps.Opened, ti: Any) -> dict[str, int]:
    """What spark_jobs/sweep.py does, part after part in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.sweep.run_once import SweepInput

    return steps.do(
        opened, "sweep", SweepInput(lambda told: log.info("backstop would %s", told)), ti=ti
    )


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS, outlets=[WORK])
def audit_after(suite: str, opened: str, **context: Any) -> str:
    """Runs after a failed job as well: that is when it matters most. The cases and alerts of the sweep are committed by then."""
    checked = steps.check(suite, json.loads(opened))
    wake_duties(context)
    return checked
