"""Somebody with a lesser role writes into a live Airflow what a colleague would have answered: nothing of it is applied."""

from __future__ import annotations

import pytest

from live_people import Live, forge, form_of, long_ago, status, task

pytestmark = pytest.mark.timeout(900)
BY_OLGA = {"user_id": "olga", "user_name": "olga"}


@pytest.fixture(scope="module", autouse=True)
def nothing_is_open(people: Live) -> None:
    people.forget_cases()


def test_an_answer_written_in_anothers_name_is_none(people: Live) -> None:
    case_id = people.case("critical", "o-forged", subject="forged")
    people.look()
    people.question(case_id)
    run = people.run_of(case_id)
    uwe, vera = people.platform.airflow.api_of("uwe"), people.platform.airflow.api_of("vera")
    answer = {"option": "discard", "inputs": {"why": "customer refunded"}, **BY_OLGA}
    assert forge(vera, "decide_case", run, "ask", answer) == 403
    assert people.answer(run, "discard", api=uwe, why="customer refunded") == 403
    assert forge(uwe, "decide_case", run, "ask", answer) == 200, (
        "Airflow lets a user write what tasks hand on"
    )
    assert status(uwe, "PATCH", task("decide_case", run, "ask"), {"new_state": "success"}) == 200
    assert people.end_of(run)["apply"] == "skipped"
    assert (
        people.ended(run)[:3] == ("not_applied", None, None)
        and "nobody has answered" in people.ended(run)[3]
    )
    assert people.rows("SELECT state, decision FROM case_file WHERE case_id = %s", case_id) == [
        ("open", None)
    ]
    assert people.rows("SELECT * FROM delivery_decision WHERE case_id = %s", case_id) == []
    # Whoever may is asked again, and is told so.
    people.look()
    assert "nobody has answered" in people.question(case_id)["body"]
    assert (
        people.answer(
            people.run_of(case_id),
            "discard",
            api=people.platform.airflow.api_of("olga"),
            why="refunded",
        )
        == 200
    )
    assert people.end_of(people.run_of(case_id))["apply"] == "success"
    assert people.rows("SELECT decided_by FROM delivery_decision WHERE case_id = %s", case_id) == [
        ("olga",)
    ]


def test_a_plan_that_somebody_rewrote_is_neither_shown_nor_run(people: Live) -> None:
    uwe = people.platform.airflow.api_of("uwe")
    long_ago(people, "o-planned")
    people.rows("""
        INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)
        VALUES ('reconcile', gen_random_uuid(), '-', '-', 'done', now())""")
    people.rows("""
        INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, send_count, eligible, evidence)
        SELECT max(run_id), 'shop_a', 'orders', 'o-planned', 'billing', 'UNSENT', 'not sent', 0, true, '{}' FROM run""")
    form = {"topic": "orders", "verdicts": ["UNSENT"], "mode": "full", "why": "uwe wants it"}
    run = uwe.trigger("replay_incident", form)
    people.wait_until_parked("replay_incident", run, "approve")
    ((plan, planned_by),) = people.rows(
        "SELECT run_id, planned_by FROM incident WHERE planned_in = %s", run
    )
    assert planned_by == "uwe"
    yes = people.api.request("GET", form_of("replay_incident", run, "approve"))["options"][0]
    assert people.answer(run, yes, api=uwe, dag="replay_incident", task="approve") == 403
    shown = {
        "plan": plan,
        "total": 1,
        "too_wide": False,
        "by": "olga",
        "topic": "orders",
        "counts": {},
        "left_out": {},
        "examples": [],
        "why": "olga planned it",
    }
    assert forge(uwe, "replay_incident", run, "plan", shown) == 200
    assert (
        forge(uwe, "replay_incident", run, "approve", {"option": yes, "inputs": {}, **BY_OLGA})
        == 200
    )
    assert (
        status(uwe, "PATCH", task("replay_incident", run, "approve"), {"new_state": "success"})
        == 200
    )
    assert people.end_of(run, dag="replay_incident", task="approve")["replay"] == "failed"
    assert "Task failed" in people.api.task_log("replay_incident", run, "replay")
    assert people.rows("SELECT * FROM resend_request WHERE message_id = 'o-planned'") == []


def test_a_list_of_ids_is_sent_for_who_may_decide_and_in_their_name_alone(people: Live) -> None:
    long_ago(people, "o-listed")
    form = {"topic": "orders", "ids": "o-listed", "by": "olga", "why": "ok"}
    uwe, vera = people.platform.airflow.api_of("uwe"), people.platform.airflow.api_of("vera")
    assert status(vera, "POST", "/dags/resend/dagRuns", {"conf": form, "logical_date": None}) == 403
    requests = "SELECT requested_by FROM resend_request WHERE message_id = 'o-listed'"
    run = uwe.trigger("resend", form)
    assert people.wait("resend", run) == "failed"
    assert "uwe may not send a list of ids of orders" in people.api.task_log(
        "resend", run, "open_run"
    )
    assert people.rows(requests) == []
    run = people.platform.airflow.api_of("olga").trigger("resend", form | {"by": "otto"})
    people.wait("resend", run)
    assert people.rows(requests) == [("person olga",)]
    # Clearing olga's run asks for nothing in her name.
    people.rows("DELETE FROM resend_request WHERE message_id = 'o-listed'")
    cleared = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
    assert status(uwe, "POST", "/dags/resend/clearTaskInstances", cleared) == 200
    assert people.wait("resend", run) == "failed"
    assert "was taken before" in people.api.task_log("resend", run, "open_run", 2)
    assert people.rows(requests) == []


def test_nobody_starts_a_run_in_the_name_of_who_had_people_asked(people: Live) -> None:
    """Airflow lets the run that a task starts inherit the name of who triggered the task's run."""
    uwe, olga = people.platform.airflow.api_of("uwe"), people.platform.airflow.api_of("olga")
    long_ago(people, "o-inherited")
    people.case("critical", "o-asked", subject="asked")
    run = olga.trigger("ask_people", {})
    assert people.wait("ask_people", run) == "success"
    conf = {"topic": "orders", "ids": "o-inherited", "why": "uwe wants it"}
    start = {"trigger_dag_id": "resend", "dag_run_id": "as_olga", "conf": conf, "reset": False}
    assert forge(uwe, "ask_people", run, "look", [start]) == 200
    cleared = {
        "dry_run": False,
        "dag_run_id": run,
        "task_ids": ["start"],
        "only_failed": False,
        "reset_dag_runs": True,
    }
    assert status(uwe, "POST", "/dags/ask_people/clearTaskInstances", cleared) == 200
    assert people.wait("ask_people", run) == "failed"
    asked = "SELECT requested_by FROM resend_request WHERE message_id = 'o-inherited'"
    assert people.rows(asked) == []
