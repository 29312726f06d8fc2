"""People answer through a live Airflow: who may, what becomes of each answer, and that no case is asked twice or lost."""

from __future__ import annotations

import threading

import psycopg2
import pytest

from backstop.decisions.questions import choose
from live_people import HOSTILE, Live

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_open(people: Live) -> None:
    people.forget_cases()


def test_the_most_severe_come_first_and_only_who_may_decides_once_with_a_reason(
    people: Live,
) -> None:
    mild = people.case("info", "o-mild", subject="mild")
    severe = people.case("critical", HOSTILE, "o-2", subject="severe")
    middle = people.case("warning", "o-3", subject="middle")
    people.look()
    shown = people.question(severe)
    people.question(middle)
    assert people.details(mild) == []
    assert (
        shown["options"] == ["resend", "void", "discard", "drained", "leave"]
        and shown["defaults"] is None
    )
    assert set(shown["params"]) == {"why", "ids", "broker"}
    # Nothing that somebody put into a message is Markdown, an address or a template.
    assert (
        "``id-1` <img src=x onerror=alert(1)> [a](http://evil.example) {{ 7*7 }}\\u202e\\u000a# head``"
        in shown["body"]
    )
    assert f"/backstop/cases/{severe})" in shown["body"]

    run, why = people.run_of(severe), "refunded by hand"
    assert people.answer(run, "discard", api=people.platform.airflow.api_of("vera"), why=why) == 403
    assert people.answer(run, "discard", api=people.platform.airflow.api_of("uwe"), why=why) == 403
    assert people.answer(run, "replay everything", why=why) == 400
    assert people.answer(run, "discard", api=people.platform.airflow.api_of("olga"), why=why) == 200
    assert people.answer(run, "resend", api=people.platform.airflow.api_of("otto"), why=why) == 409
    assert people.end_of(run) == {"ask": "success", "apply": "success", "": "success"}
    decisions = "SELECT message_id, decision, decided_by, why FROM delivery_decision WHERE case_id = %s ORDER BY 1"
    decided = people.rows(decisions, severe)
    assert decided == [(HOSTILE, "discard", "olga", why), ("o-2", "discard", "olga", why)]
    assert people.ended(run)[:3] == ("applied", "olga", "discard")

    # Without a reason nothing is applied; the case is asked about again, and says why. The mild one has its turn.
    run = people.run_of(middle)
    assert people.answer(run, "leave") == 200
    assert people.end_of(run) == {"ask": "success", "apply": "skipped", "": "success"}
    assert people.ended(run)[:3] == ("not_applied", "admin", "leave")
    people.look()
    people.question(mild)
    again = people.question(middle)
    assert people.run_of(middle) == people.name(middle, 2)
    assert "admin chose leave without a reason" in again["body"]
    assert people.rows("SELECT state FROM case_file WHERE case_id = %s", middle) == [("open",)]


def test_a_case_that_is_decided_elsewhere_meanwhile_is_decided_once(people: Live) -> None:
    # The case before: one question is answered after the command line decided, the other one is taken away.
    ((answered, run), (unanswered, other)) = people.rows(
        "SELECT case_id, dag_run_id FROM case_question WHERE ended_at IS NULL ORDER BY 1"
    )
    for case_id in (answered, unanswered):
        people.question(case_id)
        people.by_command_line(case_id, "leave")
    assert people.answer(run, "discard", why="too late") == 200
    assert people.end_of(run) == {"ask": "success", "apply": "skipped", "": "success"}
    assert "carla (leave)" in people.ended(run)[3]
    assert people.rows("SELECT * FROM delivery_decision WHERE case_id = %s", answered) == []
    people.look()
    assert people.end_of(other) == {"ask": "skipped", "apply": "skipped", "": "success"}
    assert people.ended(other)[0] == "over"
    assert people.rows(
        "SELECT decision, decided_by FROM case_file WHERE case_id = %s", unanswered
    ) == [("leave", "carla")]


def test_an_answer_in_the_first_instant_two_people_at_once_and_a_lost_start_end_in_one_decision(
    people: Live,
) -> None:
    hasty = people.case("warning", "o-hasty", subject="hasty")
    lost = people.case("info", "o-lost", subject="lost")
    # A crash after the rows: nobody started their runs. The next look starts them, under the same names.
    connection = people.control()
    assert [question.case_id for question in choose(connection, 2)] == [hasty, lost]
    connection.close()
    assert people.api.dag_runs("decide_case")[0]["dag_run_id"] not in (
        people.name(hasty, 1),
        people.name(lost, 1),
    )
    looking = people.api.trigger("ask_people", {})

    # As soon as Airflow knows the question, before the task has left its worker.
    people.wait_for(
        lambda: people.answer(people.name(hasty, 1), "leave", why="in the first instant") == 200,
        "a hasty answer",
    )
    assert people.wait("ask_people", looking) == "success"

    def settled() -> bool:
        if people.asks_again(hasty, people.asks(hasty) > 0):  # it was lost on its way
            people.answer(people.name(hasty, 1), "leave", why="in the first instant")
        return people.state("decide_case", people.name(hasty, 1)) == "success"

    people.wait_for(settled, "the hasty answer's end")
    assert people.rows(
        "SELECT state, decision, decided_by, why FROM case_file WHERE case_id = %s", hasty
    ) == [("decided", "leave", "admin", "in the first instant")]
    assert people.ended(people.name(hasty, 1))[0] == "applied"

    people.question(lost)
    run = people.name(lost, 1)
    taken: list[tuple[str, int]] = []
    answering = [
        threading.Thread(
            target=lambda name=name: taken.append(
                (
                    name,
                    people.answer(
                        run,
                        "leave",
                        api=people.platform.airflow.api_of(name),
                        why=f"{name} says so",
                    ),
                )
            )
        )
        for name in ("olga", "otto")
    ]
    for person in answering:
        person.start()
    for person in answering:
        person.join()
    # Airflow may take both (it looks for an answer before it locks the row); one is applied, in its own name.
    assert {status for _, status in taken} in ({200}, {200, 409})
    assert people.end_of(people.name(lost, 1))["apply"] == "success"
    ((by, why, decisions),) = people.rows(
        "SELECT decided_by, why, jsonb_array_length(evidence -> 'decisions') FROM case_file WHERE case_id = %s",
        lost,
    )
    assert (by, 200) in taken and why == f"{by} says so" and decisions == 1
    assert people.ended(people.name(lost, 1))[:2] == ("applied", by)


def test_an_answer_that_airflow_kept_without_waking_the_task_is_applied(people: Live) -> None:
    case_id = people.case("critical", "o-kept", subject="kept")
    people.look()
    people.question(case_id)
    # What Airflow 3.3.2 leaves when an answer meets the instant of parking: it had read the state of the task before.
    airflow = psycopg2.connect(people.platform.dsn("airflow"))
    with airflow, airflow.cursor() as cursor:
        cursor.execute(
            """UPDATE hitl_detail SET responded_at = now(), responded_by = '{"id": "otto", "name": "otto"}',
                      chosen_options = '["discard"]', params_input = '{"why": "kept"}'
               FROM task_instance WHERE id = ti_id AND run_id = %s AND state = 'awaiting_input'""",
            (people.run_of(case_id),),
        )
        assert cursor.rowcount == 1
    airflow.close()
    assert people.end_of(people.run_of(case_id)) == {
        "ask": "success",
        "apply": "success",
        "": "success",
    }
    assert people.rows("SELECT decided_by FROM delivery_decision WHERE case_id = %s", case_id) == [
        ("otto",)
    ]


def test_a_question_outlives_airflow_and_its_answer_waits_for_a_database_that_is_away(
    people: Live,
) -> None:
    case_id = people.case("critical", "o-restart", subject="restart")
    people.look()
    people.question(case_id)
    run = people.run_of(case_id)
    people.platform.airflow.stop()
    people.platform.airflow.start()
    people.question(case_id)
    admin = psycopg2.connect(people.platform.postgres.admin_dsn())
    admin.autocommit = True
    try:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_a ALLOW_CONNECTIONS false")
        assert (
            people.answer(
                run, "discard", api=people.platform.airflow.api_of("otto"), why="refunded"
            )
            == 200
        )
        people.wait_for(lambda: people.tasks(run)["apply"] == "up_for_retry", "a failed try")
    finally:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_a ALLOW_CONNECTIONS true")
        admin.close()
    assert people.end_of(run) == {"ask": "success", "apply": "success", "": "success"}
    assert people.rows("SELECT decided_by FROM delivery_decision WHERE case_id = %s", case_id) == [
        ("otto",)
    ]
