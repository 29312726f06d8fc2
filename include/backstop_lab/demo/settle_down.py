"""Wait until the system is quiet: nothing is open that Backstop, and not a person, has to do."""

from __future__ import annotations

from time import monotonic

from backstop_lab.demo.answer_questions import AnsweringPerson
from backstop_lab.demo.stage import CALLED, Stage
from backstop_lab.servers.airflow_api import AirflowApi
from backstop_lab.shop.databases import change, listed, statements
from backstop_lab.shop.wait_for import wait_for

QUESTIONS = "decide_case"
"""The DAG whose runs wait for people; it has no schedule."""
ANSWERED = (
    "dead_letters",
    "mass_loss",
    "repeated_failure",
    "key_parked",
    "queue_blocked",
    "downstream_away",
)
"""Kinds of cases that do not stay open here: a person answers them, or the sweep or the watch finds that they are over."""


def wait_until_quiet(stage: Stage, person: AnsweringPerson, seconds: float) -> None:
    """Every stub is confirmed, voided, held by an open case or quarantined, no request is open, and so on: still_open."""
    with stage.wants_runs(*CALLED):
        wait_for(
            "Quiet",
            lambda: not still_open(stage, person),
            seconds,
            lambda: str(still_open(stage, person)),
            every=1.0,
        )


def still_open(stage: Stage, person: AnsweringPerson) -> dict[str, int]:
    """What is to be done yet, by name; empty when the system is quiet."""
    stage.watch()
    if person.broken is not None:
        raise person.broken
    found = open_stubs(stage)
    found |= {
        str(name): int(number)
        for name, number in change(stage.control, OPEN, {"answered": list(ANSWERED)})
        if number
    }
    pairs = ((topic, group) for topic, groups in stage.topics.items() for group in groups)
    if letters := stage.broker_faults.letters_waiting(pairs):
        found["dead letters in the broker"] = letters
    return found


OPEN = """
    SELECT 'resend requests', count(*) FROM resend_request WHERE state IN ('open', 'claimed')
    UNION ALL SELECT 'dead letters', count(*) FROM dead_letter WHERE state IN ('open', 'replaying')
    UNION ALL SELECT 'batches not acknowledged', count(*) FROM drain_batch WHERE acknowledged_at IS NULL
    UNION ALL SELECT 'cases to be answered', count(*) FROM case_file WHERE state = 'open' AND kind = ANY (%(answered)s)
    UNION ALL SELECT 'alerts', count(*) FROM alert WHERE delivered_at IS NULL AND ended IS NULL
"""
"""What else must have come to its end, in the control database."""


def open_stubs(stage: Stage) -> dict[str, int]:
    """Stubs that nobody has finished and nobody is asked about."""
    asked = listed(
        change(
            stage.control,
            "SELECT m.topic, m.message_id FROM case_member m JOIN case_file c USING (case_id)"
            " WHERE c.state = 'open'"
            " UNION SELECT topic, message_id FROM quarantine WHERE message_id IS NOT NULL",
            (),
        )
    )
    found: dict[str, int] = {}
    for shard, dsn in stage.shards.items():
        for status, number in change(dsn, statements(dsn)["open_stubs"], {"held": asked}):
            found[f"{status} stubs of {shard}"] = int(number)
    return found


def stop_duties(stage: Stage, api: AirflowApi, seconds: float) -> None:
    """No new run begins, and none is cut short.

    A paused DAG does not go on with the run it is in, except for tasks that were handed out already: so the moment to pause
    is when no run of ours is open.
    """
    deadline = monotonic() + seconds
    while True:
        wait_for(
            "The end of the last runs",
            lambda: not open_runs(stage),
            max(1.0, deadline - monotonic()),
            lambda: str(open_runs(stage)),
            every=0.1,
        )
        for duty in CALLED:
            api.pause(duty)
        wait_for(
            "The end of the last tasks",
            lambda: not any(handed_out(api, dag) for dag in (*CALLED, QUESTIONS)),
            max(1.0, deadline - monotonic()),
            lambda: str([handed_out(api, dag) for dag in (*CALLED, QUESTIONS)]),
            every=0.1,
        )
        if not open_runs(stage):
            return
        # One began just before the pause: it goes on, and another moment is looked for.
        for duty in CALLED:
            api.unpause(duty)


def handed_out(api: AirflowApi, duty: str) -> list[str]:
    """The duty's tasks that run, pause or no pause; a question that waits for its answer does not."""
    under_way = [
        run["dag_run_id"] for run in api.dag_runs(duty, limit=20) if run["state"] == "running"
    ]
    return [
        f"{run} {task['task_id']}"
        for run in under_way
        for task in api.task_instances(duty, run)
        if task["state"] in ("queued", "running")
    ]


def open_runs(stage: Stage) -> list[tuple[object, ...]]:
    """The duties' runs that are under way, as (run id, duty)."""
    return change(stage.control, "SELECT run_id, duty FROM run WHERE finished_at IS NULL", ())


def let_it_finish(
    stage: Stage, person: AnsweringPerson, api: AirflowApi, seconds: float, last_runs: float
) -> None:
    """Quiet, the duties stopped, everything that was sent consumed, and still quiet."""
    while True:
        wait_until_quiet(stage, person, seconds)
        stop_duties(stage, api, last_runs)
        stage.drained(last_runs)
        if not still_open(stage, person):
            return
        for duty in CALLED:
            api.unpause(duty)
