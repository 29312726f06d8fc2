"""### decide_case: one case, one person, one answer

Each run shows one case under *Required Actions* and waits until a person answers, for days if
necessary. The DAG `ask_people` starts a run for the most severe open cases, a few at a time
(`people.questions`). You can decide the others by command line (`backstop cases list`). No answer
is preselected, and nothing is decided by waiting.

    ask >> apply

What each task does, and what to do when it is red:

- **ask** writes the form: what happened, the evidence, what each answer does. Skipped: the case was
  decided or closed elsewhere. Red: the control database was down, the case does not exist, or
  another run asks about it; the log says which. An answer in the first second after the question
  may be lost, and the question comes again; or it stays in Airflow, and is applied ten minutes
  later (`BACKSTOP_LOOK_AGAIN_SECONDS`).
- **apply** reads the state again and applies the answer in the name of the person who gave it.
  Skipped: it was not applied, because the case changed meanwhile, no reason was given, or the
  person may not decide; the log and XCom say which. If the case is still open, it is asked about
  again, with that reason. Up for retry: a database or the broker is down. Red: it was down for more
  than two hours; clear this task (not `ask`) to apply the same answer. Until then nobody is asked
  about the case; to have it asked again instead, mark the run as a success. The task starts
  `resend`, `deliver_alerts` and `ask_people` if there is work for them.

**Teams** (`teams` in backstop.yaml) each have such a DAG for the cases of their topics,
`decide_case__<team>`; `decide_case` asks about all others.

**Who may answer**: `people.deciders` in backstop.yaml; without it whoever Airflow lets answer (in
its simple auth manager: the roles op and admin).

**Is it safe to run twice?** Yes. A case has one question at a time, and a decision that was applied
is not applied again.

**By hand**: *Trigger* with `case_id`, or without Airflow: `backstop cases decide`.

**Stop**: pause `ask_people`; open questions can still be answered.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk import dag as make_dag

from backstop.airflow import decide_case as people
from backstop.airflow.notify import tell_failure
from backstop.airflow.wake import WORK, wake_duties


# A database may be down for hours, and the answer is stored: retry up to five minutes apart, for about two hours.
@task(
    retries=30, retry_exponential_backoff=2, max_retry_delay=timedelta(minutes=5), execution_timeout=timedelta(minutes=30),
    outlets=[WORK],
)  # fmt: skip
def apply(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """The answer is in the control database, where only the task `ask` puts it, with who gave it by Airflow's own record."""
    from airflow.sdk.exceptions import AirflowSkipException

    done = people.apply_answer(params["case_id"], context["run_id"], context["dag"].dag_id)
    if done["how"] not in ("applied", "partly"):
        context["ti"].xcom_push(key="said", value=done["said"])
        raise AirflowSkipException(done["said"])
    wake_duties(context)
    return done


def decide_case(dag_id: str, role: str | None = None) -> DAG:
    """One DAG of questions. `role`: the role of FAB that may read it and answer there, besides those of the whole platform."""

    @make_dag(
        dag_id=dag_id,
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=200,  # each waits for a person and holds no worker; people.questions bounds them
        default_args={
            "owner": "backstop",
            "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        },
        params={"case_id": Param(type="integer", minimum=1, title="Case", description="As `backstop cases list` shows it")},
        access_control={role: {"DAGs": {"can_read", "can_edit"}}} if role else None,
        on_failure_callback=tell_failure,
        tags=["backstop"],
        doc_md=__doc__,
    )
    def wiring() -> None:
        """Wiring only. No time limit: a person takes as long as it takes."""
        asked = people.AskPersonOperator(
            task_id="ask", form=people.ask_about_case, receive=people.receive_answer, retries=3, retry_delay=timedelta(seconds=1)
        )
        asked >> apply()

    return wiring()


of_teams = {dag_id: decide_case(dag_id, role) for dag_id, role in people.dags_of_teams().items()}
globals().update(of_teams)
dag = decide_case(people.DAG)
__all__ = ["dag", *of_teams]
