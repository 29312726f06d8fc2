"""What the tasks of triage and of replay_incident do to real databases and a real broker, without Airflow around them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from backstop.airflow import replay_incident as incident
from backstop.airflow import triage
from backstop.airflow.deciders import may_trigger
from backstop.airflow.steps import SOMETHING_AWAY, EndedTasks, close
from backstop.brokers.open import open_broker
from backstop.config.people import PeopleSettings
from backstop.model.errors import BrokerUnavailable, ConfigurationError
from backstop.model.records import Message
from backstop.triage.causes.classify import rules_of
from control_world import World, servers, world  # noqa: F401
from triage_world import dead, letters, look_now, requests

FORM = {
    "topic": "orders",
    "from": None,
    "to": None,
    "verdicts": ["DEAD_LETTERED"],
    "causes": [],
    "group": None,
    "limit": None,
    "rate": None,
    "mode": "full",
    "why": "billing is mended",
}


class Handed:
    """What tasks hand on beside their result."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def xcom_push(self, *, key: str, value: str) -> None:
        self.values[key] = value


def in_queue(world: World, message_id: str) -> None:
    """A letter that a real consumer made: it failed until the broker gave it up."""
    with open_broker(world.settings, world.connections, "embedded") as broker:
        broker.publish([Message("orders", message_id, b"{}", {"backstop-message-id": message_id})])
        subscription = broker.subscribe("billing", ["orders"], "worker")
        for _ in range(5):
            (one,) = subscription.fetch(1, timedelta(seconds=10))
            subscription.hand_back(
                one, after=timedelta(0), counts=True, error="ValueError: no amount"
            )
        subscription.close()


def without_broker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_BROKER", "redis://127.0.0.1:1/0")


def test_with_nothing_to_do_the_run_is_recorded_and_a_letter_in_the_queue_is_something_to_do(
    world: World,
) -> None:
    assert triage.open_triage(None, False) is None
    assert world.control("SELECT state, counts FROM run") == [("done", {"due": 0})]
    in_queue(world, "m")
    opened = triage.open_triage(None, False)
    assert opened is not None and opened["due"] == 1
    with open_broker(world.settings, world.connections, "embedded") as broker:
        assert len(list(broker.dead_letters("billing"))) == 1, "looking takes nothing"
    with pytest.raises(ConfigurationError):
        triage.open_triage("nowhere", False)


def test_a_letter_goes_through_the_steps_and_nothing_is_due_afterwards(world: World) -> None:
    world.stub("m", sends=1)
    world.log("m", "billing", state="FAILED", moved="1 minute")
    in_queue(world, "m")
    opened = triage.open_triage(None, False)
    assert opened is not None
    assert triage.drain.function(opened, Handed())["stored"] == 1
    assert triage.classify_few(opened, below=1) == 1, (
        "as many as asks for Spark are not classified here"
    )
    assert triage.classify_few(opened, below=2) == 1
    triage.promote.function(opened, Handed())
    assert triage.decide(opened, Handed())["escalated"] == 1
    done = close(opened, EndedTasks())
    assert done["state"] == "done"
    assert (letters(world)["m"]["category"], letters(world)["m"]["state"]) == ("poison", "open")
    # It is looked at again later, because its work may be done by then; until that hour nothing is due.
    world.control("UPDATE dead_letter SET look_at = look_at + interval '1 hour'")
    assert triage.open_triage(None, False) is None


def decided(world: World, message_id: str) -> dict[str, Any]:
    """A poison letter that a round escalated a while ago and that is due for another look."""
    dead(world, message_id, "poison")
    world.control("UPDATE dead_letter SET classified_by = %s", (rules_of(world.settings).version,))
    opened = triage.open_triage(None, False)
    assert opened is not None and triage.decide(opened, Handed())["escalated"] >= 1
    close(opened, EndedTasks())
    look_now(world)
    return letters(world)[message_id]


def test_a_letter_that_goes_on_waiting_for_a_person_is_only_looked_at_and_starts_no_steps(
    world: World,
) -> None:
    before = decided(world, "m")
    assert triage.open_triage(None, False) is None
    assert world.control("SELECT state, counts FROM run ORDER BY run_id DESC LIMIT 1") == [
        ("done", {"due": 0, "unchanged": 1})
    ]
    after = letters(world)["m"]
    assert after.pop("look_at") > before.pop("look_at")
    assert after == before
    later = (
        "SELECT d.look_at > r.started_at FROM dead_letter d, run r ORDER BY r.run_id DESC LIMIT 1"
    )
    assert world.control(later) == [(True,)], "it is not due again at once"


def test_letters_proven_done_later_are_discarded_soon(world: World) -> None:
    decided(world, "m")
    decided(world, "n")
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'm'",
    )
    opened = triage.open_triage(None, False)
    assert opened is not None and opened["due"] == 1, "the other one is as it was"
    assert triage.decide(opened, Handed())["discarded"] == 1
    assert {name: one["state"] for name, one in letters(world).items()} == {
        "m": "discarded",
        "n": "open",
    }


@pytest.mark.parametrize(
    "changed",
    [
        "UPDATE case_file SET state = 'closed', closed_at = now()",
        "UPDATE dead_letter SET category = 'transient', classified_at = clock_timestamp()",
        "UPDATE dead_letter SET reason = 'loop'",
        "UPDATE dead_letter SET decision = NULL",
    ],
)
def test_what_is_to_be_decided_otherwise_than_it_was_starts_the_steps(
    world: World, changed: str
) -> None:
    decided(world, "m")
    world.control(changed)
    opened = triage.open_triage(None, False)
    assert opened is not None and opened["due"] == 1


def test_a_look_that_could_not_read_everything_is_left_to_the_steps_which_say_what_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(world, "m")
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONSUMER_BILLING", "postgresql://127.0.0.1:1/none")
    opened, handed = triage.open_triage(None, False), Handed()
    assert opened is not None and opened["due"] == 1
    triage.decide(opened, handed)
    assert "billing" in handed.values[SOMETHING_AWAY]


def test_a_dry_run_postpones_nothing(world: World) -> None:
    decided(world, "m")
    opened = triage.open_triage(None, True)
    assert opened is not None and opened["due"] == 1


def test_a_broker_that_is_away_stops_no_step_and_ends_the_run_incomplete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "transient")
    without_broker(world, monkeypatch)
    opened, handed = triage.open_triage(None, False), Handed()
    assert opened is not None
    triage.drain.function(opened, handed)
    assert "broker embedded" in handed.values[SOMETHING_AWAY]
    assert triage.decide(opened, Handed())["replaying"] == 1
    with pytest.raises(AirflowFailException, match="broker embedded"):
        close(opened, EndedTasks(away={"drain": handed.values[SOMETHING_AWAY]}))
    ((state, error),) = world.control(
        "SELECT state, error FROM run WHERE run_id = %s", (opened["run_id"],)
    )
    assert state == "incomplete" and "broker embedded" in error
    # With nothing stored that is due, nobody knows what is in the queues: that is not "nothing to do".
    world.control("DELETE FROM dead_letter")
    with pytest.raises(BrokerUnavailable, match="embedded"):
        triage.open_triage(None, False)
    assert world.control("SELECT state FROM run ORDER BY run_id DESC LIMIT 1") == [("incomplete",)]


def test_a_consumer_database_that_is_away_leaves_letters_unclassified_and_the_run_incomplete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("m", sends=1)
    in_queue(world, "m")
    opened = triage.open_triage(None, False)
    assert opened is not None
    triage.drain.function(opened, Handed())
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONSUMER_BILLING", "postgresql://127.0.0.1:1/none")
    triage.classify_few(opened, below=100)
    with pytest.raises(AirflowFailException, match="billing"):
        close(opened, EndedTasks())
    assert world.control("SELECT state FROM run WHERE run_id = %s", (opened["run_id"],)) == [
        ("incomplete",)
    ]
    assert letters(world)["m"]["category"] is None


def test_a_failed_task_ends_the_run_failed(world: World) -> None:
    dead(world, "m", "poison")
    opened = triage.open_triage("orders", False)
    assert opened is not None
    with pytest.raises(AirflowFailException, match="failed tasks: promote"):
        close(opened, EndedTasks(["promote"], away={"drain": "a broker"}))
    assert world.control("SELECT state FROM run WHERE run_id = %s", (opened["run_id"],)) == [
        ("failed",)
    ]


def asks(run: str, mode: str = "full", who: str | None = "olga") -> dict[str, Any]:
    """What Airflow gives a task of this run."""
    return {"run_id": run, "params": FORM | {"mode": mode}, "dag_run": triggered(who)}


def triggered(who: str | None, ago: timedelta = timedelta(0), kind: str = "manual") -> Any:
    at = datetime.now(UTC) - ago
    return SimpleNamespace(triggering_user_name=who, run_after=at, run_type=kind)


def test_a_run_that_another_dag_started_is_nobodys_word(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow gives it the name of who triggered the other one; what that one starts may be anybody's XCom."""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user")
    dead(world, "m-1", "poison")
    inherited = triggered("olga", kind="operator_triggered")
    with pytest.raises(AirflowFailException, match="needs a name"):
        incident.plan.function(params=FORM, dag_run=inherited, run_id="r-1")
    incident.store_plan(FORM | {"mode": "canary"}, "olga", "r-2")
    world.control("UPDATE incident SET too_wide = false RETURNING 1")
    with pytest.raises(AirflowFailException, match="nobody has answered"):
        incident.request_planned("r-2", "canary", inherited)
    assert requests(world) == []


def answered(run: str, option: str, who: str | None = "olga") -> None:
    incident.receive_approval(
        asks(run), {"option": option, "inputs": {}, "user_id": who, "user_name": who}
    )


def test_a_plan_is_shown_and_only_a_yes_of_somebody_who_may_asks_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user")
    for name in ("m-1", "m-2"):
        dead(world, name, "poison")
    with pytest.raises(AirflowFailException, match="has made no plan"):
        incident.ask_for_approval(asks("r-1"))
    shown = incident.store_plan(FORM, "olga", "r-1")
    assert shown["total"] == 2 and requests(world) == []
    # No lease is held while people think.
    assert world.control("SELECT state FROM run WHERE run_id = %s", (shown["plan"],)) == [("done",)]

    form = incident.ask_for_approval(asks("r-1"))
    assert "replay 2 deliveries of orders (full)" in form["subject"] and "`m-1`" in form["body"]
    yes, no = form["options"]
    assert yes.startswith(f"replay plan {shown['plan']} (full, ") and no == "do nothing"
    assert [user["id"] for user in form["assigned_users"]] == ["olga"]
    with pytest.raises(AirflowSkipException, match="nothing goes out"):
        incident.ask_for_approval(asks("r-1", "dry_run"))
    # The task `approve` was marked as a success.
    with pytest.raises(AirflowFailException, match="nobody has answered"):
        incident.request_planned("r-1", "full", triggered("olga"))
    for who, option, told in (
        ("uwe", yes, "uwe may not decide"),
        (None, yes, "nobody may not decide"),
        ("olga", no, "said no"),
    ):
        answered("r-1", option, who)
        with pytest.raises(AirflowSkipException, match=told):
            incident.request_planned("r-1", "full", triggered("olga"))
    assert requests(world) == []
    offered = world.control("SELECT shown ->> 'answered' FROM incident WHERE planned_in = 'r-1'")
    assert offered == [("true",)], "the console offers no form for it"
    # A yes to one plan is none to another, to another mode, or to what was shown before.
    answered("r-1", yes)
    with pytest.raises(AirflowFailException, match=r"which is no approval of plan \d+ \(canary\)"):
        incident.request_planned("r-1", "canary", triggered("olga"))
    incident.store_plan(FORM, "olga", "r-2")
    incident.ask_for_approval(asks("r-2"))
    answered("r-2", yes)
    with pytest.raises(AirflowFailException, match="which is no approval of plan"):
        incident.request_planned("r-2", "full", triggered("olga"))
    world.control(
        "UPDATE incident_delivery SET message_id = 'm-3' WHERE message_id = 'm-2' AND run_id = %s",
        (shown["plan"],),
    )
    with pytest.raises(AirflowFailException, match="which is no approval of plan"):
        incident.request_planned("r-1", "full", triggered("olga"))
    world.control("UPDATE incident_delivery SET message_id = 'm-2' WHERE message_id = 'm-3'")
    assert requests(world) == []
    assert incident.request_planned("r-1", "full", triggered(None))["requests"] == 2
    again = incident.request_planned("r-1", "full", triggered(None))
    assert again.get("requests", 0) == 0, "what was asked for already is asked for once"
    assert {row[3] for row in requests(world)} == {f"olga (incident {shown['plan']})"}
    # `plan` was cleared: what is shown is the new plan, and the old yes is none to it.
    anew = incident.store_plan(FORM, "olga", "r-1")
    assert anew["plan"] != shown["plan"] and anew["by"] == "whoever cleared the run of olga"
    with pytest.raises(AirflowSkipException, match="nothing goes out"):
        incident.request_planned("r-1", "full", triggered("olga"))


def test_an_old_run_that_somebody_clears_plans_in_nobodys_name(world: World) -> None:
    """What it planned itself may have been purged."""
    dead(world, "m-1", "poison")
    old = triggered("olga", timedelta(days=40))
    for _ in range(2):
        shown = incident.plan.function(params=FORM, dag_run=old, run_id="r-1")
        assert shown["by"] == "whoever cleared the run of olga"
    world.control("DELETE FROM incident_delivery WHERE run_id < %s", (shown["plan"],))
    world.control("DELETE FROM incident WHERE run_id < %s", (shown["plan"],))
    settings = world.settings.model_copy(update={"people": PeopleSettings()})
    room: Any = SimpleNamespace(control=world.conn, settings=settings)
    found, made = incident._plan_of(room, "r-1")
    assert made == 1
    with pytest.raises(AirflowFailException, match="does not say by whom"):
        incident._require_maker(room, found, made, "full")


def test_a_canary_goes_out_without_a_yes_only_for_who_may_decide_and_only_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user")
    dead(world, "m-1", "poison")
    canary = FORM | {"mode": "canary"}
    shown = incident.store_plan(canary, "olga", "r-1")
    world.control("UPDATE incident SET too_wide = false")

    for nobody in ("uwe", None):
        yes, no = incident.ask_for_approval(asks("r-1", "canary", nobody))["options"]
        assert yes.startswith(f"replay plan {shown['plan']} (canary, ") and no == "do nothing"
        with pytest.raises(AirflowFailException, match="nobody has answered"):
            incident.request_planned("r-1", "canary", triggered(nobody))
    assert requests(world) == []
    with pytest.raises(AirflowSkipException, match="within the blast radius"):
        incident.ask_for_approval(asks("r-1", "canary"))
    # An old run that somebody clears: what was planned in it may have been purged.
    old = triggered("olga", timedelta(days=2))
    assert incident.ask_for_approval(asks("r-1", "canary") | {"dag_run": old})["options"]
    with pytest.raises(AirflowFailException, match="nobody has answered"):
        incident.request_planned("r-1", "canary", old)
    with pytest.raises(AirflowFailException, match="Nobody was asked"):
        incident.request_planned("r-1", "full", triggered("olga"))
    world.control("UPDATE incident SET too_wide = true")
    with pytest.raises(AirflowFailException, match="Nobody was asked"):
        incident.request_planned("r-1", "canary", triggered("olga"))
    # Somebody cleared olga's run: Airflow still says that she triggered it.
    world.control("UPDATE incident SET too_wide = false")
    anew = incident.store_plan(canary, "olga", "r-1")
    world.control("UPDATE incident SET too_wide = false")
    assert anew["total"] == 1
    incident.ask_for_approval(asks("r-1", "canary"))
    with pytest.raises(AirflowFailException, match="nobody has answered"):
        incident.request_planned("r-1", "canary", triggered("olga"))
    assert requests(world) == []
    incident.store_plan(canary, "olga", "r-2")
    world.control("UPDATE incident SET too_wide = false")
    assert incident.request_planned("r-2", "canary", triggered("olga"))["requests"] == 1


@pytest.mark.parametrize(
    ("manager", "line", "login", "may"),
    [
        ("", "{}", "olga", True),
        ("", "{}", "uwe", False),
        ("", "{deciders: [uwe]}", "uwe", True),
        ("fab", "{}", "olga", False),  # whom Airflow lets trigger is not whom it lets answer
        ("fab", "{deciders: ['7']}", "7", False),  # an id is no login
        ("fab", "{deciders: [{id: '7', name: olga}]}", "olga", True),
        ("fab", "{deciders: [{id: '7', name: olga}]}", "7", False),
        (
            "",
            "{deciders: [olga], rules: [{actions: [edit, replay], deciders: [otto]}]}",
            "olga",
            False,
        ),
        ("", "{deciders: [olga], rules: [{topics: [payments], deciders: [otto]}]}", "olga", True),
    ],
)
def test_who_triggers_is_known_by_a_login_and_never_by_an_id(
    monkeypatch: pytest.MonkeyPatch, manager: str, line: str, login: str, may: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user")
    if manager:
        monkeypatch.setenv(
            "AIRFLOW__CORE__AUTH_MANAGER",
            "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
        )
    settings = SimpleNamespace(people=PeopleSettings.model_validate(yaml.safe_load(line)))
    assert may_trigger(settings, login, "replay", "orders") is may
    assert not may_trigger(settings, None, "replay", "orders")


def test_what_cannot_be_planned_fails_at_once_and_says_what_can_be_done(world: World) -> None:
    for wrong, told in (
        ({"verdicts": []}, "Name verdicts or causes"),
        ({"topic": "nowhere"}, "There is no topic"),
        ({"why": " "}, "a reason"),
        ({"from": "yesterday"}, "not a time"),
        ({"to": "2026-11-21T02:00:00"}, "has no time zone"),
    ):
        with pytest.raises(AirflowFailException, match=told):
            incident.store_plan(FORM | wrong, "olga", "r-1")
    assert world.control("SELECT DISTINCT state FROM run") == [("failed",)]
