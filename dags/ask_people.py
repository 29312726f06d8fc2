"""### ask_people: ask people about open cases, the most severe first

Starts a run of `decide_case` for open cases without a question, a few at a time
(`people.questions`, 10), and ends the questions whose case was decided or closed elsewhere. It
starts when there is somebody to ask, and every 45 minutes (`schedule.safety_interval`).

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

from datetime import timedelta

from backstop.airflow.ask_people import StartRunOperator, look
from backstop.airflow.duty_dag import backstop_dag
from backstop.airflow.schedule import when_due
from backstop.airflow.wake import SOMEBODY_TO_ASK


@backstop_dag(
    __doc__,
    schedule=when_due(SOMEBODY_TO_ASK, "BACKSTOP_ASK_SCHEDULE", "5m"),
    dagrun_timeout=timedelta(minutes=10),
    default_args={"retries": 0, "execution_timeout": timedelta(minutes=5)},
)
def ask_people() -> None:
    StartRunOperator.partial(task_id="start").expand_kwargs(look())


dag = ask_people()
