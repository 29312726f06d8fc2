"""What the tasks of the DAG `reconcile` do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import Room, log_errors, opened_run
from backstop.airflow.wake import WORK, wake_duties

if TYPE_CHECKING:
    from backstop.runs.run import Run

JUDGED = ("stubs_at_the_door", "logs_at_the_door", "verdicts")
"""What is checked between judging and promoting."""


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when nothing is due."""
    from airflow.sdk.exceptions import AirflowSkipException

    from backstop.errors import RunRefused

    try:
        opened = steps.open_duty(
            "reconcile", params["topic"], params["dry_run"], count_due,
            start=params["from"], end=params["to"], no_send=params["no_send"],
        )  # fmt: skip
    except RunRefused as error:
        # The live run judges what is due. If it never ends, `watch` reports an overdue duty.
        if context["dag_run"].run_type == "scheduled":
            raise AirflowSkipException(error.what) from error
        raise
    return steps.or_skip(opened, "nothing is due")


def count_due(room: Room, run: Run) -> int:
    """Stubs due in the run's scope, after late attempts were recovered and the messages of open cases were judged again."""
    from backstop.reconcile.begin import begin
    from backstop.reconcile.count_due import count_due
    from backstop.runs.scope import scope_of

    begin(room.settings, room.connections, room.control, run)
    due = count_due(room.settings, room.connections, run.as_of, scope_of(run.scope))
    if due.total == 0:
        due.require_reachable()
    return due.total


@task
def audit_judged(suites: list[str], opened: dict[str, Any]) -> list[str]:
    """Stops everything after it if a check fails."""
    return steps.check_all(suites, opened)


@task(outlets=[WORK])
def promote(opened: dict[str, Any], **context: Any) -> dict[str, int]:
    """Control database first, then each shard; a dry run stops here."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened["dry_run"]:
        raise AirflowSkipException("a dry run promotes nothing")
    counts = promote_judged(opened)
    wake_duties(context)
    return counts


@log_errors
def promote_judged(opened: steps.Opened) -> dict[str, int]:
    """Applies what was judged and checked; returns its counts."""
    from backstop.reconcile.anomalies import find_anomalies
    from backstop.reconcile.promote import promote as promote_run

    with opened_run(opened) as (room, run):
        counts = promote_run(room.settings, room.connections, room.control, run)
        return dict(counts + find_anomalies(room.settings, room.connections, room.control, run))
