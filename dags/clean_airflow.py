"""### clean_airflow: Airflow's own history does not grow without end

The duties make three hundred runs a day at least. Each night this deletes what Airflow keeps of runs, tasks, events and sessions that
are older than `BACKSTOP_CLEAN_KEEP` (30 days), by `airflow db clean`, and log files of that age. It does so for every DAG of this
Airflow: without `BACKSTOP_CLEAN_SCHEDULE` it never starts by itself.

    clean_database    clean_logs

What each task does, and what to do when it is red:

- **clean_database** runs `airflow db clean`, table by table. Red: its log names the table, or the connection `airflow_db` is
  missing; clear it, or let the next night go on.
- **clean_logs** deletes old files under Airflow's folder of logs. Red: a file could not be deleted; its log names it.

**Is it safe to run twice?** Yes. A question that has been open for longer is asked again, in a new run of the same name.

**By hand**: *Trigger*, with `dry_run` to count what would go.

**Stop**: pause this DAG.
"""

from __future__ import annotations

from datetime import timedelta

from backstop.airflow.clean_airflow import clean_database, clean_logs
from backstop.airflow.duty_dag import backstop_dag, switch
from backstop.airflow.notify import note_well
from backstop.airflow.schedule import every


@backstop_dag(
    __doc__,
    schedule=every("BACKSTOP_CLEAN_SCHEDULE", "none"),
    is_paused_upon_creation=False,
    on_success_callback=note_well,
    dagrun_timeout=timedelta(hours=6),
    default_args={"retries": 1, "retry_delay": timedelta(minutes=1)},
    params={"dry_run": switch("Dry run", "Count what would go, delete nothing")},
)
def clean_airflow() -> None:
    # The two do not wait for one another.
    clean_database()
    clean_logs()


dag = clean_airflow()
