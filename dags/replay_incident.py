"""### replay_incident: plan, show, approve and resend what an incident lost

By hand only. Plans which deliveries of a topic (and window) are sent again, shows the plan, waits
for an approval if one is needed, and requests exactly what was shown. The DAG `resend` sends it, in
the steps of its ramp and at its rate.

    plan >> approve >> replay

What each task does, and what to do when it is red:

- **plan** chooses by verdict (LOST, UNSENT, STALLED: judged again now) or by dead letters (their
  causes, or DEAD_LETTERED for all), and stores the plan; its log and XCom show it. Red: a database
  was down, or the form asks for something impossible; the log says which.
- **approve** shows the plan under *Required Actions* and waits. Skipped: a dry run, an empty plan,
  or a canary within the blast radius that was triggered by somebody who may decide (as in
  `decide_case`). Red: Airflow could not write the question; clear it. An answer in the first second
  after the question may be lost, and the question comes again; or it stays in Airflow, and is
  applied ten minutes later.
- **replay** requests the planned deliveries: with `canary` the first few, with `full` all. It skips
  what has changed since the plan. Skipped: a dry run, or the plan was rejected. Red: clear it;
  nothing is requested twice. Red because the approval was for another plan (`plan` was cleared by
  itself): clear `approve` and what follows it.

**Is it safe to run twice?** Yes. A plan requests each send number once, and each is judged again
before it is published.

**By hand**: *Trigger* with `topic`, `verdicts` or `causes`, `why`, and first with `mode` dry_run,
then canary, then full. Or `backstop replay`.

**Stop**: `backstop pause TOPIC --why ...`: requests wait.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag, task

from backstop.airflow import replay_incident as incident
from backstop.airflow.decide_case import AskPersonOperator
from backstop.airflow.notify import tell_failure
from backstop.airflow.wake import WORK, wake_duties

ONE_OF = ["LOST", "UNSENT", "STALLED", "DEAD_LETTERED"]


@task
def plan(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """In the name of who triggered the run."""
    return incident.plan(params, context["dag_run"].triggering_user_name or "", context["run_id"])


# No approval may have been needed.
@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, outlets=[WORK])
def replay(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """In the name of who said yes, else of who planned."""
    done = incident.replay(context["run_id"], params["mode"], context["dag_run"])
    wake_duties(context)
    return done


@dag(
    dag_id="replay_incident",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=16,  # an approval may take hours, and another incident need not wait for it
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
    },
    params={
        "topic": Param(type="string", minLength=1, title="Topic"),
        "from": Param(
            None, type=["null", "string"], format="date-time", title="From", description="Created since; dead letters: died since"
        ),
        "to": Param(None, type=["null", "string"], format="date-time", title="To", description="... and before"),
        "verdicts": Param([], type="array", items={"type": "string", "enum": ONE_OF}, title="Verdicts"),
        "causes": Param([], type="array", items={"type": "integer"}, title="Causes", description="Ids of causes of dead letters"),
        "group": Param(None, type=["null", "string"], minLength=1, title="Group", description="Empty: every consumer group"),
        "limit": Param(None, type=["null", "integer"], minimum=1, title="Limit", description="At most so many deliveries"),
        "rate": Param(None, type=["null", "number"], exclusiveMinimum=0, title="Rate", description="Messages a second"),
        "mode": Param("dry_run", type="string", enum=["dry_run", "canary", "full"], title="Mode"),
        "why": Param(type="string", minLength=1, title="Why", description="Kept with the plan"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def replay_incident() -> None:
    """Wiring only."""
    planned = plan.override(execution_timeout=timedelta(hours=1))()
    approved = AskPersonOperator(
        task_id="approve", form=incident.ask_for_approval, receive=incident.receive_approval,
        retries=3, retry_delay=timedelta(seconds=1),
    )  # fmt: skip
    replayed = replay.override(execution_timeout=timedelta(hours=1))()
    planned >> approved >> replayed
    planned >> replayed


dag = replay_incident()
