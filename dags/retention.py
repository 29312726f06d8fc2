"""### retention: purge what is finished, keep what is still needed

Purges, in small steps and inside a window (`retention.window`, 01:00 to 05:00 UTC): logs of
consumers, closed stubs of producers with their attempts, decided dead letters (their contents
earlier, if the policy says so), and old rows of the control database. One Python process, no Spark:
the work is in the databases, and the steps keep their load low. It starts five minutes after the
window opens (in its middle, if that is sooner).

    open_run >> purge >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run; outside the window the rest is skipped. Red: another run is alive
  (wait for it), the policy would purge too soon (the message names the setting), or the control
  database is down (restart it).
- **purge** works until nothing is left or the window ends; the next night continues. Red: the log
  says what did not answer; rows that could not be checked stay.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database was down: the
  message names it.

**Is it safe to run twice?** Yes. Each step is one transaction that compares every row with what was
read, and a group's log floor rises before its logs are deleted. If it is killed, the next run
continues.

**What is never purged**: a stub that is pending or exhausted, a log whose stub is open in any
shard, a dead letter that is not decided, and what an open request or case refers to.
docs/how-to/retention-and-audit.md has the whole list.

**By hand**: *Trigger* with `dry_run` to count what would be purged, with `now` to work outside the
window. Or `backstop run retention`.

**Stop**: pause this DAG, or mark the task failed: it ends between two steps. Nothing depends on it
except disk space.
"""

from __future__ import annotations

from datetime import timedelta

from backstop.airflow.duty_dag import close_run, duty_dag, switch, tear_down, with_links
from backstop.airflow.retention import open_run, purge
from backstop.airflow.schedule import in_window


@duty_dag(
    __doc__,
    schedule=in_window("BACKSTOP_RETENTION_SCHEDULE"),
    dagrun_timeout=timedelta(hours=13),
    params={
        "now": switch("Now", "Also outside the window of backstop.yaml"),
        "dry_run": switch("Dry run", "Count what would go, take nothing"),
    },
)
def retention() -> None:
    opened = open_run()
    purged = with_links(purge(opened=opened))
    closed = tear_down(close_run(opened=opened), opened)

    opened >> purged >> closed


dag = retention()
