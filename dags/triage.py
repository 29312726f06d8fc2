"""### triage: empty dead-letter queues without loss, find causes, decide, and ask people

Takes dead letters out of the brokers' queues, finds their causes, discards what is proven done,
requests a replay of what is safe, and opens a case for the rest. It checks once a minute. The rest
is skipped if there are no dead letters and nothing is due, or if waiting dead letters would only be
decided the same again. It publishes nothing: the DAG `resend` does that.

    open_run >> drain >> [audit_drained, classify (Spark from 2000 dead letters on) >> audit_causes >> promote]
             >> decide_and_apply >> audit_decisions >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and checks whether there is anything to do, also among waiting dead
  letters (counted `unchanged`). Red: another run is alive (wait for it), or a broker or the control
  database is down (restart it; dead letters wait in their queues).
- **drain** ends the replays that were published. Then it stores each dead letter, and only then
  acknowledges it to the broker. Red: the log says what happened; clear it, or let the next run go
  on: a dead letter is stored once, even after a kill.
- **audit_drained** checks that every acknowledged dead letter is stored whole. Red: the button Data
  Docs shows the check that failed; pause this DAG before anything is purged, and check the ids.
- **classify** gives each dead letter a cause by its text, and a category by its text and the
  group's log: in the task's own process, and with Spark from 2000 dead letters on
  (`BACKSTOP_SPARK_FROM`). Skipped: every dead letter has its cause. Red: clear it; it begins a new
  stage.
- **audit_causes** checks what was staged. Red: nothing was promoted, no dead letter was decided by
  it, and the next run stages again.
- **promote** moves dead letters and the counts of their causes. Red: clear it; each batch may be
  done twice.
- **decide_and_apply** decides every due dead letter: discard with proof, replay, ask a person, or
  wait. Red: clear it; a dead letter is changed only if it is as it was read. In a dry run the log
  lists the decisions, and nothing is applied. It starts `resend`, `deliver_alerts` and `ask_people`
  if there is work for them.
- **wake** runs only if `decide_and_apply` failed: it starts the same three for what was applied
  before. Red: their own schedules start them.
- **audit_decisions** checks that every dead letter is decided or waits, every discard has its
  proof, and every dead letter for a person has a case. Red: Data Docs shows the check that failed;
  pause the topic if in doubt.
- **close_run** closes the run, whatever happened. Red alone: a broker or database was down, and the
  message names it; the rest was done.

**Is it safe to run twice?** Yes. A dead letter is stored once, counted once, and decided as it was
read. A replay is one request for one send number.

**What happens next?** People decide the cases in Airflow (`ask_people`, `decide_case`) or by command
line (`backstop cases`).

**By hand**: *Trigger* with `topic` for one topic, `dry_run` to list the decisions about stored dead
letters. Or `backstop run triage`.

**Stop**: pause this DAG: dead letters stay in their queues, or open in the database.
`backstop pause` stops only the replays.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag, task

from backstop.airflow import steps as duty
from backstop.airflow import triage as triage_steps
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every
from backstop.airflow.wake import WORK, wake_after_failure, wake_duties


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when there is nothing to do."""
    from airflow.sdk.exceptions import AirflowSkipException

    opened = triage_steps.open_triage(params["topic"], params["dry_run"])
    if opened is None:
        raise AirflowSkipException("no letter, and nothing due")
    return opened


@task(execution_timeout=timedelta(hours=2))
def drain(opened: dict[str, Any], **context: Any) -> dict[str, int]:
    """Store, then acknowledge."""
    return triage_steps.drain(opened, context["ti"])


@task
def audit(suite: str, opened: dict[str, Any]) -> str:
    """Stops what builds on it when a check does not hold; a dry run has written nothing to check."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened["dry_run"]:
        raise AirflowSkipException("a dry run writes nothing")
    return duty.audit(suite, opened)


@task
def promote(opened: dict[str, Any]) -> dict[str, int]:
    """Causes, and the letters that have them."""
    return triage_steps.promote(opened)


# Classifying may have been skipped, but nothing before it may have failed: by a wrong category a poison would be replayed.
@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, execution_timeout=timedelta(hours=1), outlets=[WORK])
def decide_and_apply(opened: str, **context: Any) -> dict[str, int]:
    """Discards, requests, cases."""
    counts = triage_steps.decide(json.loads(opened), context["ti"])
    wake_duties(context)
    return counts


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    return triage_steps.close_triage(opened, duty.failed_tasks(context), triage_steps.missed(context))


@dag(
    dag_id="triage",
    schedule=every("BACKSTOP_TRIAGE_SCHEDULE", "1m"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "topic": Param(None, type=["null", "string"], minLength=1, title="Topic", description="Empty: every topic"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="List what would be decided, change nothing"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def triage() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    drained = drain(opened=opened)
    stored = audit.override(task_id="audit_drained")(suite="letters_drained", opened=opened)
    classified = triage_steps.ClassifyOperator(
        task_id="classify", duty="classify", opened=opened, execution_timeout=timedelta(hours=1)
    )
    causes = audit.override(task_id="audit_causes")(suite="causes", opened=opened)
    promoted = promote(opened=opened)
    # As a template, because what follows a set-up directly must not have a trigger rule of its own.
    decided = decide_and_apply(opened="{{ ti.xcom_pull(task_ids='open_run') | tojson }}")
    decisions = audit.override(task_id="audit_decisions")(suite="letters_decided", opened=opened)
    closed = close_run(opened=opened)

    opened >> drained >> [stored, classified]
    classified >> causes >> promoted
    # Also after what is never skipped: then deciding goes on when there was nothing to classify.
    [drained, promoted] >> decided >> decisions >> closed
    decided >> wake_after_failure() >> closed
    stored >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    for audited in (stored, causes, decisions):
        audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    for other in (drained, promoted, decided, closed):
        other.operator.operator_extra_links = (RunLink(),)


dag = triage()
