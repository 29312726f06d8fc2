"""Cases of ordered consumption: the watch opens them, a person's answer releases or discards, in order, from the kept content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop.cases.open import open_case
from backstop.cli.app import run_app
from backstop.client import DownstreamAway, Limits
from backstop.config.connections import Connections
from backstop.decisions import answer_parked
from backstop.decisions.list_cases import show
from backstop.decisions.propose import proposed
from backstop.decisions.questions import asked, choose, show_now
from backstop.model.errors import DecisionRefused, StoreUnavailable
from backstop.model.records import Counts
from backstop.reports.proposed_edit import ContentBefore, contents_before
from backstop.watch import parked as watched
from control_world import World, servers, world  # noqa: F401
from parked_world import DATABASE, GROUP, TOPIC, ParkedWorld

ALONE: dict[str, Any] = {"second_person": []}


@pytest.fixture
def shop(world: World) -> ParkedWorld:
    people = world.settings.people.model_copy(update={"second_person": ()})
    world.settings = world.settings.model_copy(update={"people": people})
    return ParkedWorld(world)


def test_a_parked_key_is_one_case_that_closes_when_the_key_is_free(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "b-1", "a-2", "a-3", failing="a-2")
    case, _ = show(shop.world.conn, case_id)
    assert (case.kind, case.topic, case.consumer_group, case.subject) == (
        "key_parked",
        TOPIC,
        GROUP,
        "a",
    )
    assert (case.evidence["head"], case.evidence["messages"], case.evidence["error"]) == (
        "a-2",
        2,
        "ValueError",
    )
    assert "{}" not in case.summary, "what a handler says may quote a message"
    assert shop.watch()["parked_keys"] == 1 and len(shop.cases()) == 1
    shop.failing = set()
    assert shop.answer(case_id, "release").counts == {"released": 1}
    shop.watch()
    assert shop.cases() == [("key_parked", "a", "decided")], "its messages are not done yet"
    shop.work(lambda: shop.parked() == {})
    shop.watch()
    assert shop.cases() == [("key_parked", "a", "closed")]
    assert [i for i in shop.effects() if i.startswith("a")] == ["a-1", "a-2", "a-3"]
    told = [title for (title,) in shop.world.control("SELECT title FROM alert ORDER BY alert_id")]
    assert told == [
        f"Case {case_id}: key_parked in orders",
        f"Case {case_id} closed: key_parked in orders",
    ]


def test_a_released_head_that_fails_opens_its_case_again(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.answer(case_id, "release")
    shop.work(lambda: shop.world.run(DATABASE, "SELECT 1 FROM parked_key WHERE times_parked = 2"))
    shop.watch()
    case, _ = show(shop.world.conn, case_id)
    assert (case.state, case.reopened, case.evidence["times_parked"]) == ("open", 1, 2)
    assert (shop.parked(), shop.effects()) == ({"a": ["a-1", "a-2"]}, [])


def test_a_case_that_was_left_stays_left_until_the_key_is_parked_again(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", failing="a-1")
    shop.answer(case_id, "leave")
    shop.publish("a-2")
    shop.work(lambda: shop.parked() == {"a": ["a-1", "a-2"]})
    shop.watch()
    assert shop.cases() == [("key_parked", "a", "decided")]


def test_an_edited_head_is_processed_with_its_new_content(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    with pytest.raises(DecisionRefused, match="whole new content"):
        shop.answer(case_id, "edit_head")
    shop.failing = set()
    shop.answer(case_id, "edit_head", content=b"mended")
    shop.work(lambda: shop.parked() == {})
    rows = shop.world.run(
        DATABASE, "SELECT message_id, content FROM ordered_effect ORDER BY number"
    )
    assert [(i, bytes(content)) for i, content in rows] == [("a-1", b"mended"), ("a-2", b"{}")]


@pytest.mark.parametrize(
    ("action", "given_up", "effects"),
    [("discard_head", ["a-1"], ["a-2", "a-3"]), ("discard_key", ["a-1", "a-2"], ["a-3"])],
)
def test_what_a_person_discards_is_voided_and_the_rest_goes_on_in_order(
    shop: ParkedWorld, action: str, given_up: list[str], effects: list[str]
) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.failing = set()
    shop.publish("a-3")  # after the watch has looked: nobody who answers has seen it
    shop.work(lambda: shop.parked() == {"a": ["a-1", "a-2", "a-3"]})
    assert shop.answer(case_id, action, why="a test").counts == {"discarded": len(given_up)}
    shop.work(lambda: shop.parked() == {} and "a-3" in shop.effects())
    kept = shop.world.control(
        "SELECT message_id, consumer_group, case_id, decided_by, why FROM delivery_decision ORDER BY 1"
    )
    assert kept == [(i, GROUP, case_id, "ann", "a test") for i in given_up]
    assert shop.effects() == effects
    assert shop.world.run(DATABASE, "SELECT * FROM parked_discard") == []
    shop.publish(*given_up)  # copies
    shop.work(lambda: shop.lag() == 0)
    assert shop.effects() == effects


@pytest.mark.parametrize(
    ("action", "group"), [("discard", GROUP), ("void", GROUP), ("void", "shipping")]
)
def test_another_case_neither_discards_nor_withdraws_what_a_parked_key_keeps(
    shop: ParkedWorld, action: str, group: str
) -> None:
    """The release of the key would process it all the same."""
    shop.world.stub("a-1", sends=1)
    of_key = shop.park("a-1", failing="a-1")
    with shop.world.conn, shop.world.conn.cursor() as cur:
        overdue = open_case(
            cur,
            kind="overdue",
            topic=TOPIC,
            group=group,
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", TOPIC, "a-1", group)],
            run_id=None,
        )
    with pytest.raises(DecisionRefused, match="ordering key is parked in billing"):
        shop.answer(overdue, action)
    assert shop.world.control("SELECT * FROM delivery_decision") == []
    assert shop.world.stub_now("a-1")["status"] == "pending"
    shop.failing = set()
    assert shop.answer(of_key, "discard_head").counts == {"discarded": 1}
    shop.work(lambda: shop.parked() == {})
    if group == GROUP:
        settled = "SELECT settled_at IS NOT NULL FROM case_member WHERE case_id = %s"
        assert shop.world.control(settled, (overdue,)) == [(True,)]
    else:
        assert shop.answer(overdue, action).counts["voided"] == 1
    assert shop.effects() == []


def test_an_answer_discards_of_a_key_what_its_form_showed_whatever_the_watch_found_since(
    shop: ParkedWorld,
) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shown = shown_now(shop)
    keep_another(shop, "a-3")
    assert shop.answer(case_id, "discard_key", shown=shown).counts == {"discarded": 2}
    shop.work(lambda: shop.parked() == {} and shop.effects() == ["a-3"])


def test_an_approval_discards_of_a_key_what_there_was_when_it_was_proposed(
    shop: ParkedWorld,
) -> None:
    two = shop.world.settings.people.model_copy(update={"second_person": ("discard_key",)})
    shop.world.settings = shop.world.settings.model_copy(update={"people": two})
    case_id = shop.park("a-1", "a-2", failing="a-1")
    assert shop.answer(case_id, "discard_key").counts == {"proposed": 1}
    keep_another(shop, "a-3")
    waits = proposed(shop.world.conn, case_id)
    assert waits is not None
    done = shop.answer(case_id, "approve", who="bob", proposal=waits.proposal_id)
    assert done.counts == {"discarded": 2}
    shop.work(lambda: shop.parked() == {} and shop.effects() == ["a-3"])


def test_a_proposed_content_of_a_head_is_shown_beside_the_present_one(shop: ParkedWorld) -> None:
    two = shop.world.settings.people.model_copy(update={"second_person": ("edit_head",)})
    shop.world.settings = shop.world.settings.model_copy(update={"people": two})
    case_id = shop.park("a-1", failing="a-1")
    assert shop.answer(case_id, "edit_head", content=b"mended").counts == {"proposed": 1}
    world, (case, _) = shop.world, show(shop.world.conn, case_id)
    waits = proposed(world.conn, case_id)
    assert waits is not None and waits.content == b"mended"
    before = contents_before(world.conn, world.settings, world.connections, case, waits)
    assert before == [ContentBefore(None, "a-1", b"{}")]


def test_an_answer_to_a_form_that_did_not_say_which_messages_it_showed_discards_no_key(
    shop: ParkedWorld,
) -> None:
    """Backstop wrote such forms before it kept the number of the last message with them."""
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shown = shown_now(shop)
    del shown["last_number"]
    with pytest.raises(DecisionRefused, match="which messages"):
        shop.answer(case_id, "discard_key", shown=shown)
    assert shop.parked() == {"a": ["a-1", "a-2"]}


def test_an_answer_to_a_head_that_is_not_the_one_of_its_form_is_refused(shop: ParkedWorld) -> None:
    """The discard was cut short after it had freed the first head; the second was parked behind the same open case."""
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shown = shown_now(shop)
    shop.world.control(
        'UPDATE case_file SET evidence = evidence || \'{"head": "a-2"}\' WHERE case_id = %s',
        (case_id,),
    )
    shop.world.run(DATABASE, "DELETE FROM parked_message WHERE message_id = 'a-1'")
    with pytest.raises(DecisionRefused, match="'a-2' now, not 'a-1'"):
        shop.answer(case_id, "discard_head", shown=shown)
    assert shop.parked() == {"a": ["a-2"]}


def shown_now(shop: ParkedWorld) -> dict[str, Any]:
    """What the form about the only open case shows."""
    (question,) = choose(shop.world.conn, 1)
    show_now(shop.world.conn, question)
    kept = asked(shop.world.conn, question.dag_run_id)
    assert kept is not None
    return dict(kept.shown)


def keep_another(shop: ParkedWorld, message_id: str) -> None:
    """One more message joins the parked key, and the watch finds it; from now on no message fails."""
    ((before,),) = shop.world.run(DATABASE, "SELECT messages FROM parked_key")
    shop.publish(message_id)
    shop.work(
        lambda: shop.world.run(DATABASE, "SELECT messages FROM parked_key") == [(before + 1,)]
    )
    shop.watch()
    shop.failing = set()


def test_a_release_that_makes_no_progress_can_be_cut_short_by_a_discard(shop: ParkedWorld) -> None:
    """No consumer lives: the released messages would wait for one."""
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.answer(case_id, "release")
    shop.watch()
    assert shop.cases() == [("key_parked", "a", "decided")]
    case, _ = show(shop.world.conn, case_id)
    assert case.actions == ("discard_head", "discard_key")
    for action in ("release", "edit_head", "leave"):
        with pytest.raises(DecisionRefused, match="already decided"):
            shop.answer(case_id, action, why="again")
    assert shop.answer(case_id, "discard_key", why="refunded").counts == {"discarded": 2}
    assert shop.answer(case_id, "discard_key", why="refunded").again
    shop.watch()
    assert (shop.cases(), shop.parked()) == ([("key_parked", "a", "closed")], {})
    case, _ = show(shop.world.conn, case_id)
    assert [entry["action"] for entry in case.evidence["decisions"]] == ["release", "discard_key"]
    kept = shop.world.control("SELECT message_id, why FROM delivery_decision ORDER BY 1")
    assert kept == [("a-1", "refunded"), ("a-2", "refunded")]


def test_an_answer_to_another_head_than_was_shown_is_refused(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.world.run(DATABASE, "DELETE FROM parked_message WHERE message_id = 'a-1'")
    with pytest.raises(DecisionRefused, match="'a-2' now, not 'a-1'"):
        shop.answer(case_id, "discard_head")
    case, _ = show(shop.world.conn, case_id)
    assert (case.state, case.decision, shop.parked()) == ("open", None, {"a": ["a-2"]})


@contextmanager
def dies(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> Iterator[None]:
    """The process ends where it calls this."""

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(where, name, die)
        with pytest.raises(Killed):
            yield


def test_an_answer_that_was_cut_short_after_the_release_goes_on_where_it_was(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.failing = set()
    with dies(monkeypatch, answer_parked, "keep_discards"):
        shop.answer(case_id, "discard_head", once="run-1")
    assert shop.world.control("SELECT * FROM delivery_decision") == []
    shop.work(lambda: shop.parked() == {})
    assert shop.answer(case_id, "discard_head", once="run-1").counts == {"answered_before": 1}
    assert shop.world.control("SELECT message_id FROM delivery_decision") == [("a-1",)]
    assert shop.answer(case_id, "discard_head", once="run-1").again
    assert shop.effects() == ["a-2"]


def test_an_edit_that_was_cut_short_is_in_the_log_of_decisions_by_its_beginning(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which the runbook of a restored consumer database finds it."""
    case_id = shop.park("a-1", failing="a-1")
    with dies(monkeypatch, answer_parked, "keep_discards"):
        shop.answer(case_id, "edit_head", content=b"mended")
    said = shop.world.control("SELECT action FROM decision_log WHERE action LIKE '%edit_head'")
    assert said == [("begin to edit_head",)]


@pytest.mark.parametrize("action", ["discard_head", "discard_key"])
def test_a_repeated_discard_that_was_cut_short_discards_nothing_that_was_parked_since(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """On the command line, where no form says which head the person saw."""
    case_id = shop.park("a-1", failing="a-1")
    shop.failing = {"a-2"}
    with dies(monkeypatch, answer_parked, "keep_discards"):
        shop.answer(case_id, action)
    shop.publish("a-2")
    shop.work(lambda: shop.parked() == {"a": ["a-2"]})
    shop.watch()
    with pytest.raises(DecisionRefused, match="'a-2' now, not 'a-1'"):
        shop.answer(case_id, action)
    assert shop.parked() == {"a": ["a-2"]}
    assert shop.world.control("SELECT message_id FROM delivery_decision") == [("a-1",)]
    shop.watch()
    case, _ = show(shop.world.conn, case_id)
    assert (case.state, case.evidence["head"]) == ("open", "a-2")


def test_what_an_answer_left_in_the_consumer_database_the_next_watch_moves(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = shop.park("a-1", failing="a-1")
    with dies(monkeypatch, answer_parked, "keep_discards"):
        shop.answer(case_id, "discard_key")
    with dies(monkeypatch, watched.PostgresParking, "forget_discards"):
        shop.watch()
    shop.watch()
    assert shop.world.control("SELECT message_id, case_id, decided_by FROM delivery_decision") == [
        ("a-1", case_id, "ann")
    ]
    assert shop.world.run(DATABASE, "SELECT * FROM parked_discard") == []


def test_a_discard_that_one_approver_began_and_another_finished_is_the_firsts_decision(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = shop.world.settings.people.model_copy(update={"second_person": ("discard_head",)})
    shop.world.settings = shop.world.settings.model_copy(update={"people": two})
    case_id = shop.park("a-1", failing="a-1")
    assert shop.answer(case_id, "discard_head").counts == {"proposed": 1}
    waits = proposed(shop.world.conn, case_id)
    assert waits is not None
    with dies(monkeypatch, answer_parked, "keep_discards"):
        shop.answer(case_id, "approve", who="bob", proposal=waits.proposal_id)
    done = shop.answer(case_id, "approve", who="carol", proposal=waits.proposal_id)
    assert done.counts == {"answered_before": 1}
    shop.watch()
    assert shop.world.control("SELECT message_id, decided_by FROM delivery_decision") == [
        ("a-1", "ann, approved by bob")
    ]
    assert shop.world.run(DATABASE, "SELECT * FROM parked_discard") == []


def test_a_discard_that_nobody_decided_changes_nothing_and_is_told_of(shop: ParkedWorld) -> None:
    """Whoever may write in the consumer's database can put any name there; the watch's login would carry it on."""
    case_id = shop.park("a-1", "a-2", "a-3", failing="a-1")
    assert shop.answer(case_id, "discard_head").counts == {"discarded": 1}
    forged = [
        (TOPIC, "a-2", "a", "olga", "refunded", None),
        (TOPIC, "a-3", "a", "olga", "because", case_id),
        ("payments", "p-1", "p", "olga", "refunded", case_id),
        # Her own decision, of what was never parked.
        (TOPIC, "b-1", "a", "ann", "because", case_id),
    ]
    shop.world.run(DATABASE, "DELETE FROM parked_message; DELETE FROM parked_key")
    for topic, message_id, key, by, why, case in forged:
        shop.world.run(
            DATABASE,
            "INSERT INTO parked_discard (consumer_group, topic, message_id, ordering_key, discarded_by, why, case_id)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (GROUP, topic, message_id, key, by, why, case),
        )
    decisions = "SELECT message_id, decided_by FROM delivery_decision"
    findings = (
        "SELECT title, over_at IS NULL FROM watch_finding WHERE rule = 'discard_without_decision'"
    )
    shop.watch()
    assert shop.world.control(decisions) == [("a-1", "ann")]
    assert shop.world.control(findings) == [(f"4 discards of {GROUP} are nobody's decision", True)]
    assert len(shop.world.run(DATABASE, "SELECT 1 FROM parked_discard")) == len(forged)
    # Nor by whoever answers the case next, nor behind as many as are read at once.
    shop.world.run(
        DATABASE,
        "INSERT INTO parked_discard SELECT consumer_group, topic, 'z-' || n, ordering_key, discarded_by, why, case_id, 'epoch'"
        " FROM parked_discard, generate_series(1, 1200) AS n WHERE message_id = 'p-1';"
        " INSERT INTO parked_discard VALUES (%s, %s, 'a-2', 'a', 'ann', 'because', %s)"
        " ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET discarded_by = 'ann', why = 'because', case_id = %s",
        (GROUP, TOPIC, case_id, case_id),
    )
    shop.watch()
    assert shop.world.control(decisions + " ORDER BY 1") == [("a-1", "ann"), ("a-2", "ann")]
    assert [is_open for _, is_open in shop.world.control(findings)] == [True], (
        "one finding while it is so"
    )
    shop.world.run(DATABASE, "DELETE FROM parked_discard")
    shop.watch()
    assert [is_open for _, is_open in shop.world.control(findings)] == [False]


def test_a_released_key_that_no_living_consumer_owns_is_found_until_one_comes(
    shop: ParkedWorld,
) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.failing = set()
    shop.answer(case_id, "release")
    shop.watch()
    rule = "rule = 'release_stands'"
    found = f"SELECT title, over_at IS NULL FROM watch_finding WHERE {rule}"
    assert shop.world.control(found) == [], "its consumer may be starting just now"
    shop.world.run(DATABASE, "UPDATE parked_key SET updated_at = updated_at - interval '1 hour'")
    shop.world.run(DATABASE, "UPDATE queue_owner SET expires_at = now() - interval '1 hour'")
    for _ in range(2):
        shop.watch()
        assert shop.world.control(found) == [
            (f"1 released keys of {GROUP} wait for a consumer", True)
        ]
    shop.work(lambda: shop.parked() == {})
    shop.watch()
    assert [is_open for _, is_open in shop.world.control(found)] == [False]


def test_a_queue_that_a_limit_stopped_is_a_critical_case_that_closes_when_it_goes_on(
    shop: ParkedWorld,
) -> None:
    ids = [f"a-{n}" for n in range(4)]
    with shop.worker(Limits(messages=2)) as worker:
        shop.failing = {"a-0"}
        shop.publish(*ids)
        shop.work(lambda: shop.world.run(DATABASE, "SELECT 1 FROM parking_full"), worker)
        shop.watch()
        assert ("parking_full", "queues", "open") in shop.cases()
        ((severity, evidence),) = shop.world.control(
            "SELECT severity, evidence FROM case_file WHERE kind = 'parking_full'"
        )
        assert (severity, evidence["queues"][0]["reached"]) == ("critical", "messages")
        assert shop.effects() == []
        shop.failing = set()
        ((case_id,),) = shop.world.control(
            "SELECT case_id FROM case_file WHERE kind = 'key_parked'"
        )
        shop.answer(case_id, "release")
        # The key and the stop go when the worker next finds nothing left of them.
        stops = (
            "SELECT ordering_key FROM parked_key UNION ALL SELECT ordering_key FROM parking_full"
        )
        shop.work(lambda: shop.effects() == ids and not shop.world.run(DATABASE, stops), worker)
    shop.watch()
    assert {state for _, _, state in shop.cases()} == {"closed"}


def test_a_downstream_that_is_away_is_one_case_and_parks_nothing(shop: ParkedWorld) -> None:
    shop.failing, shop.error = {"*"}, DownstreamAway("the bank at 10.0.0.1")
    shop.publish("a-1", "b-1", "c-1")
    with shop.worker() as worker:
        shop.work(lambda: shop.world.run(DATABASE, "SELECT 1 FROM downstream_away"), worker)
        assert shop.watch()["downstream_away"] == 1
        assert shop.cases() == [("downstream_away", "handlers", "open")]
        ((summary,),) = shop.world.control("SELECT summary FROM case_file")
        assert "10.0.0.1" not in summary
        shop.failing = set()
        away = "SELECT 1 FROM downstream_away"  # it says that it is back after the effects
        shop.work(lambda: len(shop.effects()) == 3 and not shop.world.run(DATABASE, away), worker)
    shop.watch()
    assert (shop.cases(), shop.parked()) == ([("downstream_away", "handlers", "closed")], {})


def test_the_end_of_a_case_does_not_say_that_consumers_go_on_which_were_only_stopped(
    shop: ParkedWorld,
) -> None:
    shop.failing, shop.error = {"*"}, DownstreamAway("the provider")
    shop.publish("a-1")
    with shop.worker() as worker:
        shop.work(lambda: shop.world.run(DATABASE, "SELECT 1 FROM downstream_away"), worker)
        shop.watch()
        worker._hand_over(Counts())
    shop.watch()
    assert shop.cases() == [("downstream_away", "handlers", "closed")]
    ((body,),) = shop.world.control("SELECT body FROM alert WHERE dedup_key LIKE 'case/%/closed'")
    assert "or their consumers were stopped" in body


def test_a_database_that_does_not_answer_closes_no_case_and_its_answer_can_be_given_again(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = shop.park("a-1", failing="a-1")
    away = {"backstop_consumer_billing": "postgresql://nobody@127.0.0.1:1/none"}
    with monkeypatch.context() as patch:
        patch.setattr(shop.world, "connections", Connections(away.get))
        with pytest.raises(StoreUnavailable):
            shop.watch()
        with pytest.raises(StoreUnavailable):
            shop.answer(case_id, "release")
    assert shop.cases() == [("key_parked", "a", "open")]
    assert shop.answer(case_id, "release").counts == {"released": 1}


def test_the_command_line_shows_what_is_parked_and_answers(
    shop: ParkedWorld, capsys: Any, tmp_path: Path
) -> None:
    written = json.loads(shop.world.config.read_text())
    shop.world.config.write_text(json.dumps(written | {"people": ALONE}))
    case_id = shop.park("a-1", "a-2", failing="a-1")
    capsys.readouterr()
    assert run_app(["cases", "parked", str(case_id), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["key"]["head"], [m["message_id"] for m in shown["messages"]]) == (
        "a-1",
        ["a-1", "a-2"],
    )
    assert run_app(["cases", "parked", str(case_id), "--content"]) == 0
    assert capsys.readouterr().out.strip() == "{}"
    assert shop.world.control("SELECT 1 FROM decision_log WHERE subject = %s", (f"case {case_id}",))
    content = tmp_path / "content"
    content.write_bytes(b"mended")
    shop.failing = set()
    assert (
        run_app(
            [
                "cases",
                "decide",
                str(case_id),
                "edit_head",
                "--content-file",
                str(content),
                "--why",
                "it was cut",
            ]
        )
        == 0
    )
    shop.work(lambda: shop.effects() == ["a-1", "a-2"])


def test_a_persons_login_answers_for_parked_keys_and_changes_nothing_else_there(
    shop: ParkedWorld,
) -> None:
    shop.park("a-1", "a-2", failing="a-1")
    dsn = shop.world.postgres.admin_dsn(DATABASE)
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            (Path(watched.__file__).parents[1] / "schema/consumer/privileges.sql").read_text()
        )
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SET ROLE backstop_person")
        discarded = answer_parked.parking.answer_discard(
            connection, GROUP, TOPIC, "a", "ann", why="w", case_id=1
        )
        assert discarded == ["a-1"]
        cursor.execute("SAVEPOINT s")
        for refused in (
            "DELETE FROM consumer_log",
            "UPDATE consumer_log SET attempts = 1",
            "UPDATE queue_owner SET fence = 9",
        ):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(refused)
            cursor.execute("ROLLBACK TO s")
