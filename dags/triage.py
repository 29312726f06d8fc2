"""### triage: empty dead-letter queues without loss, find causes, decide, and ask people

Takes dead letters out of the brokers' queues, finds their causes, discards what is proven done,
requests a replay of what is safe, and opens a case for the rest. It starts when there are dead
letters or something is due, a minute apart, and every 45 minutes (`schedule.safety_interval`). The
rest is skipped if there are none, or if waiting dead letters would only be decided the same again.
It publishes nothing: the DAG `resend` does that.

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
  (`BACKSTOP_SPARK_FROM`). Skipped: every dead letter has its cause. Red: clear it; it stages
  again.
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

from datetime import timedelta

from backstop.airflow import triage as steps
from backstop.airflow.duty_dag import (
    HANDED,
    check,
    close_run,
    duty_dag,
    one_of_all,
    switch,
    tear_down,
    with_links,
)
from backstop.airflow.schedule import when_due
from backstop.airflow.wake import SOMETHING_TO_DRAIN, wake_after_failure


@duty_dag(
    __doc__,
    schedule=when_due(SOMETHING_TO_DRAIN, "BACKSTOP_TRIAGE_SCHEDULE", "1m"),
    dagrun_timeout=timedelta(hours=6),
    params={
        "topic": one_of_all("Topic", "Empty: every topic"),
        "dry_run": switch("Dry run", "List what would be decided, change nothing"),
    },
)
def triage() -> None:
    opened = steps.open_run()
    drained = with_links(steps.drain(opened=opened))
    stored = check("audit_drained", "dead_letters_drained", opened, "What the drain stored.")
    classified = steps.ClassifyOperator(
        task_id="classify", duty="classify", opened=opened, execution_timeout=timedelta(hours=1)
    )
    causes = check("audit_causes", "causes", opened, "What was staged.")
    promoted = with_links(steps.promote(opened=opened))
    decided = with_links(steps.decide_and_apply(opened=HANDED))
    decisions = check("audit_decisions", "dead_letters_decided", opened, "What was decided.")
    closed = tear_down(close_run(opened=opened), opened)

    opened >> drained >> [stored, classified]
    classified >> causes >> promoted
    # Also after what is never skipped: then deciding goes on when there was nothing to classify.
    [drained, promoted] >> decided >> decisions >> closed
    decided >> wake_after_failure() >> closed
    stored >> closed


dag = triage()
