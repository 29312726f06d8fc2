"""What the tasks of the DAG `triage` do: each calls one step of backstop.dead_letters for the run that `open_run` opened.

A broker or database that does not answer stops no step: each does all else, hands on the sentence that names what was away,
and the tear-down ends the run as incomplete.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, task

from backstop.airflow import steps
from backstop.airflow.control_room import control_room, log_errors, opened_run
from backstop.airflow.duty_dag import with_links
from backstop.airflow.links import DataDocsLink
from backstop.airflow.spark_operator import SparkDutyOperator, spark_from
from backstop.airflow.wake import WORK, wake_duties

if TYPE_CHECKING:
    from backstop.runs.run import EndState

STEPS = ("drain", "classify", "decide_and_apply")
"""Tasks that go on although something was away."""
log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when there is nothing to do."""
    return steps.or_skip(open_triage(params["topic"], params["dry_run"]), "no letter, and nothing due")


@log_errors
def open_triage(topic: str | None, dry_run: bool) -> steps.Opened | None:
    """Opens a run over a topic (null: all) and counts. Null: there is nothing to do, and the run is recorded as done.

    What is only due for another look is looked at here: while people are asked, a look that finds all as it was is the rule.
    """
    from backstop.dead_letters.count_due import count_due
    from backstop.dead_letters.postpone import postpone_unchanged
    from backstop.records import Counts
    from backstop.runs.control import connect
    from backstop.runs.run import close_run, keep_alive, open_run
    from backstop.runs.scope import name_of

    with control_room() as room:
        steps.require_topic(room, topic)
        run = open_run(room.control, "triage", name_of([topic] if topic else None), room.settings, dry_run=dry_run)
        counts = Counts(due=0)
        with steps.closed_on_error(room, run):
            due = count_due(room.settings, room.connections, room.control, run)
            if not dry_run and due.total == due.to_decide > 0:
                with keep_alive(lambda: connect(room.settings, room.connections), run):
                    unchanged = postpone_unchanged(room.settings, room.connections, room.control, run)
                counts.add("unchanged", unchanged)
                due = replace(due, to_decide=max(0, due.to_decide - unchanged))
            if not due.total:
                due.require_reachable()
        if not due.total:
            close_run(room.control, run, "done", counts)
            return None
        log.info("backstop: %s", due)
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "due": due.total}


@task(execution_timeout=timedelta(hours=2))
@log_errors
def drain(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Store, then acknowledge."""
    from backstop.dead_letters.drain import drain_all
    from backstop.dead_letters.settle_replays import settle_replays
    from backstop.runs.run import add_counts

    with opened_run(opened) as (room, run):
        settled = settle_replays(room.control, run)
        if settled:
            add_counts(room.control, run, settled)
        return dict(settled + _reached(ti, lambda: drain_all(room.settings, room.connections, room.control, run)))


def check(task_id: str, suite: str, opened: Any) -> Any:
    """As `duty_dag.check`, skipped in a dry run."""
    return with_links(run_check.override(task_id=task_id)(suite=suite, opened=opened), DataDocsLink())


@task
def run_check(suite: str, opened: dict[str, Any]) -> str:
    """Stops what builds on it when a check does not hold; a dry run has written nothing to check."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened["dry_run"]:
        raise AirflowSkipException("a dry run writes nothing")
    return steps.check(suite, opened)


@task
@log_errors
def promote(opened: dict[str, Any]) -> dict[str, int]:
    """Causes, and the letters that have them."""
    from backstop.dead_letters.promote_causes import promote_causes

    with opened_run(opened) as (room, run):
        return dict(promote_causes(room.control, run))


# Classifying may have been skipped, but nothing before it may have failed: by a wrong category a poison would be replayed.
@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, execution_timeout=timedelta(hours=1), outlets=[WORK])
def decide_and_apply(opened: str, **context: Any) -> dict[str, int]:
    """Discards, requests, cases."""
    counts = decide(json.loads(opened), context["ti"])
    wake_duties(context)
    return counts


@log_errors
def decide(opened: steps.Opened, ti: Any) -> dict[str, int]:
    """Decides what is due and applies it; a dry run writes each decision into the log and applies none."""
    from backstop.dead_letters.apply import decide_and_apply

    def tell(decided: Any) -> None:
        log.info("backstop %s", decided)

    with opened_run(opened) as (room, run):
        work = lambda: decide_and_apply(room.settings, room.connections, room.control, run, tell=tell)  # noqa: E731
        return dict(_reached(ti, work))


def _reached(ti: Any, work: Callable[[], Any]) -> Any:
    """What `work` counts; when it did all but what needed something that is away, the name of that goes to the tear-down."""
    from backstop.errors import Unavailable
    from backstop.records import Counts

    try:
        return work()
    except Unavailable as error:
        log.error("backstop what: %s", error.what)
        ti.xcom_push(key=steps.SOMETHING_AWAY, value=error.what)
        return Counts()


class ClassifyOperator(SparkDutyOperator):
    """Classifies what the present rules have not: by Spark, or here when it is little; skipped when there is nothing."""

    def execute(self, context: Any) -> None:
        """Raises AirflowSkipException when every dead letter has its cause, and in a dry run, which stages nothing."""
        from airflow.sdk.exceptions import AirflowSkipException

        if self.opened["dry_run"]:
            raise AirflowSkipException("a dry run classifies nothing")
        waiting = classify_few(self.opened, spark_from())
        if waiting == 0:
            raise AirflowSkipException("every dead letter has its cause")
        if waiting >= spark_from():
            super().execute(context)


@log_errors
def classify_few(opened: steps.Opened, below: int) -> int:
    """Letters to classify; fewer than `below` are staged here, by the functions that the executors call."""
    from backstop.dead_letters.classify import classify_letters
    from backstop.dead_letters.count_due import count_stored

    with opened_run(opened) as (room, run):
        waiting = count_stored(room.settings, room.control, run, at_most=max(below, 1))[0]
        if 0 < waiting < below:
            classify_letters(room.control, room.settings, room.connections, run)
        return waiting


def missed(context: Mapping[str, Any]) -> list[str]:
    """The sentences that the steps handed on of what was away."""
    pulled = (context["ti"].xcom_pull(task_ids=task, key=steps.SOMETHING_AWAY) for task in STEPS)
    return [str(one) for one in pulled if one]


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    return close_triage(opened, steps.failed_tasks(context), missed(context))


@log_errors
def close_triage(opened: steps.Opened, failed: list[str], away: list[str]) -> dict[str, Any]:
    """Closes the run as done, incomplete (something was away) or failed (these tasks failed); returns its summary.

    Raises AirflowFailException for a run that is not done, so that it ends red at once.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.dead_letters.count_due import unread
    from backstop.reports.runs import counts_of
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        away = away + unread(room.control, run)
        state: EndState = "failed" if failed else "incomplete" if away else "done"
        told_of = [f"failed tasks: {', '.join(failed)}"] * bool(failed) + [f"away: {'; '.join(away)}"] * bool(away)
        counts = counts_of(room.control, run.run_id, int(opened["due"]))
        close_run(room.control, run, state, counts, error=". ".join(told_of) or None)
    if state != "done":
        raise AirflowFailException(". ".join(told_of))
    return {"run_id": run.run_id, "state": state, **counts}
