"""What the tasks of several DAGs do: open a run, check it, close it. Each calls functions of backstop, no more.

Between tasks travel the run's id, its fencing token (which opens no door by itself) and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backstop.airflow.control_room import Room, control_room, docs_folder, log_errors

if TYPE_CHECKING:
    from backstop.runs.duty import Work

SOMETHING_AWAY = "something_away"
"""XCom key: what did not answer a task, which did all else."""

log = logging.getLogger(__name__)

Opened = dict[str, Any]
"""What one task hands to the next: run_id, token, dry_run, no_send, due (null: nothing), and away: what did not answer, if
anything."""


@log_errors
def open_duty(
    name: str,
    given: Any = None,
    *,
    scope: str | Callable[[Room], str] = "*",
    dry_run: bool = False,
    no_send: bool = False,
) -> Opened | None:
    """Opens a run of this duty and counts what is due. Null: nothing is, and the run is recorded as done.

    `scope`: a function may refuse what was asked for by the settings. Raises as `runs.duty.open_due`.
    """
    from backstop.duties import duty_named
    from backstop.runs.duty import open_due

    with control_room() as room:
        found = open_due(
            duty_named(name),
            room.settings,
            room.connections,
            room.control,
            given,
            scope=scope if isinstance(scope, str) else scope(room),
            dry_run=dry_run,
            no_send=no_send,
        )
        if found is None:
            return None
        work, missed = found
        run, due = work.run, work.due if work.duty.due is not None else 1
        opened = {
            "run_id": run.run_id,
            "token": run.token,
            "dry_run": dry_run,
            "no_send": no_send,
            "due": due,
        }
        return opened | ({} if missed is None else {"away": missed.what})


@log_errors
def do(
    opened: Opened, step: str, given: Any = None, *, ti: Any = None, raises: bool = True
) -> dict[str, int]:
    """Does one step of an opened run; returns its counts. What did not answer goes to the task that closes the run.

    `raises` false: the task is green all the same, because those after it can do without.
    """
    from backstop.model.errors import Unavailable
    from backstop.runs.duty import do_step

    counts: dict[str, int] = {}
    try:
        with opened_work(opened, given) as work:
            counts = work.counts
            do_step(work, step)
            counts = work.counts
    except Unavailable as error:
        if ti is not None:
            ti.xcom_push(key=SOMETHING_AWAY, value=error.what)
        if raises:
            raise
        log.error("backstop what: %s", error.what)
    return dict(counts)


@contextmanager
def opened_work(opened: Mapping[str, Any], given: Any = None) -> Iterator[Work[Any]]:
    """The run that an earlier task opened, kept alive meanwhile. Raises RunLost when it is not ours any more."""
    from backstop.duties import duty_named
    from backstop.runs.duty import Work
    from backstop.runs.run import find, keep_alive

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        work = Work(duty_named(run.duty), room.settings, room.connections, room.control, run, given)
        with keep_alive(work.connect, run) as work.lost:
            yield work


def scope_of(
    topic: str | None, start: str | None = None, end: str | None = None
) -> Callable[[Room], str]:
    """A topic (null: all) and the stubs created since `start` and before `end` (null: open)."""

    def scope(room: Room) -> str:
        from backstop.config.instant import read_instant
        from backstop.runs.scope import name_of

        require_topic(room, topic)
        # Airflow does not check what its form calls a date-time.
        since, before = (
            read_instant(field, text) if text else None
            for field, text in (("from", start), ("to", end))
        )
        return name_of([topic] if topic else None, since, before)

    return scope


def require_topic(room: Room, topic: str | None) -> None:
    """Raises ConfigurationError for a topic that the settings do not know."""
    from backstop.model.errors import ConfigurationError

    if topic is not None and topic not in room.settings.topics:
        raise ConfigurationError(
            f"There is no topic {topic!r}.",
            unaffected="Nothing was started.",
            next_step=f"Name one of: {', '.join(room.settings.topics)}.",
        )


def or_skip(opened: Opened | None, why: str) -> Opened:
    """The run, or AirflowSkipException when there is nothing to do, which skips all that follows."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened is None:
        raise AirflowSkipException(why)
    return opened


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """Tasks of a DAG run: those that failed, and by task what did not answer."""

    failed: list[str] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)


def ended(context: Mapping[str, Any]) -> EndedTasks:
    """How the tasks before this one ended."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
    began = [name for name, state in states.items() if str(state) in ("success", "failed")]
    said = {name: ti.xcom_pull(task_ids=name, key=SOMETHING_AWAY) for name in began}
    # Those that could not start because of another one say nothing by themselves.
    failed = sorted(name for name, state in states.items() if str(state) == "failed")
    return EndedTasks(failed, {name: str(what) for name, what in said.items() if what})


@log_errors
def check(suite: str, opened: Opened) -> str:
    """Runs one suite of data checks over the run; returns its report. Raises AuditFailed when a check does
    not hold."""
    return check_all([suite], opened)[0]


@log_errors
def check_all(suites: Sequence[str], opened: Opened) -> list[str]:
    """Runs the suites of one phase side by side, each to its end; returns their reports.

    Raises AuditFailed, which names every suite that does not hold, after all of them have run; AirflowSkipException in a dry run
    that wrote nothing to check.
    """
    from airflow.sdk.exceptions import AirflowSkipException

    from backstop.checks import run_suites
    from backstop.checks.run import given_by

    with opened_work(opened) as work:
        if not all(work.duty.includes(suite, dry_run=work.run.dry_run) for suite in suites):
            raise AirflowSkipException("a dry run wrote nothing to check")
        work.run.phase.begin(f"check {', '.join(suites)}")
        url = work.connections.url(work.settings.control)
        results = run_suites(
            suites, url, work.run.run_id, None, docs_folder(), **given_by(work.settings)
        )
    return [result.report for result in results if result.report is not None]


@log_errors
def close(opened: Opened, tasks: EndedTasks) -> dict[str, Any]:
    """Closes the run as its tasks ended; returns its summary.

    Raises AirflowFailException for a run that is not done, so that it ends red at once: what it did stays valid,
    and trying to close it again could not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.model.errors import BackstopError, Unavailable
    from backstop.reports.runs import counts_of
    from backstop.runs.duty import close as close_work

    away = dict(tasks.away) | ({"open_run": opened["away"]} if "away" in opened else {})
    said = [f"failed tasks: {', '.join(tasks.failed)}"] * bool(tasks.failed)
    said += [f"away: {'; '.join(f'{name}: {what}' for name, what in away.items())}"] * bool(away)
    errors: list[BaseException] = [
        Unavailable(f"{name}: {what}", unaffected="", next_step="") for name, what in away.items()
    ]
    errors += [AirflowFailException(". ".join(said))] * any(
        name not in away for name in tasks.failed
    )
    with opened_work(opened) as work:
        counts = counts_of(work.control, work.run.run_id, int(opened["due"] or 0))
        state, worst = close_work(work, errors, counts)
    if worst is not None:
        text = worst.what if isinstance(worst, BackstopError) else str(worst)
        log.error("backstop what: %s", text)
        # This task alone decides what Airflow calls the DAG run: a tear-down that counts takes the place of every other end.
        raise AirflowFailException(text) from worst
    return {"run_id": work.run.run_id, "state": state, **counts}
