"""What the tasks of the DAG `reconcile` do."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.wake import WORK, wake_duties

JUDGED = ("stub_contract", "log_contract", "verdicts")
"""What is checked between judging and promoting."""


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token, and how much is due. It changes nothing else."""
    from airflow.sdk.exceptions import AirflowSkipException

    from backstop.model.errors import RunRefused

    try:
        opened = steps.open_duty(
            "reconcile",
            scope=steps.scope_of(params["topic"], params["from"], params["to"]),
            dry_run=params["dry_run"],
            no_send=params["no_send"],
        )
    except RunRefused as error:
        # The live run judges what is due. If it never ends, `watch` reports an overdue duty.
        if context["dag_run"].run_type in ("scheduled", "asset_triggered"):
            raise AirflowSkipException(error.what) from error
        raise
    assert opened is not None, "there is something to do also when nothing is due"
    return opened


@task
def revisit(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Late attempts and the messages of open cases, also when nothing is due; a dry run does neither.

    Judging needs nothing of it: whatever happens here, it goes on."""
    return steps.do(opened, "recover", ti=ti) | steps.do(opened, "revisit", ti=ti, raises=False)


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
    counts = steps.do(opened, "promote", ti=context["ti"])
    wake_duties(context)
    return counts
