"""A live triggerer looks for due work: what becomes due starts its DAG, idle starts nothing, and a dead one is noticed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backstop_lab.servers.airflow import TRIGGERER
from backstop_lab.servers.child import Child
from live_people import Live

pytestmark = pytest.mark.timeout(900)
LOOKED = "SELECT reached FROM watermark WHERE subject = 'due work is looked for'"
SWEEPS = "SELECT run_id, run_type, state FROM dag_run WHERE dag_id = 'sweep' ORDER BY id"
STEPS = """
SELECT extract(epoch FROM e.timestamp)::float8, extract(epoch FROM r.queued_at)::float8, extract(epoch FROM r.start_date)::float8,
    (SELECT extract(epoch FROM min(t.start_date))::float8 FROM task_instance t WHERE t.dag_id = r.dag_id AND t.run_id = r.run_id)
FROM dag_run r JOIN dagrun_asset_event l ON l.dag_run_id = r.id JOIN asset_event e ON e.id = l.event_id
WHERE r.dag_id = 'sweep' AND r.run_id = %s ORDER BY e.timestamp LIMIT 1
"""
BEGAN = "SELECT extract(epoch FROM started_at)::float8 FROM run WHERE duty = 'sweep' ORDER BY run_id DESC LIMIT 1"
MAY_BEGIN = "SELECT max(started_at) < now() - %s FROM run WHERE duty = 'sweep'"
WITHIN = 3.0
"""Seconds from due to the event that starts the duty: ours. The rest is Airflow's."""
TRIES = 6
"""A machine that is busy with other work delays one; the best of them is what the trigger takes."""
AIRFLOWS = 120.0
"""Seconds from that event to the first task, on a machine that is as busy."""


@contextmanager
def triggerer(people: Live) -> Iterator[None]:
    """The one process that other tests do without."""
    # Airflow registers the watchers of a DAG that was unpaused when it parses its file the next time.
    token = people.api.request("GET", "/dags/sweep")["file_token"]
    people.api.request("PUT", f"/parseDagFile/{token}")
    airflow = people.platform.airflow
    child = Child("Airflow's triggerer", airflow.home / "triggerer.log")
    child.start([sys.executable, "-m", *TRIGGERER], env=airflow.settings(), cwd=airflow.home)
    try:
        yield
    finally:
        child.kill()


@pytest.fixture
def idle(people: Live) -> None:
    """No lease of another test has ended."""
    for database in ("consumer_billing", "consumer_shipping"):
        people.rows(
            "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now(), lease_expires_at = NULL WHERE state <> 'CONSUMED'",
            database=database,
        )


def wait_for_looks(people: Live) -> None:
    """Until somebody has looked some ten times from now on."""
    begun = people.rows(LOOKED)
    people.wait_for(lambda: people.rows(LOOKED) != begun, "a first look")
    first = people.rows(LOOKED)
    people.wait_for(lambda: people.rows(LOOKED) != first, "ten more looks")


def end_a_lease(people: Live, message_id: str) -> float:
    """A worker died; returns the instant (seconds of the epoch)."""
    ((now,),) = people.rows(
        """
        INSERT INTO consumer_log (consumer_group, topic, message_id, state, owner_token, lease_expires_at, owner_host)
        VALUES ('billing', 'orders', %s, 'CONSUMING', gen_random_uuid(), clock_timestamp(), 'h-1')
        RETURNING extract(epoch FROM clock_timestamp())::float8
        """,
        message_id,
        database="consumer_billing",
    )
    return float(now)


def state_of(people: Live, message_id: str) -> str:
    query = "SELECT state FROM consumer_log WHERE message_id = %s"
    return str(people.rows(query, message_id, database="consumer_billing")[0][0])


def start_by_due_work(people: Live, message_id: str) -> float:
    """A lease ends, and the sweep that its end starts takes it back: seconds from that end to the event, by the clocks of the servers.

    What an idle machine takes from one to the next is in docs/benchmarks.md; the figures of this one are printed.
    """
    interval = people.settings.policy_for().sweep_interval
    people.wait_for(
        lambda: people.rows(MAY_BEGIN, interval) != [(False,)], "the instant at which it may begin"
    )
    before = people.airflow(SWEEPS)
    ended = end_a_lease(people, message_id)
    people.wait_for(lambda: len(people.airflow(SWEEPS)) > len(before), "a run of sweep")
    run, kind, _ = people.airflow(SWEEPS)[-1]
    assert kind == "asset_triggered"
    assert people.wait("sweep", run) == "success"
    assert state_of(people, message_id) == "EXPIRED"
    ((said, queued, started, first_task),) = people.airflow(STEPS, run)
    ((began,),) = people.rows(BEGAN)
    print(
        f"due to started {started - ended:.2f} s: event {said - ended:.2f}, run made {queued - said:.2f}, run started"
        f" {started - queued:.2f}; then its first task after {first_task - started:.2f} and Backstop's run after {began - first_task:.2f}"
    )
    assert ended <= said <= queued <= started <= first_task <= began
    assert first_task - said < AIRFLOWS
    return float(said - ended)


@pytest.mark.usefixtures("idle")
def test_what_becomes_due_starts_its_dag_and_idle_starts_nothing(people: Live) -> None:
    with triggerer(people):
        before = people.airflow(SWEEPS)
        wait_for_looks(people)
        assert people.airflow(SWEEPS) == before, "idle starts nothing"

        seconds: list[float] = []
        while not seconds or (min(seconds) > WITHIN and len(seconds) < TRIES):
            seconds.append(start_by_due_work(people, f"due-1-{len(seconds)}"))
        assert min(seconds) <= WITHIN, seconds

        begun = len(people.airflow(SWEEPS))
        wait_for_looks(people)
        assert len(people.airflow(SWEEPS)) == begun, "idle again"
        assert begun == len(before) + len(seconds), "one run for each"


@pytest.mark.usefixtures("idle")
def test_a_dead_triggerer_is_told_of_and_the_watch_starts_what_is_due_in_its_place(
    people: Live,
) -> None:
    before = people.airflow(SWEEPS)
    people.rows(
        "INSERT INTO watermark (subject, reached) VALUES ('due work is looked for', now() - interval '6 min')"
        " ON CONFLICT (subject) DO UPDATE SET reached = excluded.reached"
    )
    end_a_lease(people, "due-2")
    assert people.run("watch")["watch"] == "success"
    told = "SELECT severity FROM alert WHERE title LIKE 'Nobody has looked for due work for %%'"
    assert people.rows(told) == [("warning",)]
    people.wait_for(lambda: len(people.airflow(SWEEPS)) > len(before), "a run of sweep")
    run, kind, _ = people.airflow(SWEEPS)[-1]
    assert (kind, people.wait("sweep", run)) == ("asset_triggered", "success")
    assert state_of(people, "due-2") == "EXPIRED"
