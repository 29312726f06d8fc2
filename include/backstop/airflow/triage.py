"""What the tasks of the DAG `triage` do: each calls one step of backstop.dead_letters for the run that `open_run` opened.

A broker or database that does not answer stops no step: each does all else, hands on the sentence that names what was away,
and the tear-down ends the run as incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backstop.airflow.spark_operator import SparkDutyOperator, spark_from
from backstop.airflow.steps import SOMETHING_AWAY, Opened, control_room, counts_of, going_on, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from backstop.runs.run import EndState

STEPS = ("drain", "classify", "decide_and_apply")
"""Tasks that go on although something was away."""
log = logging.getLogger(__name__)


@told
def open_triage(topic: str | None, dry_run: bool) -> Opened | None:
    """Opens a run over a topic (null: all) and counts. Null: there is nothing to do, and the run is recorded as done.

    What is only due for another look is looked at here: while people are asked, a look that finds all as it was is the rule.
    """
    from backstop.dead_letters.count_due import count_due
    from backstop.dead_letters.postpone import postpone_unchanged
    from backstop.errors import ConfigurationError, Unavailable
    from backstop.records import Counts
    from backstop.runs.control import connect
    from backstop.runs.run import close_run, keep_alive, open_run
    from backstop.runs.scope import name_of

    with control_room() as room:
        if topic is not None and topic not in room.settings.topics:
            raise ConfigurationError(
                f"There is no topic {topic!r}.",
                kept="Nothing was started.",
                next_step=f"Name one of: {', '.join(room.settings.topics)}.",
            )
        run = open_run(room.control, "triage", name_of([topic] if topic else None), room.settings, dry_run=dry_run)
        counts = Counts(due=0)
        try:
            due = count_due(room.settings, room.connections, room.control, run)
            if not dry_run and due.total == due.to_decide > 0:
                with keep_alive(lambda: connect(room.settings, room.connections), run):
                    unchanged = postpone_unchanged(room.settings, room.connections, room.control, run)
                counts.add("unchanged", unchanged)
                due = replace(due, to_decide=max(0, due.to_decide - unchanged))
            if not due.total:
                due.require_reachable()
        except BaseException as error:
            room.control.rollback()
            state: EndState = "incomplete" if isinstance(error, Unavailable) else "failed"
            close_run(room.control, run, state, Counts(), error=str(error))
            raise
        if not due.total:
            close_run(room.control, run, "done", counts)
            return None
        log.info("backstop: %s", due)
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "due": due.total}


@told
def drain(opened: Opened, ti: Any) -> dict[str, int]:
    """Ends the replays whose request has ended, then empties the dead-letter queues; a dry run only counts what is in them."""
    from backstop.dead_letters.drain import drain_all
    from backstop.dead_letters.settle_replays import settle_replays
    from backstop.runs.run import add_counts

    with going_on(opened) as (room, run):
        settled = settle_replays(room.control, run)
        if settled:
            add_counts(room.control, run, settled)
        return dict(settled + _reached(ti, lambda: drain_all(room.settings, room.connections, room.control, run)))


@told
def promote(opened: Opened) -> dict[str, int]:
    """Gives causes to the letters that were classified and audited."""
    from backstop.dead_letters.promote_causes import promote_causes

    with going_on(opened) as (room, run):
        return dict(promote_causes(room.control, run))


@told
def decide(opened: Opened, ti: Any) -> dict[str, int]:
    """Decides what is due and applies it; a dry run writes each decision into the log and applies none."""
    from backstop.dead_letters.apply import decide_and_apply

    def tell(decided: Any) -> None:
        log.info("backstop %s", decided)

    with going_on(opened) as (room, run):
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
        ti.xcom_push(key=SOMETHING_AWAY, value=error.what)
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


@told
def classify_few(opened: Opened, below: int) -> int:
    """Letters to classify; fewer than `below` are staged here, by the functions that the executors call."""
    from backstop.dead_letters.classify import classify_letters
    from backstop.dead_letters.count_due import count_stored

    with going_on(opened) as (room, run):
        waiting = count_stored(room.settings, room.control, run, at_most=max(below, 1))[0]
        if 0 < waiting < below:
            classify_letters(room.control, room.settings, room.connections, run)
        return waiting


def missed(context: Mapping[str, Any]) -> list[str]:
    """The sentences that the steps handed on of what was away."""
    pulled = (context["ti"].xcom_pull(task_ids=task, key=SOMETHING_AWAY) for task in STEPS)
    return [str(one) for one in pulled if one]


@told
def close_triage(opened: Opened, failed: list[str], away: list[str]) -> dict[str, Any]:
    """Closes the run as done, incomplete (something was away) or failed (these tasks failed); returns its summary.

    Raises AirflowFailException for a run that is not done, so that it ends red at once.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.dead_letters.count_due import unread
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        away = away + unread(room.control, run)
        state: EndState = "failed" if failed else "incomplete" if away else "done"
        told_of = [f"failed tasks: {', '.join(failed)}"] * bool(failed) + [f"away: {'; '.join(away)}"] * bool(away)
        counts = counts_of(room.control, run, int(opened["due"]))
        close_run(room.control, run, state, counts, error=". ".join(told_of) or None)
    if state != "done":
        raise AirflowFailException(". ".join(told_of))
    return {"run_id": run.run_id, "state": state, **counts}
