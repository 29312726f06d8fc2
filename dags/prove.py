"""### prove: was anything lost in a window?

Reads every stub of a topic that was created in a window, whatever its status, judges each delivery
by its logs, and answers in one sentence whether anything was lost, and what. It changes nothing in
the databases of producers and consumers, and sends nothing.

    open_run >> prove (Spark) >> audit_proof >> publish >> close_run

What each task does, and what to do when it is red:

- **open_run** ends the window where producers may still commit stubs, and opens the run. Red: the
  topic or the window is invalid (the log says why), or the control database is down.
- **prove** reads, judges, counts and exports to the folder of the run
  (`$BACKSTOP_PROOFS/run-<id>`). Nobody is shown the answer yet. Red: the log says what happened;
  trigger the DAG again.
- **audit_proof** checks that the counts add up, and that "nothing was lost" is said only if
  everything was read. Red: nothing is published; the button Data Docs shows the check that failed.
- **publish** signs the manifest, which reveals any later change, and shows the proof in the console.
  Red: the export is not in the folder (workers must share `$BACKSTOP_PROOFS`), or it cannot be
  signed; the log names which. Trigger the DAG again.
- **close_run** logs the sentence of a published proof and closes the run. Red alone: the proof is
  INCOMPLETE: the message names what could not be read.

**By hand**: *Trigger* with `topic`, `from` and `to`; it is never scheduled. By command line:
`backstop prove TOPIC --from ... --to ...`; to verify an export, `backstop prove --verify FOLDER`.

**Stop**: mark the run as failed; there is nothing to undo.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param

from backstop.airflow.duty_dag import check, duty_dag, tear_down, with_links
from backstop.airflow.prove import close_run, open_run, publish
from backstop.airflow.spark_operator import SparkDutyOperator


@duty_dag(
    __doc__,
    schedule=None,
    retries=0,
    dagrun_timeout=timedelta(hours=6),
    params={
        "topic": Param("", type="string", minLength=1, title="Topic"),
        "from": Param(
            "", type="string", format="date-time", title="From", description="Stubs created since"
        ),
        "to": Param(
            "", type="string", format="date-time", title="To", description="... and before"
        ),
    },
)
def prove() -> None:
    opened = open_run()
    proved = SparkDutyOperator(
        task_id="prove", duty="prove", opened=opened, execution_timeout=timedelta(hours=4)
    )
    audited = check(
        "audit_proof",
        "proof",
        opened,
        "Stops the proof before its answer is published if a check fails.",
    )
    closed = tear_down(close_run(opened=opened), opened)

    opened >> proved >> audited >> with_links(publish(opened=opened)) >> closed


dag = prove()
