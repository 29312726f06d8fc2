"""What the tasks of the DAG `resend` do: open a run over what is due, or over a list of ids that somebody gave, and send it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.deciders import is_young, login_of, may_trigger

if TYPE_CHECKING:
    from backstop.config.settings import Settings
    from backstop.resend.run_once import ResendInput
    from backstop.runs.run import Run

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no request is due. A list is asked for by who triggered."""
    from backstop.resend.run_once import ResendInput

    given = ResendInput()
    if params["ids"]:
        run = context["dag_run"]
        given = listed(
            params["topic"],
            params["ids"],
            login_of(run),
            params["why"] or "",
            context["run_id"],
            young=is_young(run),
        )
    opened = steps.open_duty(
        "resend", given, scope=steps.scope_of(params["topic"]), dry_run=params["dry_run"]
    )
    return steps.or_skip(opened, "no request is due")


def resend_here(opened: steps.Opened, ti: Any) -> dict[str, int]:
    """What spark_jobs/resend.py does, by one worker in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.resend.run_once import ResendInput

    return steps.do(
        opened,
        "claim_publish_settle",
        ResendInput(tell=lambda planned: log.info("backstop %s", planned)),
        ti=ti,
    )


def listed(
    topic: str | None, ids: str, login: str | None, why: str, dag_run_id: str, *, young: bool = True
) -> ResendInput:
    """These ids, one a line; the log says what becomes of each. `login`: who triggered the run, as Airflow knows them; `young`:
    within a day. A run that is older, or of somebody who may not resend in the topic, is refused."""
    from backstop.model.errors import ConfigurationError, DecisionRefused
    from backstop.resend.ask_for_ids import read_ids
    from backstop.resend.run_once import Listing, ResendInput

    if topic is None:
        raise ConfigurationError(
            "A list of ids takes exactly one topic.",
            unaffected="Nothing was started.",
            next_step="Name the topic.",
        )

    def require_allowed(settings: Settings, run: Run) -> None:
        if not run.dry_run and not young:
            raise DecisionRefused(
                f"The run {dag_run_id} was triggered more than a day ago.",
                unaffected="Nothing was asked for.",
                next_step="Trigger another run: it asks in the name of who triggers it.",
            )
        if not run.dry_run and not may_trigger(settings, login, "resend", topic):
            raise DecisionRefused(
                f"{login or 'Nobody that Airflow knows'} may not send a list of ids of {topic}.",
                unaffected="Nothing was asked for.",
                next_step="Let somebody trigger it who may decide: `people` in backstop.yaml, or the role op.",
            )

    return ResendInput(
        listing=Listing(topic, read_ids(ids), login or "nobody", why, listed_in=dag_run_id),
        tell_listed=lambda one: log.info("backstop %s", one),
        require_allowed=require_allowed,
    )
