"""Dead letters of real consumers go through a live Airflow: emptied, classified by Spark, decided, answered, replayed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from backstop.brokers.open import open_broker
from backstop.client import SendPolicy, record, send
from live_people import SECONDS, Live, form_of

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_open(people: Live) -> None:
    people.forget_cases()


POISON = "ValueError: the amount is not a number"
AWAY = "OperationalError: connection to server at 10.0.0.7, port 5432 failed: Connection refused"
QUICK = SendPolicy(timedelta(seconds=2), timedelta(minutes=5), timedelta(seconds=1))
"""Due soon; and the send may begin late, on a busy machine."""


def dies(
    people: Live, errors: dict[str, str], topic: str = "refunds", group: str = "billing"
) -> None:
    """Each message is promised, sent, and fails in the group until the broker gives it up."""
    producer = psycopg2.connect(people.platform.dsn("producer_a"))
    with open_broker(people.settings, people.connections, "embedded") as broker:
        for message_id in errors:
            with producer:
                recorded = record(producer, topic, b"{}", message_id=message_id, policy=QUICK)
            sent = send(
                recorded, broker, lambda: psycopg2.connect(people.platform.dsn("producer_a"))
            )
            assert sent.state != "left", "nothing was published"
        subscription = broker.subscribe(group, [topic], "worker")
        left, deadline = len(errors) * 5, time.monotonic() + SECONDS
        while left:
            assert time.monotonic() < deadline, f"{left} deliveries did not come"
            for one in subscription.fetch(100, timedelta(milliseconds=50)):
                if one.message.message_id in errors:
                    subscription.hand_back(
                        one, after=timedelta(0), counts=True, error=errors[one.message.message_id]
                    )
                    left -= 1
                else:
                    subscription.acknowledge([one])
        subscription.close()
    producer.close()
    for message_id in errors:
        people.rows(
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, last_error, first_received_at,"
            " updated_at) VALUES (%s, %s, %s, 'FAILED', 5, %s, now() - interval '1 minute', now() - interval '1 minute')",
            group,
            topic,
            message_id,
            errors[message_id],
            database=f"consumer_{group}",
        )


def letters(people: Live) -> dict[str, tuple[Any, ...]]:
    rows = people.rows(
        "SELECT message_id, state, category, decision, decided_by FROM dead_letter WHERE topic = 'refunds'"
    )
    return {row[0]: row[1:] for row in rows}


def is_sent(people: Live, message_id: str) -> None:
    state = "SELECT state FROM resend_request WHERE message_id = %s"
    people.wait_for(
        lambda: people.rows(state, message_id) == [("sent",)], f"the resend of {message_id}"
    )


def test_with_no_letter_nothing_is_started_and_the_run_is_recorded(people: Live) -> None:
    tasks = people.run("triage")
    assert tasks.pop("") == "success"
    assert set(tasks.values()) == {"skipped"}
    last = "SELECT state, counts FROM run WHERE duty = 'triage' ORDER BY run_id DESC LIMIT 1"
    assert people.rows(last) == [("done", {"due": 0})]


def test_letters_are_drained_classified_by_spark_decided_and_what_is_safe_is_replayed(
    people: Live,
) -> None:
    dies(people, {"false": AWAY, "away": AWAY, "poison": POISON})
    people.rows(
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'false'",
        database="consumer_billing",
    )
    # A dry run lists, and takes nothing.
    tasks = people.run("triage", dry_run=True)
    assert [tasks[name] for name in ("drain", "classify", "decide_and_apply", "")] == [
        "success",
        "skipped",
        "success",
        "success",
    ]
    assert letters(people) == {}

    tasks = people.run("triage")
    assert {name: state for name, state in tasks.items() if state != "success"} == {
        "wake": "skipped"
    }
    assert letters(people) == {
        "false": ("discarded", "already_confirmed", "discard", "triage"),
        "away": ("replaying", "transient", "replay", "triage"),
        "poison": ("open", "poison", "escalate", "triage"),
    }
    run_id = people.rows("SELECT max(run_id) FROM run WHERE duty = 'triage'")[0][0]
    checks = people.rows(
        "SELECT suite, passed FROM data_check WHERE run_id = %s ORDER BY 1", run_id
    )
    assert checks == [
        ("causes", True),
        ("dead_letters_decided", True),
        ("dead_letters_drained", True),
    ]
    log = people.api.task_log("triage", people.api.dag_runs("triage")[0]["dag_run_id"], "classify")
    assert "spark-submit" in log, "three letters are enough for Spark here"
    # The request woke resend, and the next triage run ends the letter.
    is_sent(people, "away")
    tasks = people.run("triage")
    assert (tasks["drain"], tasks["classify"], tasks[""]) == ("success", "skipped", "success")
    assert letters(people)["away"][0] == "replayed"


def test_a_person_edits_a_poison_message_in_airflow_and_its_new_version_is_replayed(
    people: Live,
) -> None:
    ((case_id,),) = people.rows(
        "SELECT case_id FROM case_file WHERE kind = 'dead_letters' AND state = 'open'"
    )
    people.look()
    asked = people.question(case_id)
    assert asked["options"] == ["replay", "replay_sample", "edit", "discard", "leave"]
    assert set(asked["params"]) == {
        "why",
        "ids",
        "sample",
        "secret_content",
        "secret_content_base64",
    }
    assert "poison" in asked["body"] and "the amount is not a number" in asked["body"]
    run = people.run_of(case_id)
    mended = '{"amount": 7, "by": "olga"}'
    api = people.platform.airflow.api_of("olga")
    assert (
        people.answer(run, "edit", api=api, why="the amount was a word", secret_content=mended)
        == 200
    )
    assert people.end_of(run) == {"ask": "success", "apply": "success", "": "success"}, (
        people.ended(run)
    )
    versions = people.rows(
        "SELECT content_version, written_by FROM message_version WHERE message_id = 'poison' ORDER BY 1"
    )
    assert versions[-1] == (2, "olga")
    stub = people.rows(
        "SELECT content, content_version FROM message_stub WHERE message_id = 'poison'",
        database="producer_a",
    )
    assert [(bytes(content), version) for content, version in stub] == [(mended.encode(), 2)]
    # The answer woke resend.
    is_sent(people, "poison")
    people.run("triage")
    assert letters(people)["poison"][0] == "replayed"
    # What a person typed is with the message, and nowhere where a viewer may read it.
    vera = people.platform.airflow.api_of("vera")
    told = [people.api.task_log("decide_case", run, task) for task in ("ask", "apply")]
    told += [
        str(vera.request("GET", path))
        for path in (
            form_of("decide_case", run, "ask"),
            f"/dags/decide_case/dagRuns/{run}/taskInstances/~/xcomEntries?limit=100",
            "/eventLogs?limit=1000&order_by=-id",
        )
    ]
    for query in (
        "rendered_fields FROM rendered_task_instance_fields",
        "value FROM xcom",
        "extra FROM log",
    ):
        told += [str(row) for row in people.rows(f"SELECT {query}", database="airflow")]
    told += [str(row) for row in people.rows("SELECT given FROM case_question")]
    assert told and not [text for text in told if mended[1:-1] in text.replace("\\", "")]


def test_an_incident_is_planned_shown_and_replayed_after_a_yes_and_not_after_a_no(
    people: Live,
) -> None:
    dies(people, {"lost-1": AWAY, "lost-2": AWAY})
    people.run("triage", dry_run=False)
    ids = [
        row[0]
        for row in people.rows(
            "SELECT message_id FROM dead_letter WHERE state = 'replaying' ORDER BY 1"
        )
    ]
    assert ids == ["lost-1", "lost-2"]
    # They are on their way already: a plan says so, and nothing goes out twice.
    tasks = people.run(
        "replay_incident",
        topic="refunds",
        verdicts=["DEAD_LETTERED"],
        mode="full",
        why="the outage",
    )
    assert (tasks["plan"], tasks["approve"], tasks["replay"], tasks[""]) == (
        "success",
        "skipped",
        "skipped",
        "success",
    )

    dies(people, {"bad-1": POISON, "bad-2": POISON})
    people.run("triage")
    form = {
        "topic": "refunds",
        "verdicts": ["DEAD_LETTERED"],
        "mode": "full",
        "why": "the producer is mended",
    }
    for option, end in (("do nothing", "skipped"), ("replay", "success")):
        run = people.api.trigger("replay_incident", form)
        people.wait_until_parked("replay_incident", run, "approve")
        asked = people.api.request("GET", form_of("replay_incident", run, "approve"))
        assert "replay 2 deliveries of refunds (full)?" in asked["subject"]
        chosen = next(one for one in asked["options"] if one.startswith(option))
        assert people.answer(run, chosen, dag="replay_incident", task="approve") == 200
        states = people.end_of(run, dag="replay_incident", task="approve")
        assert (states["replay"], states[""]) == (end, "success")
        requests = people.rows(
            "SELECT requested_by FROM resend_request WHERE message_id LIKE 'bad-%%'"
        )
        assert len(requests) == (2 if option == "replay" else 0)
    assert all("(incident " in by and by.startswith("admin") for (by,) in requests)


def test_a_broker_that_is_away_ends_the_run_incomplete_and_the_stored_letters_are_decided_all_the_same(
    people: Live,
) -> None:
    dies(people, {"late": AWAY})
    people.platform.broker.stop()
    try:
        people.rows("UPDATE dead_letter SET look_at = now() - interval '1 s' WHERE state = 'open'")
        tasks = people.run("triage")
        due = people.rows("SELECT count(*) FROM dead_letter WHERE state = 'open'")
    finally:
        people.platform.broker.start()
    state, error = people.rows(
        "SELECT state, error FROM run WHERE duty = 'triage' ORDER BY run_id DESC LIMIT 1"
    )[0]
    assert (state, tasks[""]) == ("incomplete", "failed") and "broker embedded" in error, (
        tasks,
        due,
    )
    tasks = people.run("triage")
    assert tasks[""] == "success" and letters(people)["late"][0] == "replaying"
