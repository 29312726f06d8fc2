"""### triage: dead letters are emptied without loss, understood, decided, and a person is told

Takes the letters out of the brokers' dead-letter queues, finds what they died of, discards what is proven done, asks for a
replay of what is safe, and opens a case for the rest. Looks first, once a minute: with no letter and nothing due, or when what
waits would only be decided the same once more, all else is skipped. Nothing is published here: the DAG `resend` does that.

    open_run >> drain >> [audit_drained, classify (Spark) >> audit_causes >> promote] >> decide_and_apply
             >> audit_decisions >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and looks whether there is anything to do, also at letters that wait (counted `unchanged`). Red:
  another run is alive (wait for it), or a broker or the control database is away (bring it back; letters wait in their queues).
- **drain** ends the replays that were published, then stores each letter and acknowledges it to the broker after that. Red: its
  log says what happened; clear it, or let the next run go on: a letter is stored once, whenever it was killed.
- **audit_drained** checks that what was acknowledged is stored whole. Red: the button Data Docs shows the check that broke;
  pause this DAG before anything is purged, and look at the ids.
- **classify** gives each letter a cause by its text and a category by its text and the group's log: in the task's own process,
  and with Spark from 2000 letters on (`BACKSTOP_SPARK_FROM`). Skipped: every letter has its cause. Red: clear it; it begins a
  new stage.
- **audit_causes** checks what was staged. Red: nothing was promoted, no letter was decided by it, and the next run stages again.
- **promote** moves letters and their causes' counts. Red: clear it; each batch may be done twice.
- **decide_and_apply** decides every letter that is due: discard with proof, replay, ask a person, or wait. Red: clear it; a
  letter is only changed as it was seen. In a dry run its log lists the decisions, and nothing is applied. It wakes `resend`,
  `deliver_alerts` and `ask_people` when there is something for them.
- **wake** runs only when `decide_and_apply` failed: it wakes the same three for what was applied before. Red: their own schedules
  start them.
- **audit_decisions** checks that every letter is decided or waits, that what was discarded has its proof, and what a person must
  decide has its case. Red: Data Docs shows the check that broke; pause the topic if in doubt.
- **close_run** closes the run, whatever happened. Red alone: something was away, and the message names it; all else was done.

**Is it safe to run twice?** Yes: stored once, counted once, decided as seen, and a replay is one request for one send number.

**What comes then?** Cases come before people by `ask_people` and `decide_case`, or by `backstop cases`.

**By hand**: *Trigger* with `topic` for one topic, `dry_run` to list what would be decided of the letters that are stored. Or
`backstop run triage`.

**Stop**: pause this DAG: letters stay in their queues, or open in the database. `backstop pause` stops the replays alone.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag, task

try:
    from backstop.plugins import backstop_duty as duty
    from backstop.plugins import backstop_triage as triage_steps
    from backstop.plugins.backstop_links import DataDocsLink, RunLink
    from backstop.plugins.backstop_notify import tell_failure
    from backstop.plugins.backstop_schedule import every
    from backstop.plugins.backstop_wake import WORK, wake_after_failure, wake_duties
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    import backstop_duty as duty
    import backstop_triage as triage_steps
    from backstop_links import DataDocsLink, RunLink
    from backstop_notify import tell_failure
    from backstop_schedule import every
    from backstop_wake import WORK, wake_after_failure, wake_duties


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
