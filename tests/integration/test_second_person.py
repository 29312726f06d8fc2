"""What takes two people: one proposes, another approves, and nothing else is applied in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import pytest

from backstop.cases.intend import begun
from backstop.cases.open import open_case
from backstop.cli.app import run_app
from backstop.config.people import Action, PeopleSettings
from backstop.decisions.actions import ACTIONS
from backstop.decisions.decide import Decided, decide
from backstop.decisions.list_cases import show
from backstop.decisions.propose import lapse, proposed
from backstop.decisions.question_text import body_of, subject_of
from backstop.incidents.replay import Wanted, run_incident
from backstop.model.errors import DecisionRefused
from backstop.triage.decide.refresh_case_summary import refresh_case
from control_world import World, servers, world  # noqa: F401
from triage_world import dead, letters

LOG = "SELECT who, action FROM decision_log ORDER BY entry"


@pytest.fixture(autouse=True)
def two_people(world: World) -> None:
    """As the policy is where nobody writes anything."""
    world.settings = world.settings.model_copy(update={"people": PeopleSettings()})
    world.control("TRUNCATE decision_log, decision_checkpoint")


def found(world: World, kind: str, *message_ids: str) -> int:
    with world.conn, world.conn.cursor() as cur:
        return open_case(
            cur,
            kind=kind,
            topic="orders",
            group="billing",
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", one, "billing") for one in message_ids],
            run_id=None,
        )


def said(world: World, case_id: int, action: str, who: str, **options: Any) -> Decided:
    waits = proposed(world.conn, case_id)
    if action == "approve" and waits is not None and "shown" not in options:
        options.setdefault("proposal", waits.proposal_id)
    return decide(
        world.conn,
        world.settings,
        world.connections,
        case_id,
        action,
        who,
        f"{who} says so",
        options,
    )


def test_a_withdrawal_takes_two_and_the_one_who_proposed_it_is_not_the_second(world: World) -> None:
    world.stub("a")
    world.stub("b")
    case_id = found(world, "unknown", "a", "b")
    assert said(world, case_id, "void", "ann", message_ids=["a"]).counts == {"proposed": 1}
    assert world.stub_now("a")["status"] == "pending"
    assert show(world.conn, case_id)[0].actions == ("approve", "reject")
    for who, action in (
        ("ann", "approve"),
        (" Ann ", "approve"),
        ("bob", "discard"),
        ("bob", "void"),
        ("ann", "leave"),
    ):
        with pytest.raises(DecisionRefused):
            said(world, case_id, action, who)
    assert (
        world.stub_now("a")["status"] == "pending"
        and world.control("SELECT * FROM delivery_decision") == []
    )
    done = said(world, case_id, "approve", "bob")
    assert (
        done.counts["voided"] == 1
        and world.stub_now("a")["status"] == "voided"
        and world.stub_now("b")["status"] == "pending"
    )
    assert world.control("SELECT decided_by, why FROM withdrawal") == [
        ("ann, approved by bob", "ann says so")
    ]
    assert world.control(LOG) == [
        ("ann", "propose to void"),
        ("bob", "begin to approve"),
        ("bob", "begin to void"),
        ("bob", "void"),
    ]
    assert world.control("SELECT details ->> 'by' FROM decision_log WHERE action = 'void'") == [
        ("ann, approved by bob",)
    ]
    assert proposed(world.conn, case_id) is None and "void" in show(world.conn, case_id)[0].actions
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, case_id, "approve", "bob")


def test_a_proposal_that_was_rejected_is_not_applied_and_the_case_waits_for_another_answer(
    world: World,
) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    assert said(world, case_id, "reject", "bob").counts == {"rejected": 1}
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, case_id, "approve", "bob")
    assert world.stub_now("a")["status"] == "pending"
    assert world.control(LOG) == [("ann", "propose to void"), ("bob", "reject to void")]
    assert said(world, case_id, "discard", "bob").counts["discarded"] == 1


def test_what_came_after_the_proposer_looked_is_not_decided_by_the_one_who_approves(
    world: World,
) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    ((seen,),) = world.control("SELECT clock_timestamp()")
    said(
        world, case_id, "void", "ann", shown={"at": seen.isoformat(), "letter": 0, "proposal": None}
    )
    world.stub("later")
    found(world, "unknown", "later")
    said(world, case_id, "approve", "bob")
    assert (world.stub_now("a")["status"], world.stub_now("later")["status"]) == (
        "voided",
        "pending",
    )


def test_an_approval_is_of_the_proposal_that_was_shown(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    first = proposed(world.conn, case_id)
    assert first is not None
    said(world, case_id, "reject", "ann")
    said(world, case_id, "void", "eve")
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, case_id, "approve", "bob", shown={"proposal": first.proposal_id})
    assert world.stub_now("a")["status"] == "pending"


def test_a_proposal_of_a_case_that_was_over_meanwhile_is_none(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    world.control("UPDATE case_file SET state = 'closed', closed_at = now()")
    assert proposed(world.conn, case_id) is None
    # It came back: nobody approves what was proposed of the one before.
    world.control(
        "UPDATE case_file SET state = 'open', closed_at = NULL, reopened = 1, opened_at = clock_timestamp()"
    )
    assert proposed(world.conn, case_id) is None and "void" in show(world.conn, case_id)[0].actions
    said(world, case_id, "void", "eve")
    assert [how for (how,) in world.control("SELECT how FROM proposal ORDER BY proposal_id")] == [
        "stale",
        None,
    ]


def test_an_approval_that_was_cut_short_is_given_again_and_nobody_rejects_it_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")
    said(world, case_id, "raise", "ann", more=11)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("backstop.decisions.decide._finish", killed)
        with pytest.raises(KeyboardInterrupt):
            said(world, case_id, "approve", "bob")
    world.conn.rollback()
    assert world.stub_now("a")["max_sends"] == 15
    with pytest.raises(DecisionRefused, match="is being applied"):
        said(world, case_id, "reject", "ann")
    assert said(world, case_id, "approve", "bob").counts["raised"] == 1
    assert world.stub_now("a")["max_sends"] == 15
    assert [action for _, action in world.control(LOG)].count("raise") == 1
    assert world.control("SELECT how, ended_by FROM proposal") == [("approved", "bob")]


def test_an_approval_that_is_refused_lets_go_of_the_proposal(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    world.log("a", "billing", state="CONSUMING")
    with pytest.raises(DecisionRefused):
        said(world, case_id, "approve", "bob")
    assert said(world, case_id, "reject", "ann").counts == {"rejected": 1}


def test_what_joins_a_case_after_it_was_proposed_is_no_part_of_it(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    world.stub("later")
    found(world, "unknown", "later")
    said(world, case_id, "approve", "bob")
    assert (world.stub_now("a")["status"], world.stub_now("later")["status"]) == (
        "voided",
        "pending",
    )


def test_an_approval_names_what_it_approves(world: World, capfd: Any) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    with pytest.raises(DecisionRefused, match="must name the proposal"):
        decide(world.conn, world.settings, world.connections, case_id, "approve", "bob", "w", {})
    assert run_app(["cases", "show", str(case_id)]) == 0
    waits = proposed(world.conn, case_id)
    assert (
        waits is not None
        and f"proposal {waits.proposal_id}: ann proposes to void" in capfd.readouterr().out
    )
    for wrong, code in ((waits.proposal_id + 1, 6), (waits.proposal_id, 0)):
        arguments = [
            "cases",
            "decide",
            str(case_id),
            "approve",
            "--why",
            "w",
            "--by",
            "bob",
            "--proposal",
            str(wrong),
        ]
        assert run_app(arguments) == code, capfd.readouterr()
    assert world.stub_now("a")["status"] == "voided"


@pytest.mark.parametrize(
    ("second", "same"), [("7", True), ("ANN", True), (" ann_db ", False), ("bob", False)]
)
def test_the_id_and_the_name_of_one_decider_are_one_person(second: str, same: bool) -> None:
    people = PeopleSettings.model_validate({"deciders": [{"id": "7", "name": "ann"}, "bob"]})
    assert people.is_same("ann", second) is same
    assert people.is_same("jos\u00e9", "Jose\u0301")


def test_a_few_more_sends_one_person_allows_alone(world: World) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")
    assert said(world, case_id, "raise", "ann", more=10).counts["raised"] == 1


def test_what_was_allowed_of_a_message_before_adds_up(world: World) -> None:
    """Four are the policy's; ten more were allowed alone, and are used up."""
    world.stub("a", sends=14, status="exhausted")
    world.stub("b", sends=4, status="exhausted", shard="shop_b")
    world.stub("c", sends=5, refused=1, status="exhausted")
    case_id = found(world, "exhausted", "a", "b", "c")
    assert (
        said(world, case_id, "raise", "ann", more=10, message_ids=["b", "c"]).counts["raised"] == 2
    )
    assert world.stub_now("c")["max_sends"] == 14, "four of its five sends count"
    assert said(world, case_id, "raise", "ann", more=1, message_ids=["a"]).counts == {"proposed": 1}
    assert (world.stub_now("a")["status"], world.stub_now("a")["max_sends"]) == ("exhausted", None)
    assert said(world, case_id, "approve", "bob").counts["raised"] == 1
    assert world.stub_now("a")["max_sends"] == 15


def test_a_new_content_waits_with_its_hash_and_is_kept_nowhere_after(
    world: World, capfdbinary: Any
) -> None:
    dead(world, "m", "poison")
    with world.conn, world.conn.cursor() as cur:
        case_id = open_case(
            cur,
            kind="dead_letters",
            topic="orders",
            group="billing",
            subject="f",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", "m", "billing")],
            run_id=None,
        )
        cur.execute("UPDATE dead_letter SET case_id = %s", (case_id,))
        refresh_case(cur, case_id)
    case, members = show(world.conn, case_id)
    assert subject_of(case) == f"Case {case_id}: dead_letters in orders for billing (warning)"
    body = body_of(case, members, page=None)
    assert body.count("`m`") == 1 and "dead letter 1" in body, "an example is shown once"
    assert "read the content as it is, for example: `backstop dead-letters show 1`" in body
    said(world, case_id, "edit", "ann", message_ids=["m"], content=b'{"amount": 7}')
    assert bytes(world.run("producer_a", "SELECT content FROM message_stub")[0][0]) == b"content"
    assert run_app(["cases", "show", str(case_id)]) == 0
    shown = capfdbinary.readouterr().out.decode()
    assert "ann proposes to edit" in shown and "SHA-256" in shown and "amount" not in shown
    assert run_app(["cases", "proposed", str(case_id)]) == 0
    assert capfdbinary.readouterr().out == b'{"amount": 7}'
    assert run_app(["cases", "proposed", str(case_id), "--diff"]) == 0
    beside = capfdbinary.readouterr().out.decode().splitlines()
    old = bytes(world.control("SELECT content FROM dead_letter")[0][0]).decode()
    assert f"-{old}" in beside and '+{"amount": 7}' in beside
    said(world, case_id, "approve", "bob")
    assert (
        bytes(world.run("producer_a", "SELECT content FROM message_stub")[0][0]) == b'{"amount": 7}'
    )
    assert letters(world)["m"]["state"] == "replaying"
    written = world.control(
        "SELECT written_by FROM message_version ORDER BY content_version DESC LIMIT 1"
    )
    assert written == [("ann, approved by bob",)]
    assert world.control("SELECT content, how FROM proposal") == [(None, "approved")]


def test_all_of_an_incident_goes_out_when_somebody_else_says_yes(world: World) -> None:
    for name in ("m-1", "m-2"):
        dead(world, name, "poison")
    wanted = Wanted(topic="orders", who="ann", why="mended", verdicts=("DEAD_LETTERED",))
    plan, _ = run_incident(world.settings, world.connections, wanted, "dry_run", "ann")
    for who, approved in (("ann", False), ("ann", True), ("ANN ", True), ("bob", False)):
        with pytest.raises(DecisionRefused, match="when somebody else approves it"):
            run_incident(
                world.settings, world.connections, plan.incident_id, "full", who, approved=approved
            )
    assert world.control("SELECT * FROM resend_request") == []
    _, counts = run_incident(
        world.settings, world.connections, plan.incident_id, "full", "bob", approved=True
    )
    assert counts["requests"] == 2


def test_a_yes_by_command_line_is_to_the_plan_that_was_shown(world: World, capfd: Any) -> None:
    dead(world, "m-1", "poison")
    world.stub("added", sends=1)
    wanted = Wanted(topic="orders", who="ann", why="mended", verdicts=("DEAD_LETTERED",))
    plan, _ = run_incident(world.settings, world.connections, wanted, "dry_run", "ann")
    yes = ["replay", "--plan", str(plan.incident_id), "--full", "--by", "bob", "--approve"]
    world.control("""
        INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason,
            letters)
        SELECT run_id, 2, 'shop_a', 'orders', 'added', 'billing', 2, 'topic', 'r', '{}' FROM incident""")
    assert run_app([*yes, plan.digest]) == 6
    assert (
        "is not what plan" in capfd.readouterr().err
        and world.control("SELECT * FROM resend_request") == []
    )
    world.control("DELETE FROM incident_delivery WHERE message_id = 'added'")
    assert run_app([*yes, plan.digest]) == 0, capfd.readouterr()
    assert world.control("SELECT message_id, requested_by FROM resend_request") == [
        ("m-1", f"bob (incident {plan.incident_id})")
    ]


def test_a_proposal_that_nobody_answers_lapses_and_its_content_goes(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    with world.conn, world.conn.cursor() as cur:
        cur.execute("ALTER TABLE proposal DISABLE TRIGGER stays_as_proposed")
        cur.execute("UPDATE proposal SET content = 'a new content'::bytea")
        cur.execute("ALTER TABLE proposal ENABLE TRIGGER stays_as_proposed")
    assert lapse(world.conn, timedelta(days=3)) == 0
    world.control(
        "UPDATE proposal SET proposed_at = proposed_at - interval '3 days', ended_by = 'bob'"
    )
    assert lapse(world.conn, timedelta(days=3)) == 0, "somebody is applying it"
    grow_older(world, "approving_since", "1 hour")
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, case_id, "approve", "bob", proposal=1)
    assert world.control("SELECT how, content, ended_at IS NOT NULL FROM proposal") == [
        ("lapsed", None, True)
    ]
    assert (
        said(world, case_id, "void", "bob").counts == {"proposed": 1}
        and world.stub_now("a")["status"] == "pending"
    )


def grow_older(world: World, column: str, by: str) -> None:
    for statement in ("DISABLE TRIGGER stays_as_proposed", "", "ENABLE TRIGGER stays_as_proposed"):
        world.control(
            f"ALTER TABLE proposal {statement}"
            if statement
            else f"UPDATE proposal SET {column} = {column} - interval '{by}' WHERE ended_at IS NULL"
        )


def test_an_approver_who_was_killed_holds_a_proposal_for_an_hour(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann")
    world.control("UPDATE proposal SET ended_by = 'bob'")
    with pytest.raises(DecisionRefused, match="is being applied"):
        said(world, case_id, "reject", "ann")
    grow_older(world, "approving_since", "1 hour")
    assert said(world, case_id, "reject", "ann").counts == {"rejected": 1}
    assert world.stub_now("a")["status"] == "pending"


def test_what_reached_a_producer_lapses_with_its_approver_and_is_not_told_as_applied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")
    said(world, case_id, "raise", "ann", more=11)
    number = proposed(world.conn, case_id)
    assert number is not None

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("backstop.decisions.decide._finish", killed)
        with pytest.raises(KeyboardInterrupt):
            said(world, case_id, "approve", "bob")
    grow_older(world, "approving_since", "1 hour")
    with pytest.raises(DecisionRefused, match="is being applied"):
        said(world, case_id, "reject", "ann")
    grow_older(world, "proposed_at", "3 days")
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, case_id, "approve", "bob", proposal=number.proposal_id)
    assert world.control("SELECT how, ended_by FROM proposal") == [("lapsed", "bob")]
    assert said(world, case_id, "raise", "bob", more=1).counts["raised"] == 1


def test_an_approval_counts_for_its_own_case_alone(world: World) -> None:
    world.stub("a")
    world.stub("b", topic="refunds")
    case_id = found(world, "unknown", "a")
    with world.conn, world.conn.cursor() as cur:
        other = open_case(
            cur,
            kind="unknown",
            topic="refunds",
            group="billing",
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "refunds", "b", "billing")],
            run_id=None,
        )
    said(world, case_id, "void", "ann")
    waits = proposed(world.conn, case_id)
    assert waits is not None
    said(world, case_id, "approve", "bob")
    with pytest.raises(DecisionRefused, match="not waiting any more"):
        said(world, other, "approve", "bob", proposal=waits.proposal_id)
    assert said(world, case_id, "approve", "bob", proposal=waits.proposal_id).again
    assert world.stub_now("b")["status"] == "pending"


def test_an_answer_that_was_proposed_before_its_task_died_is_told_as_proposed(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    said(world, case_id, "void", "ann", once="case-1-1 at")
    assert begun(world.conn, case_id, "case-1-1 at", "ann"), "so that it is not called stale"
    again = said(world, case_id, "void", "ann", once="case-1-1 at")
    assert (again.action, again.again) == ("propose to void", True)
    said(world, case_id, "reject", "bob")
    assert said(world, case_id, "void", "ann", once="case-1-1 at").again, (
        "it was answered, and is not proposed anew"
    )
    assert world.control("SELECT how FROM proposal") == [("rejected",)]


def test_rules_can_name_every_action_that_a_case_offers() -> None:
    assert set(ACTIONS) - {"approve", "reject"} == set(get_args(Action))


def test_every_message_that_is_proposed_is_shown_to_the_second_person(world: World) -> None:
    ids = [f"m-{place:03}" for place in range(60)]
    for one in ids:
        world.stub(one)
    case_id = found(world, "unknown", *ids)
    said(world, case_id, "void", "ann", message_ids=ids)
    case, members = show(world.conn, case_id)
    body = body_of(case, members, page=None, proposal=proposed(world.conn, case_id))
    assert all(f"  - `{one}`" in body for one in ids) and "ann says so" in body
