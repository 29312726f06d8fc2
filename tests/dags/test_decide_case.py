"""Which cases are asked about, and what becomes of an answer, on a real control database."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
import yaml
from airflow.sdk.api.datamodels._generated import DagRunState
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput

from backstop.airflow import ask_people, ask_person
from backstop.airflow import decide_case as people
from backstop.cases.open import open_case
from backstop.decisions.question_text import code, plain
from backstop.decisions.questions import choose, end, live
from backstop.model.errors import DecisionRefused
from backstop_lab.servers.postgres import Postgres
from letters import INSERT, values
from quick_postgres import new_database

ROOT = Path(__file__).resolve().parents[2]
OLGA = {"option": "leave", "inputs": {"why": "seen"}, "user_id": "olga", "user_name": "olga"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("pg")) as postgres:
        yield postgres


class Control:
    """A control database that the settings point to."""

    def __init__(self, url: str, config: Path) -> None:
        self.url, self.config = url, config
        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def case(
        self,
        severity: str = "warning",
        *ids: str,
        kind: str = "unknown",
        subject: str = "",
        topic: str = "orders",
    ) -> int:
        connection = psycopg2.connect(self.url)
        with connection, connection.cursor() as cursor:
            case_id = open_case(
                cursor,
                kind=kind,
                topic=topic,
                group="billing",
                subject=subject or str(uuid.uuid4()),
                severity=severity,
                summary="nobody can say what became of it",
                evidence={},
                run_id=None,
                members=[
                    ("shop_a", topic, message_id, "billing") for message_id in ids or ("m-1",)
                ],
            )
        connection.close()
        return case_id

    def choose(self, limit: int = 10) -> list[tuple[int, str]]:
        connection = psycopg2.connect(self.url)
        chosen = [(question.case_id, question.dag_run_id) for question in choose(connection, limit)]
        connection.close()
        return chosen

    def name(self, case_id: int, number: int) -> str:
        """The run of a question."""
        ((run,),) = self.rows(
            "SELECT dag_run_id FROM case_question WHERE case_id = %s AND number = %s",
            case_id,
            number,
        )
        return str(run)

    def set_people(self, line: str) -> None:
        """`line`: what `people` holds, as a mapping in one line."""
        written = yaml.safe_load((ROOT / "backstop.yaml").read_text())
        self.config.write_text(
            yaml.safe_dump(written | {"people": {"second_person": [], **yaml.safe_load(line)}})
        )


@pytest.fixture
def control(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    name = f"control_{uuid.uuid4().hex[:12]}"
    url = new_database(server, name, "control")
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", url)
    database = Control(url, tmp_path / "backstop.yaml")
    database.set_people("{deciders: [olga]}")
    yield database
    database.connection.close()


def ask(control: Control, case_id: int) -> str:
    """The case's run, after its form was written."""
    ((_, run),) = control.rows(
        "SELECT case_id, dag_run_id FROM case_question WHERE case_id = %s AND ended_at IS NULL",
        case_id,
    )
    people.form_of(case_id, run)
    return str(run)


def apply(case_id: int, run: str, answer: Any = None) -> Any:
    """What `ask` keeps of an answer, and what `apply` makes of it."""
    if answer is not None:
        people.receive_answer({"run_id": run}, answer)
    return people.apply_answer(case_id, run)


class Airflow:
    """What a task may ask Airflow about its runs: the state of each by name, and of the task `ask` in it."""

    def __init__(self, runs: dict[str, tuple[str, str]], paused: bool | str = False) -> None:
        self.runs, self.paused = runs, paused

    def get_dr_count(self, *, dag_id: str, run_ids: list[str]) -> int:
        return sum(run in self.runs for run in run_ids)

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> DagRunState:
        return DagRunState(self.runs[run_id][0])

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        return {run: {"ask": self.runs[run][1]} for run in run_ids}

    def get_dag(self, dag_id: str) -> Any:
        return SimpleNamespace(is_paused=self.paused in (True, dag_id))


def start(
    case_id: int, run: str, dag: str = "decide_case", *, reset: bool = False
) -> dict[str, Any]:
    return {"trigger_dag_id": dag, "dag_run_id": run, "conf": {"case_id": case_id}, "reset": reset}


def test_the_most_severe_and_then_the_oldest_cases_are_asked_about_so_many_at_a_time_and_none_twice(
    control: Control,
) -> None:
    mild, old, severe, young = (
        control.case(severity) for severity in ("info", "warning", "critical", "warning")
    )
    assert control.choose(2) == [(severe, control.name(severe, 1)), (old, control.name(old, 1))]
    assert control.choose(2) == []
    assert [case for case, _ in control.choose(10)] == [young, mild]
    with pytest.raises(psycopg2.errors.UniqueViolation):
        control.rows(
            "INSERT INTO case_question (case_id, number, dag_run_id) VALUES (%s, 9, 'another')",
            severe,
        )


def test_critical_cases_do_not_wait_for_the_places_of_mild_ones_and_are_bounded_too(
    control: Control,
) -> None:
    for _ in range(3):
        control.case("warning")
    assert len(control.choose(2)) == 2
    critical = [control.case("critical") for _ in range(3)]
    assert [case for case, _ in control.choose(2)] == critical[:2]
    assert control.choose(2) == []


def test_a_decision_is_applied_in_the_name_of_who_answered_and_only_once(control: Control) -> None:
    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    assert apply(case_id, run, OLGA)["how"] == "applied"
    assert control.rows("SELECT state, decision, decided_by, why FROM case_file") == [
        ("decided", "leave", "olga", "seen")
    ]
    # A crash after the decision, before the row ended: the same answer again changes nothing.
    control.rows("UPDATE case_question SET ended_at = NULL, how = NULL, said = NULL")
    decided = control.rows("SELECT * FROM case_file")
    assert apply(case_id, run, OLGA)["how"] == "applied"
    assert control.rows("SELECT * FROM case_file") == decided
    assert apply(case_id, run, OLGA | {"option": "discard"})["how"] == "applied", (
        "what had ended has ended"
    )
    assert control.rows("SELECT * FROM delivery_decision") == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (OLGA | {"inputs": {}}, "without a reason"),
        (OLGA | {"inputs": {"why": "  "}}, "without a reason"),
        (OLGA | {"user_id": "otto", "user_name": "otto"}, "otto may not decide"),
        (OLGA | {"user_id": None, "user_name": "olga"}, "may not decide"),
        (None, "nobody has answered"),
        (
            OLGA | {"option": "go_on"},
            "refused: A case of kind unknown cannot be decided by 'go_on'",
        ),
    ],
)
def test_an_answer_that_may_not_be_applied_leaves_the_case_open_and_the_next_question_says_why(
    control: Control, answer: Any, told: str
) -> None:
    case_id = control.case()
    control.choose()
    done = apply(case_id, ask(control, case_id), answer)
    assert done["how"] == "not_applied" and told in done["said"]
    assert control.rows("SELECT state, decision FROM case_file") == [("open", None)]
    assert control.choose() == [(case_id, control.name(case_id, 2))]
    assert told in people.form_of(case_id, control.name(case_id, 2))["body"]


def test_an_answer_is_stale_when_the_case_was_decided_came_back_or_grew_since_it_was_shown(
    control: Control,
) -> None:
    decided, back, grown = (control.case("warning", "a", "b", "c") for _ in range(3))
    control.choose()
    runs = {case_id: ask(control, case_id) for case_id in (decided, back, grown)}
    control.rows(
        "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'carla', why = 'w', decided_at = now()"
        " WHERE case_id = %s",
        decided,
    )
    control.rows("UPDATE case_file SET reopened = 1 WHERE case_id = %s", back)
    more = "INSERT INTO case_member SELECT %s, 'shop_a', 'orders', 'm' || n, 'billing' FROM generate_series(1, 6) AS n"
    control.rows(more, grown)
    told = {case_id: apply(case_id, run, OLGA)["said"] for case_id, run in runs.items()}
    assert "decided by carla (leave)" in told[decided]
    assert "has come back" in told[back]
    assert "had 3 open deliveries" in told[grown] and "has 9 now" in told[grown]
    assert control.rows("SELECT case_id, decision FROM case_file ORDER BY 1") == [
        (decided, "leave"),
        (back, None),
        (grown, None),
    ]


def test_a_case_that_is_over_when_its_form_is_written_is_not_shown(control: Control) -> None:
    case_id = control.case()
    ((_, run),) = control.choose()
    control.rows("UPDATE case_file SET state = 'closed', closed_at = now()")
    with pytest.raises(AirflowSkipException, match="closed"):
        people.form_of(case_id, run)
    assert control.rows("SELECT how FROM case_question") == [("over",)]


def test_a_case_whose_dead_letters_are_all_on_their_way_is_not_asked_about_until_one_is_undecided(
    control: Control,
) -> None:
    case_id = control.case(kind="dead_letters")
    assert control.choose() == []
    with control.connection.cursor() as cursor:
        cursor.execute(INSERT, values("m-1"))
    control.rows("UPDATE dead_letter SET case_id = %s", case_id)
    ((_, run),) = control.choose()
    ask(control, case_id)
    control.rows("UPDATE dead_letter SET state = 'replaying', shard = 'shop_a', send_number = 2")
    airflow = Airflow({run: ("running", "awaiting_input")})
    assert ask_people.look_for_questions(airflow) == [start(case_id, run, reset=True)]
    with pytest.raises(AirflowSkipException, match="nothing of the case waits"):
        people.form_of(case_id, run)
    assert ask_people.look_for_questions(airflow) == []


def test_runs_that_were_never_started_are_started_and_those_that_ended_or_are_not_needed_end(
    control: Control,
) -> None:
    unstarted, gone, needless, busy, fine = (control.case() for _ in range(5))
    control.choose()
    for case_id in (needless, busy):
        ask(control, case_id)
    decide = "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'c', why = 'w', decided_at = now()"
    control.rows(f"{decide} WHERE case_id IN (%s, %s)", needless, busy)
    airflow = Airflow(
        {
            control.name(gone, 1): ("failed", "failed"),
            control.name(needless, 1): ("running", "awaiting_input"),
            control.name(busy, 1): ("running", "success"),
            control.name(fine, 1): ("running", "awaiting_input"),
        }
    )
    assert ask_people.look_for_questions(airflow) == [
        start(unstarted, control.name(unstarted, 1)),
        start(needless, control.name(needless, 1), reset=True),
    ]
    assert control.rows("SELECT case_id, how FROM case_question WHERE ended_at IS NOT NULL") == [
        (gone, "lost")
    ]
    # What was lost is asked about again, but not at once.
    control.rows(
        "UPDATE case_question SET ended_at = ended_at - interval '6 minutes' WHERE case_id = %s",
        gone,
    )
    started = [start["dag_run_id"] for start in ask_people.look_for_questions(airflow)]
    assert control.name(gone, 2) in started


def test_cases_that_wait_while_the_dag_is_paused_make_the_look_fail(control: Control) -> None:
    assert ask_people.look_for_questions(Airflow({}, paused=True)) == []
    control.case()
    with pytest.raises(AirflowFailException, match=r"1 cases wait .* paused"):
        ask_people.look_for_questions(Airflow({}, paused=True))


def test_what_was_chosen_and_could_not_be_started_is_no_success_of_ask_people(
    control: Control,
) -> None:
    """By its last success a failure is told once; without one each failure would be the first one, or none would."""
    control.case()
    success = "SELECT reached FROM watermark WHERE subject = 'ask_people went well'"
    ((start,), first) = ask_people.look_for_questions(Airflow({})), control.rows(success)
    assert len(first) == 1
    assert ask_people.look_for_questions(Airflow({})) == [start] and control.rows(success) == first
    assert (
        ask_people.look_for_questions(Airflow({start["dag_run_id"]: ("running", "awaiting_input")}))
        == []
    )
    assert control.rows(success) > first


def test_a_team_is_asked_in_its_own_dag_and_waits_for_no_other_team(control: Control) -> None:
    control.set_people("{questions: 1, deciders: [olga]}")
    with control.config.open("a") as file:
        file.write("teams: [{name: a, topics: [orders]}, {name: b, topics: [payments]}]\n")
    first, second, third = (
        control.case(topic=topic) for topic in ("orders", "payments", "refunds")
    )
    control.case(topic="orders")
    started = ask_people.look_for_questions(Airflow({}, paused="decide_case__a"))
    runs = {case_id: control.name(case_id, 1) for case_id in (first, second, third)}
    assert started == [start(second, runs[second], "decide_case__b"), start(third, runs[third])]
    airflow = Airflow(
        {runs[second]: ("running", "awaiting_input"), runs[third]: ("running", "awaiting_input")},
        "decide_case__a",
    )
    with pytest.raises(AirflowFailException, match=r"1 cases wait .* decide_case__a is paused"):
        ask_people.look_for_questions(airflow)
    # Another team's DAG neither shows the case nor decides it.
    for dag in ("decide_case", "decide_case__b"):
        with pytest.raises(
            AirflowFailException, match=f"asked about by decide_case__a, not by {dag}"
        ):
            people.form_of(first, runs[first], "try 1", dag)
    people.form_of(first, runs[first], "try 1", "decide_case__a")
    people.receive_answer({"run_id": runs[first], "ti": SimpleNamespace(id="try 1")}, OLGA)
    assert people.apply_answer(first, runs[first], "decide_case__b")["how"] == "not_applied"
    assert control.rows("SELECT ended_at FROM case_question WHERE case_id = %s", first) == [(None,)]
    assert people.apply_answer(first, runs[first], "decide_case__a")["how"] == "applied"


def test_a_case_asked_about_by_hand_has_one_question_and_a_second_run_is_refused(
    control: Control,
) -> None:
    case_id = control.case()
    people.form_of(case_id, "manual__1")
    assert control.choose() == []
    with pytest.raises(AirflowFailException, match="asked about already, by the run manual__1"):
        people.form_of(case_id, "manual__2")
    with pytest.raises(AirflowFailException, match="There is no case 999"):
        people.form_of(999, "manual__3")
    connection = psycopg2.connect(control.url)
    assert [one.question.dag_run_id for one in live(connection)] == ["manual__1"]
    assert end(connection, "manual__1", "lost", "deleted") and not end(
        connection, "manual__1", "over", "again"
    )
    connection.close()
    # A run that had ended and is cleared asks again.
    assert people.form_of(case_id, "manual__1")["options"] == [
        "resend",
        "void",
        "discard",
        "drained",
        "leave",
    ]


def test_a_case_that_was_left_can_be_asked_about_by_hand_and_is_not_stale(control: Control) -> None:
    case_id = control.case()
    control.rows(
        "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'c', why = 'w', decided_at = now()"
    )
    assert control.choose() == []
    people.form_of(case_id, "manual__1")
    assert (
        ask_people.look_for_questions(Airflow({"manual__1": ("running", "awaiting_input")})) == []
    )
    assert apply(case_id, "manual__1", OLGA)["how"] == "applied"
    assert control.rows("SELECT decided_by FROM case_file") == [("olga",)]


@pytest.mark.parametrize(
    ("line", "users", "named"),
    [
        ("{deciders: [olga, otto]}", "admin:admin", ["olga", "otto"]),
        ("{}", "admin:admin,olga:op,uwe:user,vera:viewer", ["admin", "olga"]),
        ("{}", "uwe:user", []),
    ],
)
def test_who_may_answer(
    control: Control, monkeypatch: pytest.MonkeyPatch, line: str, users: str, named: list[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", users)
    control.set_people(line)
    case_id = control.case()
    ((_, run),) = control.choose()
    assert [user["id"] for user in people.form_of(case_id, run)["assigned_users"]] == named
    uwe = OLGA | {"user_id": "uwe", "user_name": "uwe"}
    assert apply(case_id, run, uwe)["how"] == "not_applied"


def test_with_another_auth_manager_whoever_it_lets_answer_may(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW__CORE__AUTH_MANAGER",
        "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
    )
    control.set_people("{}")
    case_id = control.case()
    ((_, run),) = control.choose()
    assert people.form_of(case_id, run)["assigned_users"] == []
    assert apply(case_id, run, OLGA | {"user_id": "7", "user_name": "uwe"})["how"] == "applied"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("order-1", "`order-1`"),
        ("`", "`` ` ``"),
        ("a``b` <b>", "```a``b` <b>```"),
        ("x\n# y\t\u202e\0", "`x\\u000a# y\\u0009\\u202e\\u0000`"),
        ("", "(empty)"),
    ],
)
def test_whatever_somebody_put_into_a_message_is_shown_as_code_on_one_line(
    value: str, shown: str
) -> None:
    assert code(value) == shown


def test_an_answer_is_explained_without_the_words_of_the_command_line(control: Control) -> None:
    case_id = control.case(kind="exhausted")
    ((_, run),) = control.choose()
    body = people.form_of(case_id, run)["body"]
    assert (
        "- **raise**: allows one more send; reconcile continues with it" in body
        and "(or --" not in body
    )


def test_a_long_value_is_cut_and_says_how_long_it_is() -> None:
    assert plain("x" * 5000) == "x" * 300 + " ... (5000 characters)"


def test_an_answer_is_held_against_the_case_although_somebody_else_began_the_same_decision(
    control: Control,
) -> None:
    case_id = control.case("warning", "a")
    control.choose()
    run = ask(control, case_id)
    intention = "UPDATE case_file SET decision = 'leave', decided_by = 'olga', why = 'seen', reopened = 1, intention = %s"
    control.rows(intention, json.dumps({"once": None, "reached": True, "before": None}))
    done = apply(case_id, run, OLGA)
    assert done["how"] == "not_applied" and "has come back" in done["said"]


def test_an_answer_that_had_reached_a_producer_goes_on_although_the_case_grew(
    control: Control,
) -> None:
    case_id = control.case("warning", "a")
    control.choose()
    run = ask(control, case_id)
    ((at,),) = control.rows("SELECT shown ->> 'at' FROM case_question")
    control.rows(
        "UPDATE case_file SET decision = 'leave', decided_by = 'olga', why = 'seen', intention = %s",
        json.dumps({"once": f"{run} {at}", "reached": True, "before": None}),
    )
    more = "INSERT INTO case_member SELECT %s, 'shop_a', 'orders', 'm' || n, 'billing' FROM generate_series(1, 9) AS n"
    control.rows(more, case_id)
    assert apply(case_id, run, OLGA)["how"] == "partly"


def test_what_joined_since_the_form_was_written_is_asked_about_by_itself(control: Control) -> None:
    case_id = control.case("warning", "a", subject="cause")
    control.choose()
    run = ask(control, case_id)
    assert control.case("warning", "late", subject="cause") == case_id
    done = apply(case_id, run, OLGA)
    assert done["how"] == "partly" and "late: it is in case" in done["said"]
    ((other, members),) = control.rows(
        "SELECT case_id, array_agg(message_id) FROM case_file JOIN case_member USING (case_id) WHERE state = 'open' GROUP BY 1"
    )
    assert members == ["late"] and [case for case, _ in control.choose()] == [other]


def test_a_run_that_is_cleared_shows_another_form_whose_answer_is_applied_too(
    control: Control,
) -> None:
    case_id = control.case("warning", "a", "b")
    people.form_of(case_id, "manual__1")
    ((at,),) = control.rows("SELECT shown ->> 'at' FROM case_question")
    decisions = [{"once": "manual__1"}, {"once": f"manual__1 {at}"}]
    # What was decided by the first form covered only some of the case.
    control.rows("UPDATE case_file SET evidence = %s", json.dumps({"decisions": decisions}))
    assert apply(case_id, "manual__1", OLGA | {"inputs": {}})["how"] == "not_applied"
    people.form_of(case_id, "manual__1")
    assert apply(case_id, "manual__1", OLGA)["how"] == "applied"
    assert control.rows("SELECT state FROM case_file") == [("decided",)]


def test_an_answer_that_could_not_be_applied_waits_for_apply_and_nobody_is_asked_twice(
    control: Control,
) -> None:
    waits, over = control.case(), control.case()
    control.choose()
    for case_id in (waits, over):
        people.receive_answer({"run_id": ask(control, case_id)}, OLGA)
    airflow = Airflow(
        {control.name(case_id, 1): ("failed", "success") for case_id in (waits, over)}
    )
    assert ask_people.look_for_questions(airflow) == []
    assert control.rows("SELECT ended_at FROM case_question") == [(None,), (None,)]
    decide = "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'c', why = 'w', decided_at = now()"
    control.rows(f"{decide} WHERE case_id = %s", over)
    assert ask_people.look_for_questions(airflow) == []
    assert control.rows("SELECT case_id, how FROM case_question WHERE ended_at IS NOT NULL") == [
        (over, "over")
    ]
    # The task apply was cleared.
    assert apply(waits, control.name(waits, 1))["how"] == "applied"


def test_a_run_that_somebody_failed_without_an_answer_is_asked_again(control: Control) -> None:
    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    # By hand: `ask` a success, `apply` failed.
    assert ask_people.look_for_questions(Airflow({run: ("failed", "success")})) == []
    assert control.rows("SELECT how FROM case_question") == [("lost",)]


def test_an_answer_to_an_earlier_try_is_none_to_the_form_that_was_written_since(
    control: Control,
) -> None:
    case_id = control.case()
    ((_, run),) = control.choose()
    people.form_of(case_id, run, "try 1")
    people.form_of(case_id, run, "try 2")
    people.receive_answer({"run_id": run, "ti": SimpleNamespace(id="try 1")}, OLGA)
    assert control.rows("SELECT given FROM case_question") == [(None,)]
    people.receive_answer({"run_id": run, "ti": SimpleNamespace(id="try 2")}, OLGA)
    assert apply(case_id, run)["how"] == "applied"


def test_nobody_takes_the_name_of_another_cases_question(control: Control) -> None:
    over, case_id = control.case(), control.case()
    with pytest.raises(AirflowFailException, match=f"kept for a question about case {case_id}"):
        people.form_of(over, f"case-{case_id}-1-0123abcd")
    assert case_id in [chosen for chosen, _ in control.choose()]


def test_a_proposal_of_a_case_that_was_left_is_shown_to_a_second_person(control: Control) -> None:
    control.set_people("{deciders: [olga, otto], second_person: [void]}")
    case_id = control.case()
    control.rows(
        "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'c', why = 'w', decided_at = now()"
    )
    control.rows(
        "INSERT INTO proposal (case_id, action, who, why) VALUES (%s, 'void', 'ann', 'w')", case_id
    )
    ((_, run),) = control.choose()
    assert people.form_of(case_id, run)["options"] == ["approve", "reject"]


def operator() -> ask_person.AskPersonOperator:
    return ask_person.AskPersonOperator(
        task_id="ask", form=people.ask_about_case, receive=people.receive_answer
    )


def test_a_question_that_nobody_answered_in_time_stays_open() -> None:
    event = {
        "error_type": "timeout",
        "error": "The Human-in-the-loop response timeout has passed without a response.",
    }
    with pytest.raises(TaskAwaitingInput) as parked:
        operator().execute_complete({}, event)
    assert (parked.value.method_name, parked.value.timeout) == (
        "execute_complete",
        timedelta(minutes=10),
    )


def test_an_answer_about_a_topic_that_left_the_settings_is_not_applied(control: Control) -> None:
    case_id = control.case(topic="gone")
    control.choose()
    run = ask(control, case_id)
    done = apply(case_id, run, OLGA | {"option": "resend"})
    assert done["how"] == "not_applied" and "gone is not in backstop.yaml" in done["said"]


def test_what_a_database_cannot_keep_is_refused_and_not_dropped(control: Control) -> None:
    event = {
        "responded_by_user": {"id": "olga", "name": "olga"},
        "chosen_options": ["leave"],
        "params_input": {"why": "seen", "secret_content": "a\0b", "ids": "\ud800"},
    }
    answer = ask_person.answer_of(event)
    assert answer["inputs"] == {"why": "seen"}
    case_id = control.case()
    control.choose()
    done = apply(case_id, ask(control, case_id), answer)
    assert (
        done["how"] == "not_applied"
        and "cannot be kept in ids, secret_content" in done["said"]
        and "base64" in done["said"]
    )


def test_a_field_of_another_answer_is_refused_with_the_reason_and_asked_again(
    control: Control,
) -> None:
    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    done = apply(case_id, run, OLGA | {"option": "discard", "inputs": {"why": "seen", "more": 2}})
    assert done["how"] == "not_applied" and "does not take a number of more sends" in done["said"]
    assert control.rows("SELECT state FROM case_file WHERE case_id = %s", case_id) == [("open",)]
    assert control.choose() == [(case_id, control.name(case_id, 2))]
    assert (
        "does not take a number of more sends"
        in people.form_of(case_id, control.name(case_id, 2))["body"]
    )
    with pytest.raises(DecisionRefused, match="given twice"):
        people.options_of({"secret_content": "a", "secret_content_base64": "YQ=="})


def test_ids_in_the_form_are_taken_as_they_are_one_a_line() -> None:
    ids = [" blank ", "a\u2028b", "c\x0bd\x85", "\u3000"]
    assert people.options_of({"ids": "\r\n".join(ids) + "\n\n"})["message_ids"] == ids
    assert "message_ids" not in people.options_of({"ids": "\n\r\n"})


def test_what_takes_two_people_is_shown_to_the_second_and_not_taken_from_the_first(
    control: Control,
) -> None:
    control.set_people("{deciders: [olga, otto], second_person: [void]}")
    case_id = control.case()
    control.choose()
    void = OLGA | {"option": "void", "inputs": {"why": "refunded"}}
    first = apply(case_id, ask(control, case_id), void)
    assert first["how"] == "applied" and "proposed" in first["said"]
    assert control.rows("SELECT state, decision FROM case_file") == [("open", None)]
    ((_, run),) = control.choose()
    form = people.form_of(case_id, run)
    assert form["options"] == ["approve", "reject"] and set(form["params"]) == {"why"}
    # Airflow's form is not sent while a field is empty whose type does not allow null.
    assert form["params"]["why"].serialize()["schema"]["type"] == "string"
    assert (
        "Proposed by `olga`" in form["body"]
        and "void" in form["body"]
        and "`refunded`" in form["body"]
    )
    own = apply(case_id, run, OLGA | {"option": "approve", "inputs": {"why": "again"}})
    assert own["how"] == "not_applied" and "cannot approve it" in own["said"]
    ((_, run),) = control.choose()
    people.form_of(case_id, run)
    otto = {
        "option": "reject",
        "inputs": {"why": "not yet"},
        "user_id": "otto",
        "user_name": "otto",
    }
    assert apply(case_id, run, otto)["how"] == "applied"
    assert control.rows("SELECT who, how, ended_by FROM proposal") == [("olga", "rejected", "otto")]


def test_an_answer_to_a_form_from_before_a_proposal_is_stale(control: Control) -> None:
    control.set_people("{deciders: [olga, otto], second_person: [void]}")
    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    control.rows(
        "INSERT INTO proposal (case_id, action, who, why) VALUES (%s, 'void', 'ann', 'w')", case_id
    )
    assert [
        one["reset"]
        for one in ask_people.look_for_questions(Airflow({run: ("running", "awaiting_input")}))
    ] == [True]
    done = apply(case_id, run, OLGA)
    assert done["how"] == "not_applied" and "is not what was shown" in done["said"]


def test_an_answer_counts_for_the_form_that_was_written_last(control: Control) -> None:
    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    people.receive_answer({"run_id": run}, OLGA)
    people.form_of(case_id, run)  # the task `ask` was cleared: the case may look otherwise now
    done = people.apply_answer(case_id, run)
    assert done["how"] == "not_applied" and "nobody has answered" in done["said"]
    assert control.rows("SELECT state FROM case_file") == [("open",)]


def test_the_answer_of_one_case_is_none_to_another(control: Control) -> None:
    case_id, other = control.case(), control.case()
    control.choose()
    run = ask(control, case_id)
    people.receive_answer({"run_id": run}, OLGA)
    assert people.apply_answer(other, run)["how"] == "not_applied", (
        "the run's form was changed in Airflow"
    )
    assert control.rows("SELECT DISTINCT state FROM case_file") == [("open",)]


def test_what_asks_people_starts_questions_and_nothing_else() -> None:
    for dag in ("resend", "replay_incident", "decide_cases"):
        operator = ask_people.StartRunOperator(
            task_id="start", trigger_dag_id=dag, dag_run_id="r", conf={"topic": "orders"}
        )
        with pytest.raises(AirflowFailException, match="starts no run of"):
            operator.execute({})


def test_a_question_that_was_answered_is_offered_to_nobody_until_it_is_asked_again(
    control: Control,
) -> None:
    from backstop.reports.console import Sight, read_one

    case_id = control.case()
    control.choose()
    run = ask(control, case_id)
    with closing(psycopg2.connect(control.url)) as connection:

        def answered() -> bool:
            row = read_one(connection, "case", Sight(), case_id=case_id)
            connection.rollback()
            assert row is not None and row["dag_run"] == run
            return bool(row["answered"])

        assert not answered()
        people.receive_answer({"run_id": run}, OLGA)
        assert answered()
        people.form_of(case_id, run)  # the task `ask` was cleared
        assert not answered()
