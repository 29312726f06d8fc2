"""What the tasks of the DAG `retention` do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import Room, docs_folder

LONGEST = timedelta(hours=11)
"""The task's own limit is an hour longer: a purge ends by itself, between two steps."""


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything while the window is shut."""
    return steps.or_skip(open_retention(params["dry_run"], params["now"]), "the window is shut")


def open_retention(dry_run: bool, now: bool) -> steps.Opened | None:
    """Opens the run. Null: the window is shut, and the run is recorded as done."""
    from backstop.config.kept import require_safe
    from backstop.retention.run_once import RetentionInput

    def scope(room: Room) -> str:
        require_safe(room.settings)
        return "*"

    opened = steps.open_duty("retention", RetentionInput(now), scope=scope, dry_run=dry_run)
    return None if opened is None else opened | {"now": now or dry_run}


@task(execution_timeout=LONGEST + timedelta(hours=1))
def purge(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """The whole purge."""
    from backstop.retention.run_once import RetentionInput

    return steps.do(
        opened, "purge", RetentionInput(bool(opened["now"]), docs_folder(), LONGEST), ti=ti
    )
