"""### audit: check the invariants of all databases once a day

Checks that every exhausted message has a case, every case has an alert, nothing was sent more often
than numbers were handed out, every confirmed message has its logs, nothing is left half done, and
more (docs/how-to/retention-and-audit.md lists all checks). It changes nothing. A day without a
breach is a partition of the asset `backstop_audited`. One Python process, no Spark: each query
reads open rows or one day, in bounded pages.

    open_run >> look >> audit_invariants >> publish_day >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run of a day: yesterday, unless a day is named. Red: another run is alive
  (wait for it), or the control database is down (restart it).
- **look** queries every database and stores breaches by id. Red: a database did not answer (the log
  names it); restart it and run the day again.
- **audit_invariants** runs the data checks over the breaches. Red: an invariant does not hold. The
  button Data Docs shows which check, the table `data_check` the ids, and an alert was written.
  Investigate before anything is purged.
- **publish_day** marks the day as audited and good. Red: the cause is in Airflow itself; clear it.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database was down: the
  message names it.

**Is it safe to run twice?** Yes. The day is checked again, and each breach sends one alert a day.

**By hand**: *Trigger* with `day` (2026-11-21). Or `backstop run audit --day 2026-11-21`.

**Stop**: pause this DAG. Nothing else waits for it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, Param, TriggerRule, dag, task

from backstop.airflow import audit as audit_tasks
from backstop.airflow import steps as duty
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure

AUDITED = Asset("backstop_audited")


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the day, its run and its token."""
    return audit_tasks.open_audit(context, params["day"])


@task
def look(opened: dict[str, Any], **context: Any) -> dict[str, int]:
    """Every invariant at every place."""
    return audit_tasks.look(opened, context["ti"])


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS)
def audit_invariants(suite: str, opened: str) -> str:
    """Also when something was away: what was found is told all the same."""
    return duty.audit(suite, json.loads(opened))


@task(outlets=[AUDITED])
def publish_day(opened: str, report: str, **context: Any) -> str:
    """The day is a partition of the asset, with its Data Docs."""
    run = json.loads(opened)
    event = context["outlet_events"][AUDITED]
    event.add_partitions(run["day"])
    event.extra = {"run_id": run["run_id"], "day": run["day"], "report": report}
    return str(run["day"])


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="audit",
    schedule=audit_tasks.daily("BACKSTOP_AUDIT_SCHEDULE", "30 5 * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=30),
    },
    params={
        "day": Param(None, type=["null", "string"], format="date", title="Day", description="Empty: yesterday (UTC)"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def audit() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    # As a template, because what follows a set-up directly must not have a trigger rule of its own.
    handed = "{{ ti.xcom_pull(task_ids='open_run') | tojson }}"
    looked = look.override(execution_timeout=timedelta(hours=3))(opened=opened)
    audited = audit_invariants(suite="audit", opened=handed)
    published = publish_day(opened=handed, report=audited)
    closed = close_run(opened=opened)

    opened >> looked >> audited >> published >> closed
    looked >> published
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    for shown in (looked, closed):
        shown.operator.operator_extra_links = (RunLink(),)


dag = audit()
