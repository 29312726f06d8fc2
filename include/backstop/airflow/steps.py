"""What the tasks of several DAGs do: open a run, check it, close it. Each calls functions of backstop, no more.

Between tasks travel the run's id, its fencing token (which opens no door by itself) and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backstop.airflow.control_room import Room, control_room, docs_folder, log_errors, opened_run

if TYPE_CHECKING:
    from backstop.runs.run import EndState, Run

SOMETHING_AWAY = "something_away"
"""XCom key: the task failed because a store or broker did not answer, after it had done all else."""

log = logging.getLogger(__name__)

Opened = dict[str, Any]
"""run_id, token, dry_run, no_send, due: what one task hands to the next."""


@log_errors
def open_duty(
    duty: str, topic: str | None, dry_run: bool, count: Callable[[Room, Run], int],
    *, start: str | None = None, end: str | None = None, no_send: bool = False,
) -> Opened | None:  # fmt: skip
    """Opens a run over a topic (null: all) and the stubs created since `start` and before `end` (null: open); counts what is
    due. Null: nothing is due, and the run is recorded as done.

    Raises RunRefused while another run of this duty and scope lives, and whatever `count` raises: the run is
    then closed as failed (or incomplete, when something did not answer).
    """
    from datetime import datetime

    from backstop.records import Counts
    from backstop.runs.run import close_run, open_run
    from backstop.runs.scope import name_of

    with control_room() as room:
        require_topic(room, topic)
        since, before = (datetime.fromisoformat(text) if text else None for text in (start, end))
        scope = name_of([topic] if topic else None, since, before)
        run = open_run(room.control, duty, scope, room.settings, dry_run=dry_run, no_send=no_send)
        with closed_on_error(room, run):
            due = count(room, run)
        if due == 0:
            close_run(room.control, run, "done", Counts(due=0))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": no_send, "due": due}


def require_topic(room: Room, topic: str | None) -> None:
    """Raises ConfigurationError for a topic that the settings do not know."""
    from backstop.errors import ConfigurationError

    if topic is not None and topic not in room.settings.topics:
        raise ConfigurationError(
            f"There is no topic {topic!r}.",
            kept="Nothing was started.",
            next_step=f"Name one of: {', '.join(room.settings.topics)}.",
        )


@contextmanager
def closed_on_error(room: Room, run: Run) -> Iterator[None]:
    """A run whose counting fails is closed as failed, or as incomplete when something did not answer."""
    from backstop.errors import Unavailable
    from backstop.records import Counts
    from backstop.runs.run import close_run

    try:
        yield
    except BaseException as error:
        room.control.rollback()
        state: EndState = "incomplete" if isinstance(error, Unavailable) else "failed"
        close_run(room.control, run, state, Counts(), error=str(error))
        raise


def or_skip(opened: Opened | None, why: str) -> Opened:
    """The run, or AirflowSkipException when there is nothing to do, which skips all that follows."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened is None:
        raise AirflowSkipException(why)
    return opened


def away(context: Mapping[str, Any], failed: list[str]) -> bool:
    """Whether what failed did so because something did not answer: the run is then incomplete, not broken."""
    return any(context["ti"].xcom_pull(task_ids=task, key=SOMETHING_AWAY) for task in failed)


def failed_tasks(context: Mapping[str, Any]) -> list[str]:
    """The tasks of this DAG run that failed, or could not start because another one did."""
    task = context["ti"]
    states = task.get_task_states(dag_id=task.dag_id, run_ids=[task.run_id]).get(task.run_id, {})
    return sorted(name for name, state in states.items() if str(state) in ("failed", "upstream_failed"))


@log_errors
def check(suite: str, opened: Opened) -> str:
    """Runs one suite of data checks over the run; returns its report. Raises AuditFailed when a check does
    not hold."""
    return check_all([suite], opened)[0]


@log_errors
def check_all(suites: Sequence[str], opened: Opened) -> list[str]:
    """Runs the suites of one phase in one process, each to its end; returns their reports.

    Raises the AuditFailed of the first suite that does not hold, after all of them have run.
    """
    from backstop.errors import AuditFailed
    from backstop.quality import run_suite

    reports: list[str] = []
    failed: list[AuditFailed] = []
    with opened_run(opened) as (room, run):
        repair = [name for name, topic in room.settings.topics.items() if topic.mode == "repair"]
        url = room.connections.url(room.settings.control)
        for suite in suites:
            try:
                reports.append(run_suite(suite, url, run.run_id, None, docs_folder(), repair_topics=repair).report)
            except AuditFailed as error:
                log.error("backstop: %s", error.what)
                failed.append(error)
    if failed:
        raise failed[0]
    return reports


@log_errors
def close(opened: Opened, failed: list[str], *, away: bool = False) -> dict[str, Any]:
    """Closes the run as done, incomplete (not everything answered: `away`) or failed (these tasks failed);
    returns its summary.

    Raises AirflowFailException for a run that is not done, so that it ends red at once: what it did stays valid,
    and trying to close it again could not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.errors import Unavailable
    from backstop.reports.runs import counts_of
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        missed: Unavailable | None = None
        if not failed and run.duty == "reconcile":
            from backstop.reconcile.require_reachable import require_all_reachable

            try:
                require_all_reachable(room.control, run)
            except Unavailable as error:
                missed = error
        state: EndState = "incomplete" if missed or (failed and away) else "failed" if failed else "done"
        error_text = f"failed tasks: {', '.join(sorted(failed))}" if failed else str(missed) if missed else None
        counts = counts_of(room.control, run.run_id, int(opened["due"]))
        close_run(room.control, run, state, counts, error=error_text)
    if missed:
        log.error("backstop what: %s", missed.what)
    if state != "done":
        # This task alone decides what Airflow calls the DAG run: a tear-down that counts takes the place of every other end.
        raise AirflowFailException(error_text) from missed
    return {"run_id": run.run_id, "state": state, **counts}
