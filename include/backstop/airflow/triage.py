"""What the tasks of the DAG `triage` do: each calls one step of backstop.triage for the run that `open_run` opened.

A broker or database that does not answer stops no step: each does all else, hands on the sentence that names what was away,
and the tear-down ends the run as incomplete.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, task

from backstop.airflow import steps
from backstop.airflow.control_room import log_errors
from backstop.airflow.spark_operator import SparkDutyOperator, spark_from
from backstop.airflow.wake import WORK, wake_duties

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when there is nothing to do."""
    return steps.or_skip(
        open_triage(params["topic"], params["dry_run"]), "no dead letter, and nothing due"
    )


def open_triage(topic: str | None, dry_run: bool) -> steps.Opened | None:
    """A run over a topic (null: all)."""
    return steps.open_duty("triage", scope=steps.scope_of(topic), dry_run=dry_run)


@task(execution_timeout=timedelta(hours=2))
def drain(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Ends replays; then stores, and acknowledges."""
    settled = steps.do(opened, "settle_replays", ti=ti, raises=False)
    return settled | steps.do(opened, "drain", ti=ti, raises=False)


@task
def promote(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Causes, and the letters that have them."""
    return steps.do(opened, "promote", ti=ti)


# Classifying may have been skipped, but nothing before it may have failed: by a wrong category a poison would be replayed.
@task(
    trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    execution_timeout=timedelta(hours=1),
    outlets=[WORK],
)
def decide_and_apply(opened: str, **context: Any) -> dict[str, int]:
    """Discards, requests, cases."""
    counts = decide(json.loads(opened), context["ti"])
    wake_duties(context)
    return counts


def decide(opened: steps.Opened, ti: Any) -> dict[str, int]:
    """Decides what is due and applies it; a dry run writes each decision into the log and applies none."""
    from backstop.triage.run_once import TriageInput

    given = TriageInput(lambda decided: log.info("backstop %s", decided))
    return steps.do(opened, "decide_and_apply", given, ti=ti, raises=False)


class ClassifyOperator(SparkDutyOperator):
    """Classifies what the present rules have not: by Spark, or here when it is little; skipped when there is nothing."""

    def execute(self, context: Any) -> None:
        """Raises AirflowSkipException when every dead letter has its cause, and in a dry run, which stages nothing."""
        from airflow.sdk.exceptions import AirflowSkipException

        if self.opened["dry_run"]:
            raise AirflowSkipException("a dry run classifies nothing")
        waiting = classify_few(self.opened, spark_from(), context["ti"])
        if waiting == 0:
            raise AirflowSkipException("every dead letter has its cause")
        if waiting >= spark_from():
            super().execute(context)


@log_errors
def classify_few(opened: steps.Opened, below: int, ti: Any = None) -> int:
    """Letters to classify; fewer than `below` are staged here, by the functions that the executors call."""
    from backstop.triage.count_due import count_stored

    with steps.opened_work(opened) as work:
        waiting = count_stored(work.settings, work.control, work.run, at_most=max(below, 1))[0]
    if 0 < waiting < below:
        steps.do(opened, "classify", ti=ti, raises=False)
    return waiting
