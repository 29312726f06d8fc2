"""A person's answers to cases of dead letters: read again before they are applied, applied whole or told what was left out."""

from __future__ import annotations

import threading
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest

from backstop.cli.app import run_app
from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.decisions.decide import Decided, decide
from backstop.decisions.list_cases import show
from backstop.decisions.note import add_note, notes_of
from backstop.model.errors import DecisionRefused, StoreUnavailable, Unavailable
from backstop.model.records import Counts
from backstop.runs.run import close_run, open_run
from backstop.triage.decide import answer as subject
from backstop.triage.decide.apply import decide_and_apply
from control_world import World, servers, world  # noqa: F401
from triage_world import (
    cases,
    classify,
    dead,
    letter,
    letters,
    look_now,
    requests,
    resend,
    set_policy,
    states,
    triage,
)


def asked(world: World) -> int:
    """Triage has run: the case it opened last."""
    triage(world)
    ((case_id,),) = world.control("SELECT max(case_id) FROM case_file")
    return int(case_id)


def answered(
    world: World, case_id: int, action: str, who: str = "ann", why: str = "because", **options: Any
) -> Decided:
    return decide(world.conn, world.settings, world.connections, case_id, action, who, why, options)


def case_state(world: World, case_id: int) -> str:
    return str(world.control("SELECT state FROM case_file WHERE case_id = %s", (case_id,))[0][0])


def test_a_replay_asks_for_the_next_send_as_the_person_and_ends_the_case_when_it_is_consumed(
    world: World,
) -> None:
    number = dead(world, "m", "poison")
    case_id = asked(world)
    done = answered(world, case_id, "replay")
    assert (done.counts["replaying"], done.left_out) == (1, ())
    assert requests(world) == [("m", 2, ["billing"], f"case {case_id}", "open")]
    assert (case_state(world, case_id), states(world)[number]) == ("decided", "replaying")
    assert resend(world)["published"] == 1
    triage(world)
    assert (states(world)[number], case_state(world, case_id)) == ("replayed", "decided")


def test_a_replay_that_dies_again_opens_the_case_again_with_what_was_decided(world: World) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    answered(world, case_id, "replay")
    resend(world)
    letter(world, "m", "poison")
    world.run(
        "consumer_billing", "UPDATE consumer_log SET updated_at = now() - interval '1 minute'"
    )
    triage(world)
    case, _ = show(world.conn, case_id)
    assert (case.state, case.reopened, case.decision) == ("open", 1, None)
    assert [entry["action"] for entry in case.evidence["decisions"]] == ["replay"]


def test_a_discard_is_kept_as_a_decision_that_no_later_run_undoes(world: World) -> None:
    number = dead(world, "m", "poison")
    case_id = asked(world)
    assert answered(world, case_id, "discard", why="a test message").counts["discarded"] == 1
    assert world.control("SELECT message_id, decided_by, why FROM delivery_decision") == [
        ("m", "ann", "a test message")
    ]
    assert (states(world)[number], case_state(world, case_id)) == ("discarded", "closed")
    assert letters(world)["m"]["proof"] == {
        "decided_by": "ann",
        "why": "a test message",
        "case_id": case_id,
    }
    letter(world, "m", "transient")
    assert triage(world) == {"discarded": 1}
    assert requests(world) == []


def test_a_dead_letter_whose_message_a_parked_key_keeps_is_not_discarded_beside_it(
    world: World,
) -> None:
    number = dead(world, "m", "poison")
    case_id = asked(world)
    world.run(
        "consumer_billing",
        """
        UPDATE consumer_log SET state = 'PARKED';
        INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)
            VALUES ('billing', 'orders', 'k', 0, 'PARKED', 1, 1000);
        INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, queue_id)
            VALUES ('billing', 'orders', 'm', 'k', 'x', 0)""",
    )
    with pytest.raises(DecisionRefused, match="ordering key is parked"):
        answered(world, case_id, "discard")
    assert world.control("SELECT * FROM delivery_decision") == []
    # As after an erasure: the log stays PARKED, and nothing would be released any more.
    world.run("consumer_billing", "DELETE FROM parked_message; DELETE FROM parked_key")
    assert answered(world, case_id, "discard").counts["discarded"] == 1
    assert states(world)[number] == "discarded"


def test_a_letter_without_an_id_can_be_discarded_and_never_replayed(world: World) -> None:
    number = letter(world, None, "poison", invalid="has no id")
    case_id = asked(world)
    with pytest.raises(DecisionRefused, match="carry no id"):
        answered(world, case_id, "replay")
    with pytest.raises(DecisionRefused, match="names its topic, message and group"):
        answered(world, case_id, "replay_sample", sample=1)
    assert case_state(world, case_id) == "open"
    answered(world, case_id, "discard")
    assert (states(world)[number], case_state(world, case_id)) == ("discarded", "closed")


def test_what_a_person_left_is_not_touched_by_a_machine_and_comes_up_when_the_cause_does(
    world: World,
) -> None:
    number = dead(world, "m", "poison")
    case_id = asked(world)
    assert answered(world, case_id, "leave").counts["left"] == 1
    look_now(world)
    assert triage(world) == {"waits": 1}
    assert (states(world)[number], case_state(world, case_id)) == ("open", "decided")
    assert letters(world)["m"]["decided_by"] == "ann"
    letter(world, "m", "transient")
    assert triage(world) == {"waits": 1}, (
        "another letter of a delivery that was left is left with it"
    )
    assert letters(world)["m"]["case_id"] == case_id
    dead(world, "n", "poison")
    triage(world)
    assert case_state(world, case_id) == "open"
    assert answered(world, case_id, "discard", who="bob").counts["discarded"] == 1, (
        "what was left stays left"
    )
    assert (letters(world)["m"]["state"], letters(world)["n"]["state"]) == ("open", "discarded")
    # Nothing of it waits for a decision: it is left, as it was before it came up, and its story has an end.
    case, _ = show(world.conn, case_id)
    assert (case.state, case.decision, case.decided_by) == ("decided", "leave", "ann")
    assert world.control(
        "SELECT count(*) FROM alert WHERE dedup_key = %s", (f"case/{case_id}/reopened/1/closed",)
    ) == [(1,)]
    assert answered(world, case_id, "discard", who="bob").counts["discarded"] == 2, (
        "it can still be taken up"
    )
    assert case_state(world, case_id) == "closed"


def test_what_a_person_left_stays_left_whatever_a_look_finds_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease, a parked key, a store that is away: none of them is a person's answer."""
    number = dead(world, "m", "poison")
    nameless = letter(world, None, "poison")
    case_id = asked(world)
    answered(world, case_id, "leave")
    for changed in (
        "updated_at = now()",
        "state = 'PARKED', updated_at = now() - interval '1 hour'",
        "state = 'FAILED'",
    ):
        world.run("consumer_billing", f"UPDATE consumer_log SET {changed}")
        look_now(world)
        triage(world)
        assert {states(world)[one] for one in (number, nameless)} == {"open"}
        assert case_state(world, case_id) == "decided", changed
    with monkeypatch.context() as away:
        away.setenv("AIRFLOW_CONN_BACKSTOP_PRODUCER_A", "postgresql://nobody@127.0.0.1:1/gone")
        connections, world.connections = world.connections, Connections()
        look_now(world)
        with pytest.raises(Unavailable):
            triage(world)
        world.connections = connections
    look_now(world)
    assert triage(world) == {"waits": 2}
    assert case_state(world, case_id) == "decided"
    assert {name: one["decided_by"] for name, one in letters(world).items()} == {
        "m": "ann",
        None: "ann",
    }
    assert answered(world, case_id, "replay", who="bob", letters=[number]).counts["replaying"] == 1
    world.control("UPDATE resend_request SET state = 'superseded'")
    assert triage(world)["escalated"] == 1, "whoever takes it up ends that it was left"


def test_what_the_broker_refused_for_good_is_not_replayed_by_a_machine_whatever_a_look_finds_meanwhile(
    world: World,
) -> None:
    dead(world, "m")
    assert triage(world)["replaying"] == 1
    world.control(
        "UPDATE resend_request SET state = 'refused', error = 'refused for good: too large'"
    )
    world.run("producer_a", "UPDATE message_stub SET send_count = 2, refusals = 1")
    world.run("consumer_billing", "UPDATE consumer_log SET updated_at = now()")
    assert triage(world) == {"open_again": 1, "waits": 1}
    world.run("consumer_billing", "UPDATE consumer_log SET updated_at = now() - interval '1 hour'")
    look_now(world)
    assert triage(world)["escalated"] == 1
    assert letters(world)["m"]["reason"] == "refused_for_good"
    ((case_id,),) = world.control("SELECT case_id FROM case_file")
    assert answered(world, case_id, "replay").counts["replaying"] == 1
    assert letters(world)["m"]["barred"] is None, "a person took it up"


def test_a_delivery_whose_log_met_another_content_is_never_taken_for_done(world: World) -> None:
    number = dead(world, "m", "already_confirmed")
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now(), conflicts = 1",
    )
    case_id = asked(world)
    with pytest.raises(DecisionRefused, match="with another content"):
        answered(world, case_id, "replay")
    assert states(world)[number] == "open"
    assert answered(world, case_id, "discard").counts["discarded"] == 1
    assert world.control("SELECT count(*) FROM delivery_decision") == [(0,)]


def test_the_state_is_read_again_and_what_does_not_fit_any_more_is_left_out(world: World) -> None:
    for name in ("done", "busy", "fits"):
        dead(world, name, "poison")
    case_id = asked(world)
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
    )
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMING', updated_at = now(),"
        " lease_expires_at = now() + interval '1 hour' WHERE message_id = 'busy'",
    )
    done = answered(world, case_id, "replay")
    assert (done.counts["replaying"], done.counts["already_done"], len(done.left_out)) == (1, 1, 1)
    assert done.left_out[0].startswith("busy: a consumer is working on it now")
    assert {name: one["state"] for name, one in letters(world).items()} == {
        "done": "discarded",
        "busy": "open",
        "fits": "replaying",
    }
    assert case_state(world, case_id) == "open"


def test_a_letter_that_is_decided_while_the_answer_is_applied_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    dead(world, "n", "poison")
    case_id = asked(world)
    real = subject._finish

    def late(*arguments: Any) -> Decided:
        world.control("UPDATE dead_letter SET decided_at = now() WHERE message_id = 'm'")
        return real(*arguments)

    monkeypatch.setattr(subject, "_finish", late)
    done = answered(world, case_id, "replay")
    assert done.left_out == ("m: it was decided otherwise a moment ago",)
    assert [row[0] for row in requests(world)] == ["n"]


def test_a_run_that_decides_the_same_again_leaves_the_answer_its_letters(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    real, theirs = subject._finish, connect(world.settings, world.connections)

    def meanwhile(*arguments: Any) -> Decided:
        look_now(world)
        run = open_run(theirs, "triage", "*", world.settings)
        assert decide_and_apply(world.settings, world.connections, theirs, run) == {"escalated": 1}
        close_run(theirs, run, "done", Counts())
        return real(*arguments)

    monkeypatch.setattr(subject, "_finish", meanwhile)
    done = answered(world, case_id, "replay")
    theirs.close()
    assert (done.left_out, done.counts["replaying"]) == ((), 1)


def test_a_sample_replays_a_few_and_leaves_the_case_open_for_the_rest(world: World) -> None:
    for name in ("a", "b", "c"):
        dead(world, name, "poison")
    case_id = asked(world)
    assert (
        answered(world, case_id, "replay_sample", sample=2, once="run 1").counts["replaying"] == 2
    )
    assert sorted(one["state"] for one in letters(world).values()) == [
        "open",
        "replaying",
        "replaying",
    ]
    assert case_state(world, case_id) == "open"
    assert answered(world, case_id, "replay_sample", sample=2, once="run 1").again, (
        "the same answer told twice"
    )
    assert len(requests(world)) == 2
    ((summary,),) = world.control("SELECT summary FROM case_file WHERE case_id = %s", (case_id,))
    assert summary.startswith("1 dead letter of orders")


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("replay", {"sample": 1}),
        ("replay", {"content": b"{}"}),
        ("discard", {"more": 2}),
        ("edit", {"sample": 1}),
    ],
)
def test_an_answer_with_an_option_of_another_is_refused_and_changes_nothing(
    world: World, action: str, options: dict[str, Any]
) -> None:
    for name in ("a", "b"):
        dead(world, name, "poison")
    case_id = asked(world)
    with pytest.raises(DecisionRefused, match=f"answer {action} .* does not take (a|the) "):
        answered(world, case_id, action, **options)
    assert (requests(world), set(states(world).values()), case_state(world, case_id)) == (
        [],
        {"open"},
        "open",
    )


def test_an_answer_may_name_letters_or_messages(world: World) -> None:
    first, second = dead(world, "a", "poison"), dead(world, "b", "poison")
    case_id = asked(world)
    answered(world, case_id, "replay", letters=[second])
    assert (states(world)[first], states(world)[second]) == ("open", "replaying")
    with pytest.raises(DecisionRefused, match="Not among the undecided dead letters"):
        answered(world, case_id, "replay", message_ids=["b"])


def test_the_same_answer_twice_is_told_as_again(world: World) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    answered(world, case_id, "replay")
    assert answered(world, case_id, "replay").again
    assert len(requests(world)) == 1
    with pytest.raises(DecisionRefused, match="already decided"):
        answered(world, case_id, "discard")


def test_of_two_people_at_once_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    real, both = subject._finish, threading.Barrier(2)

    def together(*arguments: Any) -> Decided:
        both.wait(120)
        return real(*arguments)

    monkeypatch.setattr(subject, "_finish", together)
    ended: dict[str, object] = {}

    def person(who: str, action: str) -> None:
        conn = connect(world.settings, world.connections)
        try:
            ended[who] = decide(
                conn, world.settings, world.connections, case_id, action, who, "because"
            )
        except DecisionRefused as error:
            ended[who] = error
        finally:
            conn.close()

    people = [
        threading.Thread(target=person, args=pair)
        for pair in (("ann", "replay"), ("bob", "discard"))
    ]
    for one in people:
        one.start()
    for one in people:
        one.join(240)
    assert sorted(type(end).__name__ for end in ended.values()) == ["Decided", "DecisionRefused"], (
        ended
    )
    assert letters(world)["m"]["state"] == (
        "replaying" if isinstance(ended["ann"], Decided) else "discarded"
    )


def test_what_the_broker_refused_is_no_part_of_what_a_replay_allows(world: World) -> None:
    dead(world, "m", "transient")
    world.run("producer_a", "UPDATE message_stub SET send_count = 5, refusals = 1")
    done = answered(world, asked(world), "replay")
    assert (done.counts["raised"], world.stub_now("m")["max_sends"]) == (1, 5)
    assert requests(world)[0][1] == 6


def test_a_replay_by_a_person_allows_one_more_send_where_they_are_used_up(world: World) -> None:
    dead(world, "m", "transient")
    world.run("producer_a", "UPDATE message_stub SET send_count = 4")
    case_id = asked(world)
    assert letters(world)["m"]["reason"] == "budget"
    done = answered(world, case_id, "replay")
    assert (done.counts["raised"], world.stub_now("m")["max_sends"]) == (1, 5)
    assert requests(world)[0][1] == 5
    world.run("producer_a", "UPDATE message_stub SET attempted_at = now() - interval '1 minute'")
    assert resend(world)["published"] == 1
    assert world.stub_now("m")["send_count"] == 5


def test_nothing_is_replayed_beyond_the_replay_horizon_nor_in_a_topic_that_is_observed(
    world: World,
) -> None:
    world.stub("old", sends=1, age="46 minutes")
    letter(world, "old", "poison")
    case_id = asked(world)
    with pytest.raises(DecisionRefused, match="older than the replay horizon"):
        answered(world, case_id, "replay")
    world.stub("r", topic="refunds", sends=1)
    letter(world, "r", "poison", topic="refunds")
    with pytest.raises(DecisionRefused, match="mode observe"):
        answered(world, asked(world), "replay")
    assert requests(world) == []


def test_a_shard_that_is_away_applies_nothing_and_leaves_the_case_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.config.connections import Connections

    dead(world, "m", "poison")
    case_id = asked(world)
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_PRODUCER_A", "postgresql://nobody@127.0.0.1:1/gone")
    world.connections = Connections()
    with pytest.raises(StoreUnavailable):
        answered(world, case_id, "replay")
    case, _ = show(world.conn, case_id)
    assert (case.state, case.decision, requests(world)) == ("open", None, [])


def test_an_answer_ends_the_loop_guard_only_for_the_send_it_asks_for(world: World) -> None:
    set_policy(world, max_replays=1, max_sends=9)
    dead(world, "m")
    letter(world, "m", state="replayed")
    case_id = asked(world)
    assert letters(world)["m"]["reason"] == "loop" or cases(world)[0][3] == "critical"
    assert answered(world, case_id, "replay").counts["replaying"] == 1


def test_people_write_notes_to_a_case(world: World) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    add_note(world.conn, case_id, "ann", "looks like the new release")
    add_note(world.conn, case_id, "bob", "mended")
    assert [(one.written_by, one.note) for one in notes_of(world.conn, case_id)] == [
        ("ann", "looks like the new release"),
        ("bob", "mended"),
    ]
    with pytest.raises(DecisionRefused, match="no case"):
        add_note(world.conn, 999, "ann", "x")


def test_a_conflict_is_never_taken_for_done_and_only_its_letter_is_discarded(world: World) -> None:
    world.stub("m", sends=1)
    world.log("m", "billing", moved="1 minute")
    number = letter(world, "m", "conflict")
    case_id = asked(world)
    assert (letters(world)["m"]["reason"], cases(world)[0][3]) == ("conflict", "critical")
    with pytest.raises(DecisionRefused, match="with another content"):
        answered(world, case_id, "replay")
    answered(world, case_id, "discard")
    assert (states(world)[number], case_state(world, case_id)) == ("discarded", "closed")
    assert world.control("SELECT * FROM delivery_decision") == []
    assert str(world.judge("m")["billing"].verdict) == "CONFIRMED"


def test_a_letter_that_breaks_the_contract_is_replayed_from_what_the_producer_promised(
    world: World,
) -> None:
    dead(world, "m", "poison", invalid="its headers are not JSON")
    case_id = asked(world)
    assert letters(world)["m"]["reason"] == "invalid"
    assert answered(world, case_id, "replay").counts["replaying"] == 1
    assert resend(world)["published"] == 1


def test_the_command_line_answers_edits_and_notes(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    dead(world, "n", "poison")
    case_id = str(asked(world))
    assert run_app(["cases", "note", case_id, "--text", "mended", "--by", "ann"]) == 0
    assert run_app(["cases", "show", case_id]) == 0
    shown = capsys.readouterr().out
    assert "ann noted: mended" in shown and "cases decide" in shown and "replay_sample" in shown
    edit = [
        "cases",
        "decide",
        case_id,
        "edit",
        "--message",
        "m",
        "--by",
        "ann",
        "--why",
        "x",
        "--content-file",
    ]
    assert run_app([*edit[:-1], "--content-text", "better"]) == 2, (
        "an argument is seen by others and kept by shells"
    )
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"better")))
    assert run_app([*edit, "-"]) == 0
    assert "content_version 2" in capsys.readouterr().out
    assert run_app(["cases", "decide", case_id, "discard", "--by", "ann", "--why", "the rest"]) == 0
    assert {name: one["state"] for name, one in letters(world).items()} == {
        "m": "replaying",
        "n": "discarded",
    }
    assert run_app(["run", "triage", "--dry-run"]) == 0


def shown_now(world: World) -> dict[str, Any]:
    """What a form that is written at this instant would keep."""
    ((at, letter),) = world.control(
        "SELECT clock_timestamp(), max(dead_letter_id) FROM dead_letter"
    )
    return {"at": at.isoformat(), "letter": letter}


@pytest.mark.parametrize("action", ["discard", "leave"])
def test_an_answer_is_not_about_letters_that_came_after_the_question(
    world: World, action: str
) -> None:
    dead(world, "seen", "poison")
    # Drained before the question, and in the case only after it.
    early = dead(world, "early", None)
    case_id = asked(world)
    world.control(
        "UPDATE dead_letter SET case_id = NULL, decision = NULL, decided_at = NULL WHERE dead_letter_id = %s",
        (early,),
    )
    shown = shown_now(world)
    classify(world, early, "poison")
    letter(world, None, "poison")
    dead(world, "late", "poison")
    look_now(world)
    triage(world)
    assert {one["case_id"] for one in letters(world).values()} == {case_id}
    done = answered(world, case_id, action, shown=shown)
    assert len(done.left_out) == 3 and all(
        one.endswith("it came after the question") for one in done.left_out
    )
    assert case_state(world, case_id) == "open"
    decided = {name: (one["state"], one["left_in_case"]) for name, one in letters(world).items()}
    assert decided.pop("seen") == (
        ("discarded", None) if action == "discard" else ("open", case_id)
    )
    assert set(decided.values()) == {("open", None)}
    with pytest.raises(DecisionRefused, match="came after the question"):
        answered(world, case_id, "discard", who="bob", shown=shown)
    assert answered(world, case_id, "discard", shown=shown, message_ids=["late"]).left_out == ()
    assert answered(world, case_id, action, shown=shown_now(world)).left_out == ()
    assert case_state(world, case_id) == ("closed" if action == "discard" else "decided")


def test_a_refused_answer_leaves_what_was_left(world: World) -> None:
    number = letter(world, None, "poison", invalid="has no id")
    case_id = asked(world)
    answered(world, case_id, "leave", who="bob", why="known")
    with pytest.raises(DecisionRefused, match="carry no id"):
        answered(world, case_id, "replay")
    case, _ = show(world.conn, case_id)
    assert (case.state, case.decision, case.decided_by, case.why) == (
        "decided",
        "leave",
        "bob",
        "known",
    )
    look_now(world)
    triage(world)
    assert (states(world)[number], case_state(world, case_id)) == ("open", "decided")


def test_leaving_some_letters_leaves_the_case_open_for_the_others(world: World) -> None:
    dead(world, "a", "poison")
    dead(world, "b", "poison")
    case_id = asked(world)
    answered(world, case_id, "leave", message_ids=["a"])
    assert case_state(world, case_id) == "open"
    answered(world, case_id, "leave", who="bob")
    assert case_state(world, case_id) == "decided"


def test_a_replay_that_dies_again_is_not_left_by_another_letter_of_its_delivery(
    world: World,
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    letter(world, "m", "unknown", fingerprint="1:other")
    other = asked(world)
    assert other != case_id
    answered(world, case_id, "leave")
    look_now(world)
    triage(world)
    answered(world, case_id, "replay")
    assert resend(world)["published"] == 1
    letter(world, "m", "poison")
    world.run(
        "consumer_billing", "UPDATE consumer_log SET updated_at = now() - interval '1 minute'"
    )
    look_now(world)
    triage(world)
    assert letters(world)["m"]["decision"] == "escalate"
    assert case_state(world, case_id) == "open"
