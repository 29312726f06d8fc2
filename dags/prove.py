"""### prove: was anything lost in a window?

Reads every stub of a topic that was created in a window, whatever its status, judges each delivery
by its logs, and answers in one sentence whether anything was lost, and what. It changes nothing in
the databases of producers and consumers, and sends nothing.

    open_run >> prove (Spark) >> audit_proof >> close_run

What each task does, and what to do when it is red:

- **open_run** ends the window where producers may still commit stubs, and opens the run. Red: the
  topic or the window is invalid (the log says why), or the control database is down.
- **prove** reads, judges, counts and exports to the folder of the run
  (`$BACKSTOP_PROOFS/run-<id>`), with a manifest that reveals any later change. Red: the log says
  what happened; clear it to prove again.
- **audit_proof** checks that the counts add up, and that "nothing was lost" is said only if
  everything was read. Red: do not use the proof; the button Data Docs shows the check that failed.
- **close_run** logs the sentence and closes the run. Red: the proof is INCOMPLETE: the message
  names what could not be read.

**By hand**: *Trigger* with `topic`, `from` and `to`; it is never scheduled. By command line:
`backstop prove TOPIC --from ... --to ...`; to verify an export, `backstop prove --verify FOLDER`.

**Stop**: mark the run as failed; there is nothing to undo.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from backstop.airflow import steps as duty
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.spark_operator import SparkDutyOperator


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the window that can be proven now, and its run."""
    return duty.open_proof(params["topic"], params["from"], params["to"])


@task
def audit(suite: str, opened: dict[str, Any]) -> str:
    """Stops the proof before its answer is published if a check fails."""
    return duty.audit(suite, opened)


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: logs the sentence; done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close_proof(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="prove",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args={
        "owner": "backstop",
        "retries": 0,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "topic": Param("", type="string", minLength=1, title="Topic"),
        "from": Param("", type="string", format="date-time", title="From", description="Stubs created since"),
        "to": Param("", type="string", format="date-time", title="To", description="... and before"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def prove() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    proved = SparkDutyOperator(task_id="prove", duty="prove", opened=opened, execution_timeout=timedelta(hours=4))
    audited = audit.override(task_id="audit_proof")(suite="proof", opened=opened)
    closed = close_run(opened=opened)

    opened >> proved >> audited >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    closed.operator.operator_extra_links = (RunLink(),)


dag = prove()
