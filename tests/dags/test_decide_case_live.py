"""People answer through a live Airflow: who may, what becomes of each answer, and that no case is asked twice or lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest

from backstop.cases.decide import decide
from backstop.cases.open import open_case
from backstop.cases.questions import choose
from backstop.client import SendPolicy, record
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.local.airflow_api import AirflowApi, AirflowUnavailable
from backstop.local.platform import PROJECT, Platform
from backstop.local.prepare import prepare

SECONDS = 180.0
"""For one step on a busy machine."""
pytestmark = pytest.mark.timeout(900)
HOSTILE = "id-1` <img src=x onerror=alert(1)> [a](http://evil.example) {{ 7*7 }}\u202e\n# head"
Detail = dict[str, Any]


class Live:
    """The platform, and what the tests do to it."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.api = platform, platform.airflow.api
        self.settings = load(platform.config)
        self.connections = Connections(resolver=platform.connections().get)

    def control(self) -> Any:
        return psycopg2.connect(self.platform.dsn("control"))

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        connection = self.control()
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def case(self, severity: str, *ids: str, kind: str = "unknown", topic: str = "orders", subject: str = "") -> int:
        """An open case about messages that were promised and never sent."""
        producer = psycopg2.connect(self.platform.dsn("producer_a"))
        policy = SendPolicy(timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=1))
        with producer:
            for message_id in ids:
                record(producer, topic, b"{}", message_id=message_id, policy=policy, send=False)
        producer.close()
        connection = self.control()
        with connection, connection.cursor() as cursor:
            case_id = open_case(
                cursor, kind=kind, topic=topic, group="billing", subject=subject, severity=severity, run_id=None,
                summary=f"nobody can say what became of {len(ids)} deliveries", evidence={"where": HOSTILE},
                members=[("shop_a", topic, message_id, "billing") for message_id in ids],
            )  # fmt: skip
        connection.close()
        return case_id

    def by_command_line(self, case_id: int, action: str) -> None:
        connection = self.control()
        decide(connection, self.settings, self.connections, case_id, action, "carla", "seen by command line")
        connection.close()

    def look(self) -> None:
        """One run of ask_people, to its end."""
        assert self.api.wait("ask_people", self.api.trigger("ask_people", {}), SECONDS) == "success"

    def details(self, case_id: int) -> list[Detail]:
        """What Airflow shows of the case and nobody answered yet."""
        found = self.api.request("GET", "/dags/decide_case/dagRuns/~/hitlDetails?response_received=false&limit=100")
        return [one for one in found["hitl_details"] if one["subject"].startswith(f"Case {case_id}:")
                and one["task_instance"]["state"] == "awaiting_input"]  # fmt: skip

    def question(self, case_id: int) -> Detail:
        def asked() -> bool:
            ended = [run["dag_run_id"] for run in self.api.dag_runs("decide_case") if run["state"] == "failed"]
            assert not ended, f"failed: {ended}"
            return len(self.details(case_id)) == 1

        self.wait_for(asked, f"one question about case {case_id}")
        return self.details(case_id)[0]

    def run_of(self, case_id: int) -> str:
        """The run that asks about the case now."""
        ((run,),) = self.rows("SELECT dag_run_id FROM case_question WHERE case_id = %s AND ended_at IS NULL", case_id)
        return str(run)

    def answer(self, run: str, option: str, *, api: AirflowApi | None = None, **inputs: object) -> int:
        """The status of the answer: 200 when Airflow took it."""
        path = f"/dags/decide_case/dagRuns/{quote(run)}/taskInstances/ask/-1/hitlDetails"
        try:
            (api or self.api).request("PATCH", path, {"chosen_options": [option], "params_input": inputs})
        except AirflowUnavailable as refused:
            assert refused.status is not None, refused
            return refused.status
        return 200

    def end_of(self, run: str) -> dict[str, str]:
        """The states of the run's tasks when it has ended, and its own."""
        state = self.api.wait("decide_case", run, SECONDS)
        return self.tasks(run) | {"": state}

    def tasks(self, run: str) -> dict[str, str]:
        return {str(t["task_id"]): str(t["state"]) for t in self.api.task_instances("decide_case", run)}

    def ended(self, run: str) -> tuple[Any, ...]:
        return self.rows("SELECT how, answered_by, answer, said FROM case_question WHERE dag_run_id = %s", run)[0]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
            time.sleep(0.25)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("people")
    config = root / "backstop.yaml"
    config.write_text((PROJECT / "backstop.yaml").read_text() + "\npeople: {questions: 2}\n")
    platform = Platform(Path(root), config)
    try:
        platform.start(airflow=False)
        prepare(load(platform.config), platform.connections())
        platform.airflow.env.update(platform.environment() | {"BACKSTOP_RETRY_SECONDS": "1", "BACKSTOP_ASK_SCHEDULE": "none"})
        platform.airflow.users |= {"olga": "op", "otto": "op", "uwe": "user", "vera": "viewer"}
        platform.airflow.start()
        ready = Live(platform)
        for name in ("decide_case", "ask_people"):
            ready.api.unpause(name)
        yield ready
    finally:
        platform.stop()


def test_the_most_severe_come_first_and_only_who_may_decides_once_with_a_reason(live: Live) -> None:
    mild = live.case("info", "o-mild", subject="mild")
    severe = live.case("critical", HOSTILE, "o-2", subject="severe")
    middle = live.case("warning", "o-3", subject="middle")
    live.look()
    shown = live.question(severe)
    live.question(middle)
    assert live.details(mild) == []
    assert shown["options"] == ["resend", "void", "discard", "leave"] and shown["defaults"] is None
    assert set(shown["params"]) == {"why", "ids"}
    # Nothing that somebody put into a message is Markdown, an address or a template.
    assert "``id-1` <img src=x onerror=alert(1)> [a](http://evil.example) {{ 7*7 }}\\u202e\\u000a# head``" in shown["body"]
    assert f"/backstop/cases/{severe})" in shown["body"]

    run, why = live.run_of(severe), "refunded by hand"
    assert live.answer(run, "discard", api=live.platform.airflow.api_of("vera"), why=why) == 403
    assert live.answer(run, "discard", api=live.platform.airflow.api_of("uwe"), why=why) == 403
    assert live.answer(run, "replay everything", why=why) == 400
    assert live.answer(run, "discard", api=live.platform.airflow.api_of("olga"), why=why) == 200
    assert live.answer(run, "resend", api=live.platform.airflow.api_of("otto"), why=why) == 409
    assert live.end_of(run) == {"ask": "success", "apply": "success", "": "success"}
    decisions = "SELECT message_id, decision, decided_by, why FROM delivery_decision WHERE case_id = %s ORDER BY 1"
    decided = live.rows(decisions, severe)
    assert decided == [(HOSTILE, "discard", "olga", why), ("o-2", "discard", "olga", why)]
    assert live.ended(run)[:3] == ("applied", "olga", "discard")

    # Without a reason nothing is applied; the case is asked about again, and says why. The mild one has its turn.
    run = live.run_of(middle)
    assert live.answer(run, "leave") == 200
    assert live.end_of(run) == {"ask": "success", "apply": "skipped", "": "success"}
    assert live.ended(run)[:3] == ("not_applied", "admin", "leave")
    live.look()
    live.question(mild)
    again = live.question(middle)
    assert live.run_of(middle) == f"case-{middle}-2"
    assert "admin chose leave without a reason" in again["body"]
    assert live.rows("SELECT state FROM case_file WHERE case_id = %s", middle) == [("open",)]


def test_a_case_that_is_decided_elsewhere_meanwhile_is_decided_once(live: Live) -> None:
    # The case before: one question is answered after the command line decided, the other one is taken away.
    ((answered, run), (unanswered, other)) = live.rows(
        "SELECT case_id, dag_run_id FROM case_question WHERE ended_at IS NULL ORDER BY 1"
    )
    for case_id in (answered, unanswered):
        live.question(case_id)
        live.by_command_line(case_id, "leave")
    assert live.answer(run, "discard", why="too late") == 200
    assert live.end_of(run) == {"ask": "success", "apply": "skipped", "": "success"}
    assert "carla (leave)" in live.ended(run)[3]
    assert live.rows("SELECT * FROM delivery_decision WHERE case_id = %s", answered) == []
    live.look()
    assert live.end_of(other) == {"ask": "skipped", "apply": "skipped", "": "success"}
    assert live.ended(other)[0] == "over"
    assert live.rows("SELECT decision, decided_by FROM case_file WHERE case_id = %s", unanswered) == [("leave", "carla")]


def test_an_answer_in_the_first_instant_two_people_at_once_and_a_lost_start_end_in_one_decision(live: Live) -> None:
    hasty = live.case("warning", "o-hasty", subject="hasty")
    lost = live.case("info", "o-lost", subject="lost")
    # A crash after the rows: nobody started their runs. The next look starts them, under the same names.
    connection = live.control()
    assert [question.case_id for question in choose(connection, 2)] == [hasty, lost]
    connection.close()
    assert live.api.dag_runs("decide_case")[0]["dag_run_id"] not in (f"case-{hasty}-1", f"case-{lost}-1")
    looking = live.api.trigger("ask_people", {})

    # As soon as Airflow knows the question, before the task has left its worker.
    live.wait_for(lambda: live.answer(f"case-{hasty}-1", "leave", why="in the first instant") == 200, "a hasty answer")
    assert live.api.wait("ask_people", looking, SECONDS) == "success"

    def settled() -> bool:
        if live.details(hasty):  # it was lost on its way: Airflow asks again
            live.answer(f"case-{hasty}-1", "leave", why="in the first instant")
        return str(live.api.dag_run("decide_case", f"case-{hasty}-1")["state"]) == "success"

    live.wait_for(settled, "the hasty answer's end")
    assert live.rows("SELECT state, decision, decided_by, why FROM case_file WHERE case_id = %s", hasty) == [
        ("decided", "leave", "admin", "in the first instant")
    ]
    assert live.ended(f"case-{hasty}-1")[0] == "applied"

    live.question(lost)
    taken: list[tuple[str, int]] = []
    people = [
        threading.Thread(target=lambda name=name: taken.append(
            (name, live.answer(f"case-{lost}-1", "leave", api=live.platform.airflow.api_of(name), why=f"{name} says so"))))
        for name in ("olga", "otto")
    ]  # fmt: skip
    for person in people:
        person.start()
    for person in people:
        person.join()
    # Airflow may take both (it looks for an answer before it locks the row); one is applied, in its own name.
    assert {status for _, status in taken} in ({200}, {200, 409})
    assert live.end_of(f"case-{lost}-1")["apply"] == "success"
    ((by, why, decisions),) = live.rows(
        "SELECT decided_by, why, jsonb_array_length(evidence -> 'decisions') FROM case_file WHERE case_id = %s", lost
    )
    assert (by, 200) in taken and why == f"{by} says so" and decisions == 1
    assert live.ended(f"case-{lost}-1")[:2] == ("applied", by)


def test_a_question_outlives_airflow_and_its_answer_waits_for_a_database_that_is_away(live: Live) -> None:
    case_id = live.case("critical", "o-restart", subject="restart")
    live.look()
    live.question(case_id)
    run = live.run_of(case_id)
    live.platform.airflow.stop()
    live.platform.airflow.start()
    live.question(case_id)
    admin = psycopg2.connect(live.platform.postgres.admin_dsn())
    admin.autocommit = True
    try:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_a ALLOW_CONNECTIONS false")
        assert live.answer(run, "discard", api=live.platform.airflow.api_of("otto"), why="refunded") == 200
        live.wait_for(lambda: live.tasks(run)["apply"] == "up_for_retry", "a failed try")
    finally:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_a ALLOW_CONNECTIONS true")
        admin.close()
    assert live.end_of(run) == {"ask": "success", "apply": "success", "": "success"}
    assert live.rows("SELECT decided_by FROM delivery_decision WHERE case_id = %s", case_id) == [("otto",)]
