"""Triage over real rows: what is false is discarded with proof, what is safe is replayed, everything else is a case."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from backstop.cases.close import close_settled
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.requests.ask import Ask, ask
from backstop.runs.run import close_run, open_run
from backstop.runs.scope import name_of
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.triage.causes.classify import classify_dead_letters
from backstop.triage.causes.promote_causes import promote_causes
from backstop.triage.decide import apply
from control_world import World, servers, world, written_settings  # noqa: F401
from maria_world import MariaDatabase, maria_consumer, maria_server  # noqa: F401
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


def published(world: World, group: str = "billing") -> list[tuple[str, str | None]]:
    """(message id, the groups it names) of every copy in the broker."""
    from datetime import timedelta

    from backstop.brokers.open import open_broker

    with open_broker(world.settings, world.connections, "embedded") as broker:
        subscription = broker.subscribe(group, ["orders"], "test")
        found = subscription.fetch(100, timedelta(milliseconds=20))
        subscription.acknowledge(found)
        subscription.close()
    return [(one.message.message_id, one.message.headers.get("backstop-groups")) for one in found]


def test_a_false_dead_letter_is_discarded_with_the_log_row_that_proves_it(world: World) -> None:
    world.stub("m", sends=1)
    world.log("m", "billing")
    letter(world, "m", "duplicate_suppressed")
    assert triage(world) == {"discarded": 1}
    one = letters(world)["m"]
    assert (one["state"], one["decided_by"], one["reason"]) == ("discarded", "triage", "consumed")
    assert one["proof"]["log"] == "CONSUMED" and one["proof"]["consumed_at"]
    assert requests(world) == []


def test_a_letter_is_discarded_by_the_log_of_its_own_group_alone(world: World) -> None:
    world.stub("m", sends=1)
    world.log("m", "shipping")
    world.log("m", "billing", state="FAILED", moved="1 minute")
    letter(world, "m", "duplicate_suppressed")
    assert triage(world)["replaying"] == 1


def test_a_transient_letter_is_replayed_to_its_group_and_ends_when_its_copy_is_out(
    world: World,
) -> None:
    number = dead(world, "m")
    assert triage(world) == {"requests": 1, "replaying": 1}
    assert requests(world) == [("m", 2, ["billing"], "triage", "open")]
    assert (states(world)[number], letters(world)["m"]["send_number"]) == ("replaying", 2)
    assert resend(world)["published"] == 1
    assert published(world) == [("m", '["billing"]')]
    assert triage(world) == {"replayed": 1}
    assert states(world)[number] == "replayed"
    assert triage(world) == {}


def test_a_machine_never_replays_poison(world: World) -> None:
    for category in ("poison", "conflict", "unknown", "expired", "already_confirmed"):
        dead(world, category, category)
    assert triage(world)["escalated"] == 5
    assert requests(world) == []
    look_now(world)
    triage(world)
    assert requests(world) == []


def test_one_case_holds_all_letters_of_a_cause_topic_and_group(world: World) -> None:
    for number in range(4):
        dead(world, f"p{number}", "poison")
    dead(world, "other", "poison", group="shipping")
    dead(world, "else", "poison", fingerprint="1:else")
    assert triage(world)["escalated"] == 6
    assert sorted(cases(world)) == [
        ("orders", "billing", "1:else", "warning", "open"),
        ("orders", "billing", "1:poison", "warning", "open"),
        ("orders", "shipping", "1:poison", "warning", "open"),
    ]
    ((summary, evidence),) = world.control(
        "SELECT summary, evidence FROM case_file WHERE subject = '1:poison' AND consumer_group = 'billing'"
    )
    assert (
        summary
        == "4 dead letters of orders to billing have a content that the handler cannot process"
    )
    assert (evidence["letters"], evidence["reasons"], evidence["template"]) == (
        4,
        {"poison": 4},
        "ValueError: <*>",
    )
    assert [one["id"] for one in evidence["examples"]] == ["p0", "p1", "p2", "p3"]
    assert world.control("SELECT count(*) FROM alert") == [(3,)]
    look_now(world)
    triage(world)
    assert world.control("SELECT count(*) FROM alert") == [(3,)], "found again: no second alert"


def test_a_letter_that_names_no_delivery_is_a_case_of_its_own_kind(world: World) -> None:
    letter(world, None, "poison", invalid="has no id")
    letter(world, "stray", "transient", topic="nowhere")
    letter(world, "any", "transient", group=None)
    letter(world, "unpromised", "transient")
    assert triage(world)["escalated"] == 4
    assert sorted((row[0], row[1]) for row in cases(world)) == [
        ("nowhere", "billing"),
        ("orders", "*"),
        ("orders", "billing"),
        ("orders", "billing"),
    ]
    assert {one["reason"] for one in letters(world).values()} == {
        "no_id",
        "unknown_topic",
        "unknown_group",
        "no_stub",
    }


def test_a_loop_stops_at_max_replays_and_becomes_a_critical_case(world: World) -> None:
    set_policy(world, max_sends=9, max_replays=2)
    dead(world, "m")
    for _ in range(2):
        look_now(world)
        assert triage(world)["replaying"] == 1
        assert resend(world)["published"] == 1
        assert len(published(world)) == 1
        assert triage(world) == {"replayed": 1}
        letter(world, "m")  # it died again
        world.run(
            "consumer_billing", "UPDATE consumer_log SET updated_at = now() - interval '1 minute'"
        )
        world.run(
            "producer_a", "UPDATE message_stub SET attempted_at = now() - interval '1 minute'"
        )
    assert triage(world)["escalated"] == 1
    assert letters(world)["m"]["reason"] == "loop"
    assert cases(world)[0][3:] == ("critical", "open")
    assert [row[1] for row in requests(world)] == [2, 3]


def test_several_letters_of_one_delivery_are_one_replay(world: World) -> None:
    dead(world, "m")
    letter(world, "m")
    assert triage(world) == {"requests": 1, "replaying": 2}
    letter(world, "m")  # a third one comes while the request waits
    assert triage(world) == {"joined": 1, "replaying": 1}
    assert resend(world)["published"] == 1
    assert triage(world) == {"replayed": 3}


def test_a_request_waits_while_another_letter_of_its_delivery_waits_for_a_person(
    world: World,
) -> None:
    dead(world, "m")
    triage(world)
    letter(world, "m", "poison")
    triage(world)
    assert resend(world).get("published", 0) == 0
    assert [row[4] for row in requests(world)] == ["open"]


def test_what_the_broker_refused_for_good_is_not_replayed_by_another_letter_of_its_delivery(
    world: World,
) -> None:
    dead(world, "m")
    assert triage(world)["replaying"] == 1
    world.control(
        "UPDATE resend_request SET state = 'refused', error = 'refused for good: too large'"
    )
    world.run("producer_a", "UPDATE message_stub SET send_count = 2, refusals = 1")
    letter(world, "m", "transient")
    assert triage(world)["escalated"] == 2
    assert [row for row in requests(world) if row[4] == "open"] == []


def test_a_replay_that_the_broker_refused_waits_before_its_next_number(world: World) -> None:
    """Asked for at once, a broker that is full for half an hour would use up what may be refused of the message."""
    set_policy(world, backoff_base="1m", backoff_cap="2m", backoff_jitter=0)
    number = dead(world, "m")
    assert triage(world)["replaying"] == 1
    world.control("UPDATE resend_request SET state = 'refused', error = 'OOM', updated_at = now()")
    world.run("producer_a", "UPDATE message_stub SET send_count = 2, refusals = 1")
    assert triage(world) == {"open_again": 1}
    assert [row[1] for row in requests(world)] == [2]
    [(waits,)] = world.control(
        "SELECT l.look_at - r.updated_at FROM dead_letter l, resend_request r WHERE dead_letter_id = %s",
        (number,),
    )
    assert waits == world.settings.policy_for("orders").backoff(2), "as after any second send"
    look_now(world)
    assert triage(world)["replaying"] == 1
    assert [row[1] for row in requests(world)] == [2, 3]


def test_a_replay_for_one_group_does_not_touch_the_letter_of_another(world: World) -> None:
    dead(world, "m")
    world.log("m", "shipping", state="FAILED", moved="1 minute")
    poison = letter(world, "m", "poison", "shipping")
    triage(world)
    resend(world)
    assert published(world) == [("m", '["billing"]')]
    triage(world)
    assert states(world)[poison] == "open"
    assert letters(world)["m"]["decision"] == "escalate"


def test_a_group_that_joined_a_request_of_triage_is_not_replayed_when_its_letter_is_poison(
    world: World,
) -> None:
    dead(world, "m")
    triage(world)
    with world.conn, world.conn.cursor() as cur:
        ask(cur, [Ask("shop_a", "orders", "m", 2, ("shipping",), "lost", "reconcile")], None)
    letter(world, "m", "poison", "shipping")
    triage(world)
    assert resend(world)["published"] == 1
    assert published(world) == [("m", '["billing"]')]


def test_a_request_that_ends_unpublished_opens_the_letter_again_and_the_log_discards_it(
    world: World,
) -> None:
    number = dead(world, "m")
    triage(world)
    world.run("consumer_billing", "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now()")
    assert resend(world).get("published", 0) == 0
    assert triage(world) == {"open_again": 1, "discarded": 1}
    assert states(world)[number] == "discarded"


def test_a_letter_waits_while_a_lease_of_its_message_lives(world: World) -> None:
    world.stub("m", sends=1)
    world.log("m", "billing", state="CONSUMING")
    letter(world, "m")
    assert triage(world) == {"waits": 1}
    assert letters(world)["m"]["look_at"] is not None
    assert triage(world) == {}, "it is not looked at before"


def test_a_letter_that_was_not_classified_waits_undecided(world: World) -> None:
    dead(world, "m", None)
    assert triage(world) == {"waits": 1}
    classify(world, next(iter(states(world))), "transient")
    look_now(world)
    assert triage(world)["replaying"] == 1


def test_a_letter_whose_category_changes_is_decided_anew_at_once_and_leaves_its_case(
    world: World,
) -> None:
    number = dead(world, "m", "unknown")
    triage(world)
    assert cases(world)[0][4] == "open"
    classify(world, number, "transient")
    assert triage(world) == {"requests": 1, "replaying": 1, "cases_closed": 1}
    assert cases(world)[0][4] == "closed"
    assert letters(world)["m"]["case_id"] is None


def test_work_that_was_done_while_a_person_was_asked_discards_the_letter_and_closes_the_case(
    world: World,
) -> None:
    dead(world, "m", "poison")
    triage(world)
    world.run("consumer_billing", "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now()")
    look_now(world)
    assert triage(world) == {"discarded": 1, "cases_closed": 1}
    keys = [key for (key,) in world.control("SELECT dedup_key FROM alert ORDER BY alert_id")]
    assert keys[-1].endswith("/closed")


def test_a_case_of_letters_without_ids_is_not_over_before_they_are(world: World) -> None:
    letter(world, None, "poison", invalid="has no id")
    triage(world)
    with world.conn, world.conn.cursor() as cur:
        assert close_settled(cur) == 0
    assert cases(world)[0][4] == "open"


def test_a_cause_that_comes_back_opens_its_case_again_and_tells_people(world: World) -> None:
    dead(world, "a", "poison")
    triage(world)
    world.run("consumer_billing", "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now()")
    look_now(world)
    triage(world)
    dead(world, "b", "poison")
    triage(world)
    ((case_id, state, reopened, closed_at),) = world.control(
        "SELECT case_id, state, reopened, closed_at FROM case_file"
    )
    assert (state, reopened, closed_at) == ("open", 1, None)
    assert world.control(
        "SELECT count(*) FROM alert WHERE dedup_key = %s", (f"case/{case_id}/reopened/1",)
    ) == [(1,)]


def test_a_topic_that_is_only_observed_asks_a_person(world: World) -> None:
    world.stub("m", topic="refunds", sends=1)
    letter(world, "m", topic="refunds")
    triage(world)
    assert (letters(world)["m"]["reason"], requests(world)) == ("observe", [])


def test_a_group_that_takes_no_duplicates_asks_a_person(world: World) -> None:
    world.stub("m", topic="payments", sends=1)
    letter(world, "m", topic="payments", group="audit")
    triage(world)
    assert (letters(world)["m"]["reason"], requests(world)) == ("no_duplicates", [])


def test_what_a_person_discarded_is_discarded_with_the_decision_as_proof(world: World) -> None:
    dead(world, "m", "poison")
    world.control(
        "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
        " VALUES ('orders', 'm', 'billing', 'discard', 'ann', 'old')"
    )
    assert triage(world) == {"discarded": 1}
    one = letters(world)["m"]
    assert (one["decided_by"], one["proof"]["why"]) == ("ann", "old")


def test_what_a_person_gave_up_is_not_asked_for_again(world: World) -> None:
    dead(world, "m")
    triage(world)
    ((case_id,),) = world.control(
        "INSERT INTO case_file (kind, topic, summary) VALUES ('ramp_stopped', 'orders', 's') RETURNING case_id"
    )
    world.control(
        "UPDATE resend_request SET state = 'not_needed', given_up_by = %s, given_up_groups = groups, error = 'given up by ann'",
        (case_id,),
    )
    assert triage(world) == {"open_again": 1, "escalated": 1}
    assert letters(world)["m"]["reason"] == "given_up"


def test_a_number_given_up_for_one_group_is_free_for_the_letters_of_the_others(
    world: World,
) -> None:
    dead(world, "m")
    world.log("m", "shipping", state="FAILED", moved="1 minute")
    ((case_id,),) = world.control(
        "INSERT INTO case_file (kind, topic, summary) VALUES ('ramp_stopped', 'orders', 's') RETURNING case_id"
    )
    world.control(
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, groups, reason, requested_by, state, given_up_by,
            given_up_groups)
        VALUES ('shop_a', 'orders', 'm', 2, '{billing}', 'lost', 'reconcile', 'not_needed', %s, '{billing}')
        """,
        (case_id,),
    )
    ((billing,),) = world.control("SELECT dead_letter_id FROM dead_letter")
    shipping = letter(world, "m", group="shipping")
    triage(world)
    assert states(world) == {billing: "open", shipping: "replaying"}
    assert requests(world) == [("m", 2, ["shipping"], "triage", "open")]
    resend(world)
    assert requests(world) == [("m", 2, ["shipping"], "triage", "sent")]
    # Also with the next number only a person asks for the group that was given up.
    look_now(world)
    assert triage(world)["replayed"] == 1
    assert [row[:2] for row in requests(world)] == [("m", 2)] and letters(world)["m"][
        "state"
    ] == "replayed"
    ((reason, case_id),) = world.control(
        "SELECT reason, case_id FROM dead_letter WHERE dead_letter_id = %s", (billing,)
    )
    assert reason == "given_up"
    decide(world.conn, world.settings, world.connections, case_id, "replay", "ann", "mended", {})
    assert requests(world)[1] == ("m", 3, ["billing"], f"case {case_id}", "open")
    assert (
        world.control("SELECT given_up_by, given_up_groups FROM resend_request")
        == [(None, None)] * 2
    )


def test_a_dry_run_tells_and_changes_nothing(world: World) -> None:
    dead(world, "safe")
    dead(world, "bad", "poison")
    told: list[Any] = []
    assert triage(world, dry_run=True, tell=told.append) == {"would_replay": 1, "would_escalate": 1}
    assert "safe for billing: would be replayed (transient)" in str(told[0])
    assert requests(world) == cases(world) == []
    assert {one["decision"] for one in letters(world).values()} == {None}


def test_a_store_that_is_away_decides_nothing_for_its_group_and_holds_up_nobody_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.config.connections import Connections

    dead(world, "a")
    dead(world, "b", group="shipping")
    monkeypatch.setenv(
        "AIRFLOW_CONN_BACKSTOP_CONSUMER_BILLING", "postgresql://nobody@127.0.0.1:1/gone"
    )
    world.connections = Connections()
    with pytest.raises(Unavailable, match="store billing_db"):
        triage(world)
    assert (letters(world)["a"]["decision"], letters(world)["b"]["state"]) == ("wait", "replaying")


def test_a_message_withdrawn_on_one_shard_is_not_discarded_while_another_shard_may_have_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.config.connections import Connections

    world.stub("m", sends=1, status="voided")
    world.stub("m", sends=1, shard="shop_b")
    letter(world, "m")
    there = world.connections
    with monkeypatch.context() as away:
        away.setenv("AIRFLOW_CONN_BACKSTOP_PRODUCER_B", "postgresql://nobody@127.0.0.1:1/gone")
        world.connections = Connections()
        with pytest.raises(Unavailable, match="shard shop_b"):
            triage(world)
    assert letters(world)["m"]["decision"] == "wait"
    world.connections = there
    look_now(world)
    assert triage(world) == {"escalated": 1} and len(cases(world)) == 1


def test_logs_of_one_group_that_fail_in_an_unforeseen_way_hold_up_no_other_group_of_their_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.stores.postgresql.logs import PostgresLogs

    world.stub("p", topic="payments", sends=1)
    letter(world, "p", "transient", "audit", "payments")
    dead(world, "m")
    whole = PostgresLogs.logs

    def broken(self: Any, group: str, keys: Any) -> Any:
        if group == "audit":
            raise RuntimeError("a row that nobody foresaw")
        return whole(self, group, keys)

    monkeypatch.setattr(PostgresLogs, "logs", broken)
    with pytest.raises(Unavailable, match="store billing_db"):
        triage(world)
    found = letters(world)
    assert (found["p"]["decision"], found["m"]["state"]) == ("wait", "replaying")


def in_order(world: World) -> None:
    world.run(
        "producer_a",
        "UPDATE message_stub SET ordering_key = 'k', sequence = (message_id = 'second')::integer",
    )


def test_a_later_message_of_a_key_is_not_replayed_before_one_that_a_person_must_decide(
    world: World,
) -> None:
    dead(world, "first", "poison")
    dead(world, "second")
    in_order(world)
    assert triage(world) == {"escalated": 1, "waits": 1}
    assert letters(world)["second"]["reason"].startswith("behind first of its key")
    look_now(world)
    assert triage(world) == {"escalated": 1, "waits": 1}, (
        "also when the first one was decided in an earlier run"
    )


def test_a_later_message_waits_although_its_evidence_was_read_before_the_first_was_given_to_a_person(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_read, batches = threading.Semaphore(0), count()
    read_batch, apply_apart = apply._read_batch, apply._apply_apart

    def reads(*given: Any) -> Any:
        try:
            return read_batch(*given)
        finally:
            have_read.release()

    def applies(*given: Any) -> Any:
        for _ in range(1 if next(batches) else 2):  # each after the evidence of the next one
            assert have_read.acquire(timeout=60)
        return apply_apart(*given)

    monkeypatch.setattr(apply, "_BATCH", 1)
    monkeypatch.setattr(apply, "_read_batch", reads)
    monkeypatch.setattr(apply, "_apply_apart", applies)
    dead(world, "first", "poison")
    dead(world, "second")
    in_order(world)
    assert triage(world) == {"escalated": 1, "waits": 1}
    assert letters(world)["second"]["reason"].startswith("behind first of its key")


def test_letters_of_a_key_are_replayed_in_its_order(world: World) -> None:
    dead(world, "second")
    dead(world, "first")
    in_order(world)
    world.run(
        "producer_a",
        "UPDATE message_stub SET send_count = 0, attempted_at = NULL WHERE message_id = 'second'",
    )
    world.run("producer_a", "DELETE FROM send_attempt WHERE message_id = 'second'")
    assert triage(world)["replaying"] == 2
    resend(world)
    assert [message_id for message_id, _ in published(world)] == ["first"]


def test_a_case_that_becomes_critical_tells_people_once_more(world: World) -> None:
    set_policy(world, max_replays=1, max_sends=9)
    world.stub("old", sends=1, age="46 minutes")
    letter(world, "old", "transient")
    triage(world)
    assert cases(world)[0][3] == "warning"
    letter(world, "m", state="replayed")
    dead(world, "m", "transient")  # of the same cause, and a loop
    triage(world)
    look_now(world)
    triage(world)
    assert cases(world)[0][3] == "critical"
    keys = [key for (key,) in world.control("SELECT dedup_key FROM alert ORDER BY alert_id")]
    assert keys == ["case/1", "case/1/critical"]


def test_many_replays_go_out_by_steps_a_canary_first(world: World) -> None:
    set_policy(world, canary=2)
    for number in range(5):
        dead(world, f"m{number}")
    assert triage(world)["replaying"] == 5
    assert resend(world)["published"] == 2
    assert triage(world) == {"replayed": 2}
    assert world.control("SELECT count(*) FROM resend_request WHERE held") == [(3,)]


def test_a_nul_beside_a_log_in_mariadb_holds_back_no_decision(
    world: World, maria_consumer: MariaDatabase
) -> None:
    content = written_settings()
    content["consumers"]["billing_db"]["kind"] = "mariadb"
    elsewhere, there = world.connections, {"backstop_consumer_billing": maria_consumer.dsn}
    world = replace(
        world,
        settings=from_mapping(content),
        connections=Connections(resolver=lambda name: there.get(name) or elsewhere.url(name)),
    )
    names = [f"m-{number}" for number in range(11)]
    for name in names:
        world.stub(name, sends=1)
        letter(world, name, "duplicate_suppressed")
        maria_consumer.run(
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, first_received_at, updated_at, consumed_at,"
            " owner_host) VALUES ('billing', 'orders', %s, 'CONSUMED', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), %s)",
            (name.encode(), "host\0" if name == "m-4" else "host"),
        )
    assert triage(world) == {"discarded": 11}
    assert letters(world)["m-4"]["proof"]["owner_host"] == "host\\x00"


def test_a_decision_that_the_database_refuses_holds_back_no_other(world: World) -> None:
    numbers = [dead(world, f"m-{number}") for number in range(11)]
    world.control(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'no such text' USING ERRCODE = '22P05';
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON dead_letter FOR EACH ROW WHEN (OLD.dead_letter_id = {numbers[4]})
            EXECUTE FUNCTION refuse()"""
    )
    try:
        with pytest.raises(Unavailable, match=rf"letter {numbers[4]}: .*no such text"):
            triage(world)
        assert [number for number, state in states(world).items() if state == "open"] == [
            numbers[4]
        ]
        assert [row[0] for row in requests(world)] == sorted(
            f"m-{number}" for number in range(11) if number != 4
        )
    finally:
        world.control("DROP TRIGGER refuse ON dead_letter; DROP FUNCTION refuse()")
    look_now(world)
    assert triage(world)["replaying"] == 1


def test_a_shard_that_is_away_holds_up_no_dead_letter_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "safe")
    dead(world, "bad", "poison")
    letter(world, "nowhere")
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_PRODUCER_B", "postgresql://nobody@127.0.0.1:1/gone")
    world.connections = Connections()
    with pytest.raises(Unavailable, match="shard shop_b"):
        triage(world)
    found = letters(world)
    assert (found["safe"]["state"], found["bad"]["decision"]) == ("replaying", "escalate")
    assert found["nowhere"]["decision"] == "wait", "the other shard may have promised it"


def test_logs_of_one_group_that_fail_leave_no_other_group_of_their_store_unclassified(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter(world, "p", None, "audit", "payments")
    dead(world, "m", None)
    whole = PostgresLogs.logs

    def broken(self: Any, group: str, keys: Any) -> Any:
        if group == "audit":
            raise RuntimeError("a row that nobody foresaw")
        return whole(self, group, keys)

    monkeypatch.setattr(PostgresLogs, "logs", broken)
    run = open_run(world.conn, "triage", "*", world.settings)
    classify_dead_letters(world.conn, world.settings, world.connections, run)
    promote_causes(world.conn, run)
    close_run(world.conn, run, "done", Counts())
    found = letters(world)
    assert found["p"]["category"] is None
    assert found["m"]["category"] is not None


def test_a_letter_takes_no_group_along_that_a_mass_loss_holds(world: World) -> None:
    dead(world, "m")
    with world.conn, world.conn.cursor() as cur:
        ask(cur, [Ask("shop_a", "orders", "m", 2, ("shipping",), "lost", "reconcile")], None)
    triage(world)
    assert requests(world) == [("m", 2, ["billing", "shipping"], "triage", "open")]
    world.control(
        "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('mass_loss', 'orders', 'shipping', 's')"
        " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', 'orders', 'm', 'shipping' FROM c"
    )
    assert resend(world)["published"] == 1
    assert published(world) == [("m", '["billing"]')]
    assert requests(world)[0][2] == ["billing"]


def test_a_letter_that_a_dead_workers_copy_was_not_for_is_open_again(world: World) -> None:
    dead(world, "m")
    triage(world)
    ((number,),) = world.control(
        "UPDATE resend_request SET groups = '{billing,shipping}', state = 'claimed', claim_token = gen_random_uuid(),"
        " claim_deadline = now() - interval '1 second' RETURNING request_id"
    )
    world.run("producer_a", "UPDATE message_stub SET send_count = 2")
    world.run(
        "producer_a",
        "INSERT INTO send_attempt (topic, message_id, send_number, groups, requested_by, started_at, outcome)"
        " VALUES ('orders', 'm', 2, '{shipping}', %s, now(), 'unknown')",
        (f"request {number}",),
    )
    resend(world)
    assert triage(world)["open_again"] == 1


def test_a_promotion_leaves_what_another_run_classified_and_decided_since_it_began(
    world: World,
) -> None:
    """The older run has staged it as safe to replay; by the newer rules it waits for a person."""

    def rules(category: str) -> Any:
        written = written_settings()
        rule = {
            "name": "ledger",
            "category": category,
            "pattern": "LedgerClosed",
            "where": "any",
        }
        return from_mapping(
            {**written, "dead_letters": {**written.get("dead_letters", {}), "rules": [rule]}}
        )

    dead(world, "m", None)
    world.control(
        "UPDATE dead_letter SET cause_text = 'handler failed', error = 'LedgerClosed: ledger is closed'"
    )
    older, newer = rules("transient"), rules("poison")
    with (
        closing(connect(older, world.connections)) as first,
        closing(connect(newer, world.connections)) as second,
    ):
        late = open_run(first, "triage", "*", older)
        classify_dead_letters(first, older, world.connections, late)
        run = open_run(second, "triage", name_of(["orders"]), newer)
        classify_dead_letters(second, newer, world.connections, run)
        promote_causes(second, run)
        apply.decide_and_apply(newer, world.connections, second, run)
        close_run(second, run, "done", Counts())
        (case,) = cases(world)
        promote_causes(first, late)
        apply.decide_and_apply(older, world.connections, first, late)
        close_run(first, late, "done", Counts())
    one = letters(world)["m"]
    assert (one["category"], one["state"], one["decision"]) == ("poison", "open", "escalate")
    assert cases(world) == [case] and requests(world) == []


def test_a_promotion_moves_no_letter_that_came_into_a_case_since_it_was_staged(
    world: World,
) -> None:
    """A third text makes a pattern of all; two of them are asked about meanwhile."""

    def die(name: str) -> None:
        dead(world, name, None)
        world.control(
            "UPDATE dead_letter SET cause_text = 'handler failed', error = %s WHERE message_id = %s",
            (f"Declined: the card of {name} is not accepted here", name),
        )

    for name in ("alice", "bob"):
        die(name)
    settings = world.settings
    with closing(connect(settings, world.connections)) as control:
        run = open_run(control, "triage", "*", settings)
        classify_dead_letters(control, settings, world.connections, run)
        promote_causes(control, run)
        close_run(control, run, "done", Counts())
        die("carol")
        late = open_run(control, "triage", "*", settings)
        classify_dead_letters(control, settings, world.connections, late)
        triage(world, scope=name_of(["orders"]))
        asked = {name: one["cause_id"] for name, one in letters(world).items() if one["case_id"]}
        assert {"alice", "bob"} <= set(asked)
        promote_causes(control, late)
        close_run(control, late, "done", Counts())
    after = letters(world)
    assert {name: after[name]["cause_id"] for name in asked} == asked
