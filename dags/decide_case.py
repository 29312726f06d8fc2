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

from datetime import timedelta

from airflow.sdk import DAG, Param

from backstop.airflow import decide_case as people
from backstop.airflow.ask_person import AskPersonOperator
from backstop.airflow.duty_dag import backstop_dag, retry_delay


def decide_case(dag_id: str, role: str | None = None) -> DAG:
    """One DAG of questions. `role`: the role of FAB that may read it and answer there, besides those of the whole platform."""

    @backstop_dag(
        __doc__,
        dag_id=dag_id,
        schedule=None,
        max_active_runs=200,  # each waits for a person and holds no worker; people.questions bounds them
        default_args={"retry_delay": retry_delay()},
        params={
            "case_id": Param(
                type="integer",
                minimum=1,
                title="Case",
                description="As `backstop cases list` shows it",
            )
        },
        access_control={role: {"DAGs": {"can_read", "can_edit"}}} if role else None,
    )
    def wiring() -> None:
        # No time limit: a person takes as long as it takes.
        asked = AskPersonOperator(
            task_id="ask",
            form=people.ask_about_case,
            receive=people.receive_answer,
            retries=3,
            retry_delay=timedelta(seconds=1),
        )
        asked >> people.apply()

    return wiring()


of_teams = {dag_id: decide_case(dag_id, role) for dag_id, role in people.dags_of_teams().items()}
globals().update(of_teams)
dag = decide_case(people.DAG)
__all__ = ["dag", *of_teams]
