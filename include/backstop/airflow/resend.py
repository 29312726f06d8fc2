"""What the tasks of the DAG `resend` do: open a run over what is due, or over a list of ids that somebody gave, and send it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import Room, log_errors, opened_run
from backstop.airflow.deciders import is_young, may_trigger

if TYPE_CHECKING:
    from backstop.runs.run import Run

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no request is due. A list is asked for by who triggered."""
    count: Callable[[Room, Run], int] = count_due
    if params["ids"]:
        run = context["dag_run"]
        count = resend_listed(
            params["topic"], params["ids"], run.triggering_user_name, params["why"] or "", context["run_id"], young=is_young(run)
        )
    return steps.or_skip(steps.open_duty("resend", params["topic"], params["dry_run"], count), "no request is due")


def count_due(room: Room, run: Run) -> int:
    """What may go out now in the run's scope."""
    from backstop.resend.count_due import count_due
    from backstop.runs.scope import topics_of

    return count_due(room.control, room.settings, topics_of(run.scope))


@log_errors
def resend_here(opened: steps.Opened) -> dict[str, int]:
    """What spark_jobs/resend.py does, by one worker in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.resend.work import run_once

    with opened_run(opened) as (room, run):
        return dict(run_once(room.settings, room.connections, run, tell=lambda planned: log.info("backstop %s", planned)))


def resend_listed(
    topic: str | None, ids: str, login: str | None, why: str, dag_run_id: str, *, young: bool = True
) -> Callable[[Room, Run], int]:
    """Asks for these ids (one a line) and limits the run to them; the log says what becomes of each. Counts what may go.

    `login`: who triggered the run, as Airflow knows them; `young`: within a day. The function raises DecisionRefused when it is
    older or they may not resend in the topic, and what ask_for_ids raises.
    """

    def count(room: Room, run: Run) -> int:
        from backstop.errors import ConfigurationError, DecisionRefused
        from backstop.resend.ask_for_ids import ask_for_ids, read_ids

        if topic is None:
            raise ConfigurationError("A list of ids is of one topic.", kept="Nothing was started.", next_step="Name the topic.")
        if not run.dry_run and not young:
            raise DecisionRefused(
                f"The run {dag_run_id} was triggered more than a day ago.", kept="Nothing was asked for.",
                next_step="Trigger another run: it asks in the name of who triggers it.",
            )  # fmt: skip
        if not run.dry_run and not may_trigger(room.settings, login, "resend", topic):
            raise DecisionRefused(
                f"{login or 'Nobody that Airflow knows'} may not send a list of ids of {topic}.", kept="Nothing was asked for.",
                next_step="Let somebody trigger it who may decide: `people` in backstop.yaml, or the role op.",
            )  # fmt: skip
        listed = ask_for_ids(
            room.settings, room.connections, room.control, run, topic, read_ids(ids), login or "nobody", why, listed_in=dag_run_id
        )
        for one in listed:
            log.info("backstop %s", one)
        return sum(one.sendable for one in listed)

    return count
