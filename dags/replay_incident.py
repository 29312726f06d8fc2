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

from datetime import timedelta

from airflow.sdk import Param

from backstop.airflow.ask_person import AskPersonOperator
from backstop.airflow.duty_dag import backstop_dag, instant, one_of_all, retry_delay
from backstop.airflow.replay_incident import ask_for_approval, plan, receive_approval, replay

ONE_OF = ["LOST", "UNSENT", "STALLED", "DEAD_LETTERED"]


@backstop_dag(
    __doc__,
    schedule=None,
    max_active_runs=16,  # an approval may take hours, and another incident need not wait for it
    default_args={"retries": 1, "retry_delay": retry_delay()},
    params={
        "topic": Param(type="string", minLength=1, title="Topic"),
        "from": instant("From", "Created since; dead letters: died since"),
        "to": instant("To", "... and before"),
        "verdicts": Param(
            [], type="array", items={"type": "string", "enum": ONE_OF}, title="Verdicts"
        ),
        "causes": Param(
            [],
            type="array",
            items={"type": "integer"},
            title="Causes",
            description="Ids of causes of dead letters",
        ),
        "category": one_of_all("Category", "Of dead letters; empty: every category"),
        "case": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Case",
            description="Dead letters of this case alone",
        ),
        "group": one_of_all("Group", "Empty: every consumer group"),
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Limit",
            description="At most so many deliveries",
        ),
        "rate": Param(
            None,
            type=["null", "number"],
            exclusiveMinimum=0,
            title="Rate",
            description="Messages a second from when it is asked for;"
            " what a pause or the ramp held past its turn follows at the topic's limit",
        ),
        "mode": Param("dry_run", type="string", enum=["dry_run", "canary", "full"], title="Mode"),
        "why": Param(type="string", minLength=1, title="Why", description="Kept with the plan"),
    },
)
def replay_incident() -> None:
    planned = plan()
    approved = AskPersonOperator(
        task_id="approve",
        form=ask_for_approval,
        receive=receive_approval,
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
    replayed = replay()

    planned >> approved >> replayed
    planned >> replayed


dag = replay_incident()
