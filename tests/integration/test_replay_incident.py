"""A replay by hand: planned and shown, then asked for as it was shown; a canary first; never more than was approved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstop.cli.app import run_app
from backstop.config.people import PeopleSettings
from backstop.decisions.decide import decide
from backstop.incidents import plan as plan_incident
from backstop.incidents.replay import Mode, Plan, Wanted, run_incident
from backstop.model.errors import DecisionRefused
from backstop.model.records import Counts
from control_world import World, servers, world  # noqa: F401
from triage_world import (
    cases,
    classify,
    dead,
    letter,
    letters,
    requests,
    resend,
    set_policy,
    triage,
)


def replayed(
    world: World, mode: Mode = "full", plan: int | None = None, approved: bool = False, **given: Any
) -> tuple[Plan, Counts]:
    wanted = Wanted(topic="orders", who="ann", why="outage", **given)
    return run_incident(
        world.settings, world.connections, plan or wanted, mode, "ann", approved=approved
    )


def lost(world: World, *message_ids: str) -> None:
    """Deliveries that a run found UNSENT, and that still are."""
    world.control(
        "INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)"
        " VALUES ('reconcile', gen_random_uuid(), '-', '-', 'done', now())"
    )
    for message_id in message_ids:
        world.stub(message_id)
        world.log(message_id, "shipping")
        world.control(
            "INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count,"
            " evidence)"
            " SELECT max(run_id), 'shop_a', 'orders', %s, 'billing', 'UNSENT', 'never_sent', true, 0, '{}' FROM run",
            (message_id,),
        )


def test_a_dry_run_shows_the_plan_and_asks_for_nothing(world: World) -> None:
    lost(world, "a", "b")
    plan, counts = replayed(world, "dry_run", verdicts=("UNSENT",))
    assert (plan.total, plan.asked, plan.counts, plan.examples) == (
        2,
        0,
        {"billing: UNSENT: never_sent": 2},
        ("a", "b"),
    )
    assert (counts, requests(world)) == ({}, [])


def test_what_was_planned_is_asked_for_once_by_the_person_and_the_incident(world: World) -> None:
    lost(world, "a")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    replayed(world, plan=plan.incident_id)
    assert requests(world) == [("a", 1, ["billing"], f"ann (incident {plan.incident_id})", "open")]
    again, counts = replayed(world, plan=plan.incident_id)
    assert (counts, again.asked) == ({}, 1)
    assert resend(world)["published"] == 1


def test_what_is_done_since_the_last_run_is_left_out_of_the_plan(world: World) -> None:
    lost(world, "a", "b")
    world.log("b", "billing")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    assert (plan.total, plan.left_out) == (1, {"it is CONFIRMED now": 1})


def test_what_moved_on_after_the_plan_is_not_sent(world: World) -> None:
    lost(world, "a", "b")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    world.log("a", "billing")
    replayed(world, plan=plan.incident_id)
    assert resend(world)["published"] == 1
    assert {row[0]: row[4] for row in requests(world)} == {"a": "not_needed", "b": "sent"}


def test_what_died_after_the_plan_is_not_asked_for(world: World) -> None:
    lost(world, "a", "b")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    letter(world, "a", "poison")
    _, counts = replayed(world, plan=plan.incident_id)
    assert (counts["moved_on"], [row[0] for row in requests(world)]) == (1, ["b"])


def test_what_died_after_it_was_asked_for_waits_for_who_decides_its_letter(world: World) -> None:
    lost(world, "a")
    replayed(world, verdicts=("UNSENT",))
    letter(world, "a", "poison")
    assert (resend(world).get("published", 0), requests(world)[0][4]) == (0, "open")


def test_a_plan_that_joins_a_persons_request_leaves_it_theirs(world: World) -> None:
    lost(world, "a")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    world.control(
        "INSERT INTO resend_request (shard, topic, message_id, send_number, groups, reason, requested_by, route, run_id)"
        " VALUES ('shop_a', 'orders', 'a', 1, '{billing}', 'lost', 'case 7', 'topic', %s)",
        (plan.incident_id,),
    )
    assert replayed(world, plan=plan.incident_id)[1]["joined"] == 1
    assert requests(world)[0][3] == "case 7"


def test_only_the_window_is_replayed(world: World) -> None:
    lost(world, "old", "new")
    world.run(
        "producer_a",
        "UPDATE message_stub SET created_at = now() - interval '30 minutes' WHERE message_id = 'old'",
    )
    now = datetime.now(UTC)
    plan, _ = replayed(
        world,
        "dry_run",
        verdicts=("UNSENT",),
        start=now - timedelta(minutes=40),
        end=now - timedelta(minutes=20),
    )
    assert plan.examples == ("old",)


def test_a_canary_asks_for_the_first_few_and_the_rest_later(world: World) -> None:
    set_policy(world, canary=2)
    lost(world, "a", "b", "c")
    plan, _ = replayed(world, "canary", verdicts=("UNSENT",))
    assert (plan.total, plan.asked) == (3, 2)
    again, _ = replayed(world, "canary", plan=plan.incident_id)
    assert again.asked == 2, "a canary that is repeated is the same canary"
    assert replayed(world, "full", plan=plan.incident_id)[0].asked == 3


def test_more_than_the_blast_radius_needs_a_yes(world: World) -> None:
    set_policy(world, blast_floor=25, canary=1)
    lost(world, *[f"m{number:02}" for number in range(25)])
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    assert plan.too_wide
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        replayed(world, plan=plan.incident_id)
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        replayed(world, "canary", plan=plan.incident_id)
    assert requests(world) == []
    replayed(world, "canary", plan=plan.incident_id, approved=True)
    assert len(requests(world)) == 1
    replayed(world, plan=plan.incident_id, approved=True)
    assert len(requests(world)) == 25
    assert world.control("SELECT approved_by FROM incident") == [("ann",)]


def test_canaries_of_one_plan_after_another_take_a_second_person_beyond_the_blast_radius(
    world: World,
) -> None:
    set_policy(world, blast_floor=5, canary=2)
    world.settings = world.settings.model_copy(update={"people": PeopleSettings()})
    for number in range(9):
        dead(world, f"m{number}", "poison")
    for asked in (2, 4):
        plan, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
        replayed(world, "canary", plan=plan.incident_id, approved=True)
        assert (plan.too_wide, len(requests(world))) == (True, asked)
    third, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    modes: tuple[Mode, ...] = ("canary", "full")
    for mode in modes:
        with pytest.raises(DecisionRefused, match="when somebody else approves it"):
            replayed(world, mode, plan=third.incident_id, approved=True)
    assert len(requests(world)) == 4
    run_incident(
        world.settings, world.connections, third.incident_id, "canary", "bob", approved=True
    )
    assert len(requests(world)) == 6
    assert world.control(
        "SELECT approved_by FROM incident WHERE run_id = %s", (third.incident_id,)
    ) == [("bob",)]


def test_nobody_alone_approves_all_of_a_plan_that_a_cleared_run_made(world: World) -> None:
    """Airflow does not say who cleared it: it may be whoever approves it."""
    world.settings = world.settings.model_copy(update={"people": PeopleSettings()})
    lost(world, "m")
    maker = f"{plan_incident.CLEARED}ann"
    wanted = Wanted(topic="orders", who=maker, why="outage", verdicts=("UNSENT",), planned_in="r-1")
    plan, _ = run_incident(world.settings, world.connections, wanted, "dry_run", maker)

    def approved(mode: Mode, who: str) -> None:
        run_incident(world.settings, world.connections, plan.incident_id, mode, who, approved=True)

    for who in ("ann", "bob"):
        with pytest.raises(DecisionRefused, match="nobody knows by whom: all of it"):
            approved("full", who)
    assert requests(world) == []
    approved("canary", "ann")
    assert len(requests(world)) == 1, "a canary within the blast radius takes one person"


def test_dead_letters_of_a_cause_are_replayed_and_leave_their_case(world: World) -> None:
    dead(world, "m", "poison")
    dead(world, "n", "poison", fingerprint="1:other")
    triage(world)
    ((cause,),) = world.control("SELECT cause_id FROM cause WHERE fingerprint = '1:poison'")
    plan, counts = replayed(world, causes=(cause,))
    assert (plan.total, counts["replaying"], letters(world)["n"]["state"]) == (1, 1, "open")
    assert letters(world)["m"]["state"] == "replaying"
    assert sorted(row[4] for row in cases(world)) == ["closed", "open"]
    ((body,),) = world.control("SELECT body FROM alert WHERE dedup_key LIKE 'case/%%/closed%%'")
    assert "is being replayed" in body, "nothing of it is done yet"
    assert resend(world)["published"] == 1
    assert triage(world)["replayed"] == 1


def test_a_letter_that_was_decided_after_the_plan_is_left_alone(world: World) -> None:
    dead(world, "m", "poison")
    plan, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    world.control(
        "UPDATE dead_letter SET state = 'discarded', proof = '{\"decided_by\": \"bob\"}', decided_by = 'bob', closed_at = now()"
    )
    _, counts = replayed(world, plan=plan.incident_id)
    assert (counts, requests(world)) == ({"moved_on": 1}, [])


def test_a_letter_that_is_decided_otherwise_or_classified_anew_after_the_plan_is_left_alone(
    world: World,
) -> None:
    left, anew = dead(world, "m", "poison"), dead(world, "n", "poison", fingerprint="1:other")
    dead(world, "o", "poison", fingerprint="1:third")
    triage(world)
    plan, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    ((case_id,),) = world.control(
        "SELECT case_id FROM dead_letter WHERE dead_letter_id = %s", (left,)
    )
    decide(
        world.conn, world.settings, world.connections, case_id, "leave", "bob", "the shop knows", {}
    )
    classify(world, anew, "conflict")
    _, counts = replayed(world, plan=plan.incident_id)
    assert (counts["moved_on"], counts["replaying"], [row[0] for row in requests(world)]) == (
        2,
        1,
        ["o"],
    )
    assert (letters(world)["m"]["reason"], letters(world)["n"]["state"]) == ("left", "open")
    again, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    assert again.left_out["a person left it on purpose: answer its case"] == 1


def test_a_conflict_that_the_log_shows_is_not_called_done(world: World) -> None:
    dead(world, "m", "already_confirmed")
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now(), conflicts = 1",
    )
    plan, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    assert plan.total == 0 and "with another content" in next(iter(plan.left_out))


def test_verdicts_of_runs_before_the_window_are_not_looked_through(world: World) -> None:
    lost(world, "a")
    start = datetime.now(UTC) - timedelta(hours=1)
    assert replayed(world, "dry_run", verdicts=("UNSENT",), start=start)[0].total == 1
    world.control(
        "UPDATE run SET as_of = as_of - interval '2 hours', started_at = started_at - interval '2 hours'"
        " WHERE duty = 'reconcile'"
    )
    assert replayed(world, "dry_run", verdicts=("UNSENT",), start=start)[0].total == 0


def test_a_group_without_duplicates_and_a_used_budget_are_left_to_their_cases(world: World) -> None:
    dead(world, "used")
    world.run("producer_a", "UPDATE message_stub SET send_count = 4")
    plan, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",))
    assert (plan.total, plan.left_out) == (0, {"its sends are used up: its case allows more": 1})


def test_a_rate_spreads_the_requests_over_time(world: World) -> None:
    lost(world, "a", "b", "c")
    replayed(world, verdicts=("UNSENT",), rate=0.1)
    ((spread,),) = world.control(
        "SELECT extract(epoch FROM max(not_before) - min(not_before)) FROM resend_request"
    )
    assert 19 < spread < 21


def test_a_rate_counts_from_when_the_rest_was_asked_for_and_not_from_the_canary(
    world: World,
) -> None:
    set_policy(world, canary=1)
    lost(world, "a", "b", "c", "d")
    plan, _ = replayed(world, "canary", verdicts=("UNSENT",), rate=0.1)
    world.control(
        "UPDATE incident SET paced_until = paced_until - interval '1 hour', approved_at = approved_at - interval '1 hour'"
    )
    replayed(world, plan=plan.incident_id)
    ((spread, first),) = world.control(
        "SELECT extract(epoch FROM max(not_before) - min(not_before)), min(not_before) <= clock_timestamp() FROM resend_request"
        " WHERE message_id <> 'a'"
    )
    assert 19 < spread < 21 and first


def test_a_rate_holds_over_two_calls_in_a_row(world: World) -> None:
    set_policy(world, canary=2)
    lost(world, "a", "b", "c")
    plan, _ = replayed(world, "canary", verdicts=("UNSENT",), rate=0.1)
    replayed(world, plan=plan.incident_id)
    ((spread,),) = world.control(
        "SELECT extract(epoch FROM max(not_before) - min(not_before)) FROM resend_request"
    )
    assert 19 < spread < 21


def test_who_said_yes_is_kept_and_a_yes_to_all_of_it_is_the_one_that_counts(world: World) -> None:
    set_policy(world, canary=1)
    lost(world, "a", "b")
    plan, _ = replayed(world, "canary", verdicts=("UNSENT",))
    assert world.control("SELECT approved_by FROM incident") == [(None,)], "nobody was asked"
    run_incident(
        world.settings, world.connections, plan.incident_id, "canary", "bob", approved=True
    )
    run_incident(world.settings, world.connections, plan.incident_id, "full", "eve", approved=True)
    assert world.control("SELECT approved_by FROM incident") == [("eve",)]


def test_what_is_left_out_when_its_turn_comes_says_why_and_is_not_counted_as_asked_for(
    world: World,
) -> None:
    lost(world, "a", "b")
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    letter(world, "a", "poison")
    after, _ = replayed(world, plan=plan.incident_id)
    assert (after.asked, after.to_ask, after.left_out) == (
        1,
        0,
        {"it has a dead letter that the plan does not know": 1},
    )
    assert world.control(
        "SELECT message_id, asked_at IS NULL FROM incident_delivery ORDER BY 1"
    ) == [("a", True), ("b", False)]


def test_letters_of_one_delivery_that_were_read_apart_are_one_of_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_incident, "_BATCH", 1)
    dead(world, "m", "poison")
    letter(world, "m", "poison")
    dead(world, "n", "poison")
    plan, counts = replayed(world, verdicts=("DEAD_LETTERED",), limit=2)
    assert (plan.total, counts["replaying"], [row[0] for row in requests(world)]) == (
        2,
        3,
        ["m", "n"],
    )


def test_what_other_plans_asked_for_counts_to_the_blast_radius(world: World) -> None:
    set_policy(world, blast_floor=25)
    lost(world, *[f"n{number:02}" for number in range(20)])
    first, _ = replayed(world, verdicts=("UNSENT",), limit=20)
    lost(world, *[f"a{number:02}" for number in range(20)])
    later, _ = replayed(world, "dry_run", verdicts=("UNSENT",), limit=20)
    assert (first.too_wide, later.examples[0], later.too_wide) == (False, "a00", True)


def test_a_plan_is_measured_by_the_window_of_the_blast_radius(world: World) -> None:
    set_policy(world, blast_floor=25)
    window = world.settings.policy_for("orders", "billing").blast_window
    lost(world, *[f"n{number:02}" for number in range(20)])
    replayed(world, verdicts=("UNSENT",), limit=20)
    lost(world, *[f"a{number:02}" for number in range(20)])
    world.control("UPDATE incident_delivery SET asked_at = asked_at - %s", (window,))
    later, _ = replayed(world, "dry_run", verdicts=("UNSENT",), limit=20)
    assert (later.examples[0], later.too_wide) == ("a00", False), "20 of them, not 40"


@pytest.mark.parametrize(
    ("beside_the_edge", "too_wide"),
    [(timedelta(minutes=-1), False), (timedelta(minutes=1), True)],
)
def test_confirmations_before_the_window_do_not_hide_how_wide_a_plan_is(
    world: World, beside_the_edge: timedelta, too_wide: bool
) -> None:
    set_policy(world, blast_floor=2, canary=0)
    window = world.settings.policy_for("orders", "billing").blast_window
    lost(world, "a", "b")
    world.control("UPDATE run SET as_of = as_of - %s", (window + beside_the_edge,))
    world.control(
        "INSERT INTO verdict_count SELECT run_id, 'orders', 'billing', 'CONFIRMED', 1000, 0, 1000 FROM run"
    )
    plan, _ = replayed(world, "dry_run", verdicts=("UNSENT",))
    assert (plan.total, plan.too_wide) == (2, too_wide)


def test_plans_that_are_within_the_blast_radius_each_are_not_all_run_without_a_yes(
    world: World,
) -> None:
    set_policy(world, blast_floor=25)
    lost(world, *[f"n{number:02}" for number in range(20)])
    one, _ = replayed(world, "dry_run", verdicts=("UNSENT",), limit=20)
    lost(world, *[f"a{number:02}" for number in range(20)])
    two, _ = replayed(world, "dry_run", verdicts=("UNSENT",), limit=20)
    replayed(world, plan=one.incident_id)
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        replayed(world, plan=two.incident_id)


def test_what_cannot_be_planned_is_refused(world: World) -> None:
    for wrong, match in (
        ({}, "Neither verdicts nor causes"),
        ({"verdicts": ("CONFIRMED",)}, "not replayed by hand"),
        ({"causes": (4711, 1_000_000)}, "no cause 4711, 1000000"),
        ({"verdicts": ("LOST",), "group": "nobody"}, "does not take"),
        ({"verdicts": ("DEAD_LETTERED",), "case": 4711}, "no case 4711 of dead letters"),
        ({"verdicts": ("LOST",), "rate": 0}, "The rate is 0.*more than 0"),
        ({"verdicts": ("LOST",), "rate": float("nan")}, "The rate is nan.*more than 0"),
        ({"verdicts": ("LOST",), "limit": 0}, "The limit is 0.*more than 0"),
        (
            {
                "verdicts": ("LOST",),
                "start": datetime.now(UTC),
                "end": datetime.now(UTC) - timedelta(hours=1),
            },
            "holds nothing",
        ),
    ):
        with pytest.raises(DecisionRefused, match=match):
            replayed(world, "dry_run", **wrong)  # type: ignore[arg-type]


def test_the_command_line_plans_and_asks(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    lost(world, "a")
    arguments = [
        "replay",
        "--topic",
        "orders",
        "--verdict",
        "UNSENT",
        "--by",
        "ann",
        "--why",
        "outage",
    ]
    assert run_app(arguments) == 0
    assert (
        "1 deliveries of orders" in (told := capsys.readouterr().out)
        and "Nothing was asked for" in told
    )
    assert run_app([*arguments, "--full"]) == 0
    assert "Asked for (full): requests 1" in capsys.readouterr().out
    assert run_app([*arguments, "--full", "--canary"]) == 2


def test_the_command_line_shows_the_plan_before_it_asks_and_says_yes_to_a_shown_plan_only(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    lost(world, "a")
    arguments = [
        "replay",
        "--topic",
        "orders",
        "--verdict",
        "UNSENT",
        "--by",
        "ann",
        "--why",
        "outage",
    ]
    assert run_app([*arguments, "--full", "--approve", "4f1d09aa52c3"]) == 2
    assert "a plan that was shown" in capsys.readouterr().err and requests(world) == []
    assert run_app([*arguments, "--full"]) == 0
    shown = capsys.readouterr().out
    assert (
        "1 deliveries of orders, 0 asked for already" in shown
        and "Asked for (full): requests 1" in shown
    )


def test_dead_letters_are_planned_by_category_and_by_case(world: World) -> None:
    for message_id, category in (("a", "transient"), ("b", "poison"), ("c", "conflict")):
        dead(world, message_id, category)
    by_category, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",), category="transient")
    assert by_category.examples == ("a",)
    triage(world)
    ((case_id, cause),) = world.control(
        "SELECT case_id, cause_id FROM dead_letter WHERE message_id = 'b'"
    )
    by_case, _ = replayed(world, "dry_run", verdicts=("DEAD_LETTERED",), case=case_id)
    assert (by_case.examples, by_case.left_out) == (("b",), {})
    for wrong in (
        {"verdicts": ("UNSENT",), "category": "poison"},
        {"verdicts": ("UNSENT", "DEAD_LETTERED"), "case": case_id},
        {
            "verdicts": ("LOST",),
            "causes": (cause,),
            "case": case_id,
        },  # the lost ones are of no case
        {"verdicts": ("DEAD_LETTERED",), "category": "poisno"},
    ):
        with pytest.raises(DecisionRefused):
            replayed(world, "dry_run", **wrong)
