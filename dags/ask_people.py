"""### ask_people: ask people about open cases, the most severe first

Starts a run of `decide_case` for open cases without a question, a few at a time
(`people.questions`, 10), and ends the questions whose case was decided or closed elsewhere. The
duties that open and close cases start it, and so does `watch` within a minute; every five minutes
it runs by itself.

    look >> start (one for each question)

What each task does, and what to do when it is red:

- **look** stores which cases will be asked about, before it asks. Red: the control database is
  down, or `decide_case` is paused while cases wait: unpause it.
- **start** starts one run for each question, unless it runs already. Red: Airflow's API did not
  answer; the next run starts it under the same name.

**Is it safe to run twice?** Yes: a case has one open question at a time.

**By hand**: *Trigger*; or start `decide_case` for one case.

**Stop**: pause this DAG. Cases stay open, their alerts go out, and `backstop cases decide` works.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from backstop.airflow import decide_case as people
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import woken_by
from backstop.airflow.wake import SOMEBODY_TO_ASK


@task(retries=0)
def look(**context: Any) -> list[dict[str, Any]]:
    """The runs to start; often none."""
    return people.look_for_questions(context["ti"])


@dag(
    dag_id="ask_people",
    schedule=woken_by(SOMEBODY_TO_ASK, "BACKSTOP_ASK_SCHEDULE", "5m"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=10),
    default_args={"owner": "backstop", "retries": 0, "execution_timeout": timedelta(minutes=5)},
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def ask_people() -> None:
    """Wiring only."""
    people.StartRunOperator.partial(task_id="start").expand_kwargs(look())


dag = ask_people()
