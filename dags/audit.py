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
- **audit_invariants** runs the data checks over the breaches, also after a red **look**. Red: an
  invariant does not hold. The button Data Docs shows which check, the table `data_check` the ids,
  and an alert was written. Investigate before anything is purged.
- **publish_day** marks the day as audited and good. Red: the cause is in Airflow itself; clear it.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database was down: the
  message names it.

**Is it safe to run twice?** Yes. The day is checked again; each invariant and place with a breach
sends one alert a day.

**By hand**: *Trigger* with `day` (2026-11-21). Or `backstop run audit --day 2026-11-21`.

**Stop**: pause this DAG. Nothing else waits for it.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, TriggerRule

from backstop.airflow.audit import look, open_run, publish_day
from backstop.airflow.duty_dag import HANDED, check, close_run, duty_dag, tear_down, with_links
from backstop.airflow.schedule import daily


@duty_dag(
    __doc__,
    schedule=daily("BACKSTOP_AUDIT_SCHEDULE", "30 5 * * *"),
    dagrun_timeout=timedelta(hours=6),
    task_timeout=timedelta(minutes=30),
    params={
        "day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day",
            description="Empty: yesterday (UTC)",
        ),
    },
)
def audit() -> None:
    opened = open_run()
    looked = with_links(look(opened=opened))
    audited = check(
        "audit_invariants",
        "audit",
        HANDED,
        "Also when something did not answer: what was found is reported all the same.",
        trigger_rule=TriggerRule.ALL_DONE,
    )
    published = publish_day(opened=HANDED, report=audited)
    closed = tear_down(close_run(opened=opened), opened)

    opened >> looked >> audited >> published >> closed
    looked >> published


dag = audit()
