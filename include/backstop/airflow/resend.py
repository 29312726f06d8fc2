"""Sends a list of ids that somebody gives the DAG `resend`, in the name of who triggered the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from backstop.airflow.decide_case import may_trigger
from backstop.airflow.steps import Room

if TYPE_CHECKING:
    from backstop.runs.run import Run

log = logging.getLogger(__name__)


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
