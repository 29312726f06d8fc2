"""The resend duty on real databases and a real broker: what goes out, what does not, and what is left in the
rows."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.evidence.judge_by_key import Judge, Judgement
from backstop.model.errors import RunLost, Unavailable
from backstop.model.records import GROUPS_HEADER, Key, Message
from backstop.requests.ask import ERASED
from backstop.requests.policy import NotNeeded, Postpone, Send, backoff
from backstop.resend import send_claimed
from backstop.resend.run_once import drain_requests, now, plan, run_duty, run_once
from backstop.resend.settle import FOR_GOOD
from backstop.runs.scope import name_of
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Claim
from backstop_lab.servers.ports import free_port
from maria_world import maria_producer, maria_server  # noqa: F401
from resend_in_mariadb import in_mariadb  # noqa: F401
from resend_world import OTHER, TOPIC, World, ids, once, servers, world  # noqa: F401


def test_a_request_publishes_its_number_once_and_the_rows_say_so(world: World) -> None:
    wanted = ["plain", "ünï:%s{}'\"", "a b"]
    world.stubs(wanted)
    world.ask(wanted)

    counts = world.resend()

    assert counts["published"] == counts["sent"] == 3, counts
    assert world.copies() == {(i, "1"): 1 for i in wanted}
    assert world.requests() == {"sent": 3}
    assert world.attempts() == {"sent": 3}
    for i in wanted:
        stub = world.stub(i)
        assert (
            stub["send_count"] == 1
            and stub["attempt_token"] is None
            and stub["queue_offset"] is not None
        )
    assert all(GROUPS_HEADER not in headers for headers in world.published())
    assert world.resend() == {}, "done twice, nothing more"


def test_a_request_belongs_to_whoever_may_overrule_most(world: World) -> None:
    world.stubs(["m"])
    for by, belongs_to in (
        ("reconcile", "reconcile"),
        ("triage", "triage"),
        ("reconcile", "triage"),
        ("case 1", "case 1"),
        ("triage", "case 1"),
        ("reconcile", "case 1"),
    ):
        world.ask(["m"], by=by)
        assert world.request("m")["requested_by"] == belongs_to, by
    world.sql(
        "control",
        """WITH c AS (
        INSERT INTO case_file (kind, topic, summary) VALUES ('ramp_stopped', 'orders', 's') RETURNING case_id)
        UPDATE resend_request SET state = 'not_needed', given_up_by = c.case_id, given_up_groups = '{*}' FROM c""",
    )
    for machine in ("reconcile", "triage"):
        assert world.ask(["m"], by=machine) == {"already_asked": 1}, (
            "what a person gave up only a person asks for again"
        )
    assert world.ask(["m"], by="case 2") == {"reopened": 1}


def test_asking_joins_an_open_request_reopens_a_closed_one_and_leaves_a_taken_one(
    world: World,
) -> None:
    world.stubs(["m"])
    assert world.ask(["m"], groups=("billing",)) == {"requests": 1}
    assert world.ask(["m"], groups=("shipping",)) == {"joined": 1}
    assert world.request("m")["groups"] == ["billing", "shipping"]
    assert world.ask(["m"]) == {"joined": 1}
    assert world.request("m")["groups"] is None, "null: all groups wins"
    world.ask(["m"], groups=("billing",))
    assert world.request("m")["groups"] is None
    for state in ("not_needed", "superseded"):
        world.sql("control", "UPDATE resend_request SET state = %s, error = 'x'", [state])
        assert world.ask(["m"], groups=("billing",)) == {"reopened": 1}
        found = world.request("m")
        assert (found["state"], found["groups"], found["error"]) == ("open", ["billing"], None)
    for state in ("sent", "refused", "unknown"):
        world.sql("control", "UPDATE resend_request SET state = %s", [state])
        assert world.ask(["m"]) == {"already_asked": 1}
        assert world.requests() == {state: 1}


def test_one_call_may_ask_for_two_groups_of_one_message(world: World) -> None:
    from backstop.control.connection import connect
    from backstop.requests.ask import Ask, ask

    connection = connect(world.settings, world.connections)
    asks = [
        Ask("shop_a", TOPIC, "m", 1, (group,), group, "case 1") for group in ("shipping", "billing")
    ]
    with connection, connection.cursor() as cursor:
        assert ask(cursor, asks, None) == {"requests": 1}
    connection.close()
    assert world.request("m")["groups"] == ["billing", "shipping"]


def test_two_runs_at_once_publish_nothing_twice(world: World) -> None:
    world.set("resend", to={"batch_size": 20})
    wanted = ids(240)
    world.stubs(wanted)
    world.ask(wanted)
    done: list[Counter[str]] = []

    def one(*topics: str) -> None:
        with world.run(*topics) as run:
            done.append(Counter(run_once(world.settings, world.connections, run)))

    threads = [
        threading.Thread(target=one, args=topics) for topics in ((), (TOPIC,), (OTHER, TOPIC))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.copies() == {(i, "1"): 1 for i in wanted}
    assert world.requests() == {"sent": 240}
    assert sum(counts["published"] for counts in done) == 240
    assert sum(counts["published"] > 0 for counts in done) > 1, "they worked side by side"


def test_a_delivery_confirmed_meanwhile_is_not_needed_and_its_number_stays_free(
    world: World,
) -> None:
    world.stubs(["both", "one"])
    world.ask(["both", "one"])
    for group in ("billing", "shipping"):
        world.consume("both", group)
    world.consume("one", "billing")

    world.resend()

    assert world.request("both")["state"] == "not_needed"
    assert world.stub("both")["send_count"] == 0
    assert world.copies() == {("one", "1"): 1}
    (headers,) = world.published()
    assert json.loads(headers[GROUPS_HEADER]) == ["shipping"], "only who still needs it"
    assert world.request("one")["groups"] == ["shipping"], "what was really addressed"
    assert world.sql("producer_a", "SELECT groups, requested_by FROM send_attempt") == [
        (["shipping"], f"request {world.request('one')['request_id']}")
    ]


def test_what_is_not_due_is_postponed_and_not_sent(world: World) -> None:
    world.stubs(["m"])
    world.sql("producer_a", "UPDATE message_stub SET next_check_at = now() + interval '10 minutes'")
    world.ask(["m"])
    world.resend()
    found = world.request("m")
    assert found["state"] == "open" and "WAITING" in found["error"]
    ((minutes,),) = world.sql(
        "control", "SELECT extract(epoch FROM not_before - now()) / 60 FROM resend_request"
    )
    assert 9 < minutes <= 10
    assert world.copies() == {} and world.stub("m")["send_count"] == 0


def test_a_request_says_who_asked_for_which_of_its_groups(world: World) -> None:
    world.stubs(["m"])
    everybody = None
    for by, groups, asked_by in (
        ("reconcile", everybody, None),
        ("reconcile", everybody, None),
        ("triage", ("billing",), {"billing": "triage", "*": "reconcile"}),
        ("ann (incident 3)", ("shipping",), {"shipping": "ann (incident 3)"}),
        ("case 1", ("billing",), {"billing": "case 1"}),
        ("person bob", ("billing", "shipping"), {"shipping": "person bob"}),
        ("case 2", everybody, {"billing": "case 2", "shipping": "case 2", "*": "case 2"}),
        ("triage", everybody, {}),
    ):
        before = world.request("m")["asked_by"] if world.requests() else None
        world.ask(["m"], by=by, groups=groups)
        after = asked_by if before is None or asked_by is None else {**before, **asked_by}
        assert world.request("m")["asked_by"] == after, by
    world.sql("control", "UPDATE resend_request SET state = 'not_needed'")
    world.ask(["m"], groups=("billing",))
    found = world.request("m")
    assert (found["requested_by"], found["asked_by"]) == ("reconcile", None)
    world.ask(["m"], by="triage", groups=("shipping",))
    assert world.request("m")["asked_by"] == {"billing": "reconcile", "shipping": "triage"}


@pytest.mark.parametrize("first", ["reconcile", "case 1"])
def test_who_joins_a_request_repeats_begun_work_only_of_the_groups_that_they_asked_for(
    world: World, first: str
) -> None:
    """Reconcile asked for shipping before it had begun; a person decided that billing does its work again."""
    for group in ("billing", "shipping"):
        world.set("groups", group, "duplicates", to="no")
    world.stubs(["m"])
    ways = {"case 1": ("billing",), "reconcile": ("shipping",)}
    for by in (first, *(ways.keys() - {first})):
        world.ask(["m"], by=by, groups=ways[by])
    for group in ("billing", "shipping"):
        world.consume("m", group, state="EXPIRED")

    assert world.resend()["sent"] == 1

    assert world.request("m")["groups"] == ["billing"]
    (headers,) = world.published()
    assert json.loads(headers[GROUPS_HEADER]) == ["billing"]


@pytest.mark.parametrize("by", ["case 1", "triage", "ann (incident 3)", "person ann"])
def test_who_joins_a_request_sends_nothing_to_a_group_that_a_mass_loss_holds(
    world: World, by: str
) -> None:
    world.stubs(["m"])
    world.ask(["m"])
    world.ask(["m"], by=by, groups=("billing",))
    world.sql(
        "control",
        """WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', 'orders', 's') RETURNING case_id)
        INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
        SELECT case_id, 'shop_a', 'orders', 'm', g FROM c, unnest('{billing,shipping}'::text[]) AS g""",
    )

    assert world.resend()["sent"] == 1

    assert world.request("m")["groups"] == ["billing"]
    assert world.sql("producer_a", "SELECT groups FROM send_attempt") == [(["billing"],)]


def test_who_asked_before_a_request_was_closed_is_forgotten_by_whoever_reopens_it(
    world: World,
) -> None:
    """Also by a program of before who asked was kept."""
    world.stubs(["m"])
    world.ask(["m"], groups=("shipping",))
    world.ask(["m"], groups=("billing",), by="case 1")
    world.sql("control", "UPDATE resend_request SET state = 'not_needed'")
    world.sql(
        "control",
        "UPDATE resend_request SET state = 'open', requested_by = 'reconcile', groups = '{billing}'",
    )
    assert world.request("m")["asked_by"] is None


def test_what_an_earlier_version_added_to_triages_request_is_held_by_a_mass_loss(
    world: World,
) -> None:
    world.stubs(["m"])
    world.ask(["m"], groups=("billing", "shipping"), by="triage")
    world.sql(
        "control",
        """WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', 'orders', 's') RETURNING case_id)
        INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
        SELECT case_id, 'shop_a', 'orders', 'm', 'shipping' FROM c""",
    )
    assert world.resend()["sent"] == 1
    assert world.sql("producer_a", "SELECT groups FROM send_attempt") == [(["billing"],)]


def test_a_number_that_is_gone_is_superseded(world: World) -> None:
    world.stubs(["m"], send_count=1, refusals=1)
    world.ask(["m"], number=1)
    world.resend()
    assert world.requests() == {"superseded": 1}
    assert world.copies() == {} and world.stub("m")["send_count"] == 1


def test_a_used_budget_stops_the_machine_at_the_verdict_and_a_person_at_the_claim(
    world: World,
) -> None:
    for i in ("machine", "person"):
        world.stubs([i], send_count=2, max_sends=2, attempted_at="2020-01-01T00:00:00Z")
        world.sql(
            "producer_a",
            """INSERT INTO send_attempt (topic, message_id, send_number, requested_by,
        started_at, outcome)
            SELECT %s, %s, n, 'producer', now() - interval '50 seconds', 'unknown' FROM generate_series(1, 2)
            n""",
            [TOPIC, i],
        )
    world.ask(["machine"], number=3)
    world.ask(["person"], number=3, by="case 1")
    world.resend()
    assert (
        world.request("machine")["state"] == "not_needed"
        and "EXHAUSTED" in world.request("machine")["error"]
    )
    assert world.request("person")["state"] == "superseded"
    assert world.copies() == {} and world.stub("person")["send_count"] == 2


def test_a_refused_message_counts_its_refusals_until_it_is_exhausted(world: World) -> None:
    world.set("policy", "max_refusals", to=3)
    with RedisStreams(world.urls["backstop_broker"]) as broker:
        broker.create_topic(TOPIC, 2, max_message_bytes=5)
    world.stubs(["m"])
    for number in (1, 2, 3):
        world.ask(["m"], number=number)
        assert world.resend()["refused"] == 1
        found = world.stub("m")
        assert (found["send_count"], found["refusals"], found["attempt_token"]) == (
            number,
            number,
            None,
        )
        # The backoff passes.
        world.sql(
            "producer_a", "UPDATE message_stub SET next_check_at = now() - interval '1 second'"
        )
    errors = world.sql(
        "control", "SELECT DISTINCT left(error, %s) FROM resend_request", [len(FOR_GOOD)]
    )
    assert errors == [(FOR_GOOD,)]
    assert world.attempts() == {"refused": 3}
    world.ask(["m"], number=4)
    world.resend()
    ((state, error),) = world.sql(
        "control", "SELECT state, error FROM resend_request WHERE send_number = 4"
    )
    assert state == "not_needed" and "EXHAUSTED" in error
    assert world.copies() == {}


def test_a_pause_is_honoured_between_two_batches_and_resume_goes_on(world: World) -> None:
    world.set("resend", to={"batch_size": 10})
    world.stubs(ids(30))
    world.ask(ids(30))
    pause = "INSERT INTO pause (topic, paused_by, why) VALUES (%s, 'test', 'test')"
    counts = world.hooked_resend(
        {"publish after": once(lambda: world.sql("control", pause, [TOPIC]) and None)}
    )
    assert counts["published"] == 10
    assert world.requests() == {"sent": 10, "open": 20}
    world.sql("control", "UPDATE pause SET topic = '*'")
    assert world.resend() == {}
    world.sql("control", "DELETE FROM pause")
    assert world.resend()["published"] == 20
    assert set(world.copies().values()) == {1}


def test_a_topic_in_mode_observe_and_topics_out_of_scope_send_nothing(world: World) -> None:
    for topic in (TOPIC, OTHER):
        world.stubs(["m"], topic=topic)
        world.ask(["m"], topic=topic)
    world.set("topics", TOPIC, "mode", to="observe")
    assert run_duty(world.settings, world.connections, scope=name_of([TOPIC])) == {}
    assert run_duty(world.settings, world.connections, scope="*")["published"] == 1
    assert world.copies(TOPIC) == {} and world.copies(OTHER) == {("m", "1"): 1}


def test_a_route_through_a_group_that_takes_no_duplicates_is_closed_as_no_route(
    world: World,
) -> None:
    world.set("groups", "shipping", "duplicates", to="no")
    world.stubs(["m"])
    world.ask(["m"], groups=("billing",))
    world.resend()
    found = world.request("m")
    assert (found["state"], found["error"]) == ("not_needed", "no_route")
    assert world.copies() == {}


def test_a_message_never_sent_waits_for_a_group_without_duplicates_that_cannot_be_read(
    world: World,
) -> None:
    world.set("groups", "shipping", "duplicates", to="no")
    for message_id, sends in (("never", 0), ("refused", 1)):
        world.stubs([message_id], send_count=sends, refusals=sends)
        world.ask([message_id], number=sends + 1)
    good = world.urls["backstop_consumer_shipping"]
    world.urls["backstop_consumer_shipping"] = f"postgresql://u:p@127.0.0.1:{free_port()}/x"
    with pytest.raises(Unavailable, match="shipping_db"):
        world.resend()
    assert world.requests() == {"open": 2} and world.copies() == {}
    world.urls["backstop_consumer_shipping"] = good
    world.sql("control", "UPDATE resend_request SET not_before = now()")
    assert world.resend()["sent"] == 2


@pytest.mark.parametrize(("fresh", "looks"), [(10.0, [12]), (-1.0, [12, 6, 6, 6, 6])])
def test_one_look_judges_the_claims_of_several_lots_and_is_taken_again_when_it_is_old(
    world: World, monkeypatch: pytest.MonkeyPatch, fresh: float, looks: list[int]
) -> None:
    world.set("resend", to={"batch_size": 12})
    for topic in (TOPIC, OTHER):
        world.stubs([f"{topic} {i}" for i in ids(6)], topic=topic)
        world.ask([f"{topic} {i}" for i in ids(6)], topic=topic)
    seen: list[int] = []
    judgement = Judge.judgement

    def noted(judge: Judge, keys: Sequence[Key]) -> Judgement:
        seen.append(len(keys))
        return judgement(judge, keys)

    monkeypatch.setattr(Judge, "judgement", noted)
    monkeypatch.setattr("backstop.resend.send_claimed.FRESH_SECONDS", fresh)
    assert world.resend()["sent"] == 12
    assert seen == looks and set(world.copies().values()) == {1}


def test_a_chunk_of_a_resend_is_bounded_by_the_bytes_of_its_contents(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents come with the numbers: what does not fit in memory must not use up a number of each message."""
    small = [f"m-{n}" for n in range(10)]
    world.stubs([*small, "large " + "x" * 200])
    world.ask([*small[:5], "large " + "x" * 200, *small[5:]])
    monkeypatch.setattr("backstop.resend.send_claimed._SMALL", len("content of m-0{}"))
    monkeypatch.setattr("backstop.resend.send_claimed._CHUNK_BYTES", 4 * len("content of m-0{}"))
    read: list[int] = []
    claim = PostgresStubs.claim

    def noted(store: PostgresStubs, claims: Sequence[Claim]) -> dict[Key, Message]:
        read.append(len(claims))
        return claim(store, claims)

    monkeypatch.setattr(PostgresStubs, "claim", noted)
    assert world.resend()["published"] == 11
    assert sorted(read) == [1, 2, 4, 4] and set(world.copies().values()) == {1}


def test_the_pace_of_a_broker_holds_for_its_next_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in (TOPIC, OTHER):
        world.stubs([f"{topic} {i}" for i in ids(3)], topic=topic)
        world.ask([f"{topic} {i}" for i in ids(3)], topic=topic)
    monkeypatch.setattr("backstop.resend.send_claimed._FIRST_CHUNK", 2)
    monkeypatch.setattr("backstop.resend.send_claimed.paced", lambda number, _: 2 * number)
    read: list[int] = []
    claim = PostgresStubs.claim

    def noted(store: PostgresStubs, claims: Sequence[Claim]) -> dict[Key, Message]:
        read.append(len(claims))
        return claim(store, claims)

    monkeypatch.setattr(PostgresStubs, "claim", noted)
    assert world.resend()["sent"] == 6
    assert read == [2, 1, 3]


def test_the_rate_limit_holds_across_workers(world: World) -> None:
    rate = 40
    world.set("policy", "rate_limit", to=rate)
    wanted = ids(160)
    world.stubs(wanted)
    world.ask(wanted)
    with world.run() as run:
        failed: list[BaseException] = []

        def one(first: int) -> None:
            try:
                with world.worker(run) as worker:
                    drain_requests(worker, now(worker), first=first)
            except Exception as error:  # noqa: BLE001 (shown below)
                failed.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert world.copies() == {(i, "1"): 1 for i in wanted}
    starts = sorted(
        at.timestamp() for (at,) in world.sql("producer_a", "SELECT started_at FROM send_attempt")
    )
    # A bite is one second's worth: over t seconds never more than rate * (t + 1), give or take how long a
    # batch works.
    assert starts[-1] - starts[0] >= (len(wanted) / rate - 1) * 0.8
    for start in starts:
        assert sum(start <= at < start + 2 for at in starts) <= 3 * rate


def test_a_dry_run_lists_what_would_go_and_changes_nothing(world: World) -> None:
    world.stubs(["send", "done", "wait"])
    world.sql(
        "producer_a",
        "UPDATE message_stub SET next_check_at = now() + interval '1 hour' WHERE message_id = 'wait'",
    )
    world.ask(["send", "done", "wait"])
    for group in ("billing", "shipping"):
        world.consume("done", group)
    before = world.sql("control", "SELECT to_jsonb(r) FROM resend_request r ORDER BY 1")
    told: list[Any] = []
    with world.run(dry_run=True) as run:
        counts = run_once(world.settings, world.connections, run, tell=told.append)
        assert [one.decision for one in plan(world.settings, world.connections, run)] == [
            one.decision for one in told
        ]
    assert counts == {"would_send": 1, "would_close": 1, "would_postpone": 1}
    assert {one.request.key.message_id: type(one.decision) for one in told} == {
        "send": Send,
        "done": NotNeeded,
        "wait": Postpone,
    }
    assert "would go to all groups" in str(
        next(one for one in told if isinstance(one.decision, Send))
    )
    assert world.sql("control", "SELECT to_jsonb(r) FROM resend_request r ORDER BY 1") == before
    assert world.copies() == {} and world.stub("send")["send_count"] == 0


def test_an_id_on_two_shards_is_never_sent_and_says_why(world: World) -> None:
    world.stubs(["m"], shard="a")
    world.stubs(["m"], shard="b")
    world.ask(["m"])
    world.resend()
    found = world.request("m")
    assert found["state"] == "open" and "on several shards: shop_a, shop_b" in found["error"]
    assert world.copies() == {}


def test_an_unreachable_shard_keeps_its_requests_and_the_others_go_out(world: World) -> None:
    world.stubs(["a1"], shard="a")
    world.stubs(["b1"], shard="b")
    world.ask(["a1"], shard="a")
    world.ask(["b1"], shard="b")
    good = world.urls["backstop_producer_b"]
    world.urls["backstop_producer_b"] = f"postgresql://u:secret-of-b@127.0.0.1:{free_port()}/x"
    with pytest.raises(Unavailable, match="shop_b") as caught:
        run_duty(world.settings, world.connections)
    assert caught.value.exit_code == 3 and caught.value.unaffected and caught.value.next_step
    assert "secret-of-b" not in str(caught.value)
    assert world.request("a1")["state"] == "sent" and world.request("b1")["state"] == "open"
    ((state, counts),) = world.sql("control", "SELECT state, counts FROM run")
    assert state == "incomplete" and counts["published"] == 1
    world.urls["backstop_producer_b"] = good
    assert world.resend()["published"] == 1
    assert world.copies() == {("a1", "1"): 1, ("b1", "1"): 1}


def test_a_broker_that_is_away_uses_up_no_number(world: World) -> None:
    world.stubs(["m"])
    world.ask(["m"])
    good = world.urls["backstop_broker"]
    world.urls["backstop_broker"] = f"redis://:secret@127.0.0.1:{free_port()}/0"
    with pytest.raises(Unavailable, match="broker embedded"):
        world.resend()
    assert world.requests() == {"open": 1} and world.stub("m")["send_count"] == 0
    world.urls["backstop_broker"] = good
    assert world.resend()["sent"] == 1


def test_a_consumer_database_that_is_away_postpones_what_it_could_tell(world: World) -> None:
    world.stubs(["m"])
    world.ask(["m"])
    world.urls["backstop_consumer_billing"] = f"postgresql://u:p@127.0.0.1:{free_port()}/x"
    with pytest.raises(Unavailable, match="billing_db"):
        world.resend()
    # The group whose database answers is not held up by the other.
    assert world.request("m")["groups"] == ["shipping"]
    assert world.copies() == {("m", "1"): 1}


def test_what_waits_behind_a_slow_broker_is_judged_anew_before_it_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one claim, one message a second: what became done meanwhile gets no copy."""
    monkeypatch.setattr(send_claimed, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(send_claimed, "_FIRST_CHUNK", 1)
    world.stubs(ids(3))
    world.ask(ids(3))

    def done_meanwhile() -> None:
        last = max(set(ids(3)) - {message_id for message_id, _ in world.copies()})
        for group in ("billing", "shipping"):
            world.consume(last, group)

    counts = world.hooked_resend({"publish after": once(done_meanwhile)})
    assert (counts["published"], counts["handed_back"]) == (2, 2)
    assert (world.copies().total(), world.requests()) == (2, {"sent": 2, "not_needed": 1})


def test_what_became_done_while_the_order_was_looked_at_gets_no_copy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of many messages takes longer to judge than a look is fresh."""
    world.stubs(["m", "n"])
    world.ask(["m", "n"])
    passed, keep_order = [0.0], send_claimed.keep_order

    def takes_long(*given: Any) -> Any:
        for group in ("billing", "shipping"):
            world.consume("m", group)
        passed[0] += send_claimed.FRESH_SECONDS
        return keep_order(*given)

    monkeypatch.setattr(send_claimed, "FRESH_SECONDS", 0.5)
    monkeypatch.setattr(send_claimed, "monotonic", lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(send_claimed, "keep_order", takes_long)
    assert world.resend()["published"] == 1
    assert (world.copies(), world.requests()) == ({("n", "1"): 1}, {"sent": 1, "not_needed": 1})


@pytest.mark.parametrize("moment", ["stub_table after", "claim before", "claim after"])
def test_a_worker_whose_run_was_closed_publishes_nothing_more(world: World, moment: str) -> None:
    world.stubs(["m"])
    world.ask(["m"])

    def take_over() -> None:
        world.sql("control", "UPDATE duty_lease SET token = gen_random_uuid()")

    with pytest.raises(RunLost):
        world.hooked_resend({moment: once(take_over)})
    assert world.copies() == {}
    world.sql("control", "DELETE FROM duty_lease")
    world.expire_claims()
    world.resend()
    world.resend()
    assert sum(world.copies().values()) <= world.stub("m")["send_count"] == 1
    assert set(world.requests()) <= {"sent", "unknown"}


@pytest.mark.parametrize("moment", ["claim before", "claim after"])
def test_a_zombie_whose_claim_ran_out_publishes_nothing(
    world: World,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stalls past its deadlines; others recover what it held and send it; then it wakes up."""
    world.stubs(["m"])
    world.ask(["m"])

    def stall() -> None:
        world.expire_claims()
        # Another duty's scope, so that both runs are alive.
        with world.run(TOPIC) as other:
            run_once(world.settings, world.connections, other)
        woke.append(sum(world.copies().values()))
        late = time.monotonic() + 3600
        monkeypatch.setattr("backstop.resend.send_claimed.monotonic", lambda: late)

    woke: list[int] = []
    world.hooked_resend({moment: once(stall)})
    assert sum(world.copies().values()) == woke[0], "nothing after it woke"
    assert set(world.copies().values()) <= {1}
    found = world.stub("m")
    assert found["attempt_token"] is None and found["send_count"] == 1 and found["refusals"] == 0
    assert world.requests() == ({"sent": 1} if moment == "claim before" else {"unknown": 1})


def test_a_zombie_whose_own_clock_stood_still_is_stopped_by_the_send_number(world: World) -> None:
    world.stubs(["m"])
    world.ask(["m"])

    def meanwhile() -> None:
        world.expire_claims()
        with world.run(TOPIC) as other:
            assert run_once(world.settings, world.connections, other)["published"] == 1

    counts = world.hooked_resend({"claim before": once(meanwhile)})
    assert counts["superseded"] == 1 and "published" not in counts
    assert world.copies() == {("m", "1"): 1}
    assert world.requests() == {"sent": 1}, (
        "and it does not touch the request that is not its own any more"
    )


def test_an_attempt_recovered_while_it_was_settled_counts_as_unknown(world: World) -> None:
    world.stubs(["m"])
    world.ask(["m"])

    def recovered() -> None:
        world.sql(
            "producer_a", "UPDATE message_stub SET attempt_deadline = now() - interval '1 second'"
        )
        with world.run(TOPIC) as run, world.worker(run) as worker:
            assert worker.judge.sources.shard("shop_a").recover(10)

    world.hooked_resend({"settle before": once(recovered)})
    assert world.copies() == {("m", "1"): 1}
    assert world.attempts() == {"unknown": 1}
    found = world.request("m")
    assert found["state"] == "unknown" and "too late" in found["error"]


def test_backoff_and_the_lag_of_the_slowest_group_set_the_next_look(world: World) -> None:
    world.stubs(["m"])
    world.ask(["m"])
    with world.run(duty="reconcile") as run:
        world.sql(
            "control",
            """INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted,
        next_offset)
            VALUES ('embedded', %s, 0, 'e', true, 100)""",
            [TOPIC],
        )
        for group, offset, before in (("billing", 100, 0), ("shipping", 40, 20)):
            values = [group, TOPIC, run.run_id]
            for table, at, seconds in (("progress", offset, 2), ("progress_history", before, 0)):
                world.sql(
                    "control",
                    f"""INSERT INTO {table} (consumer_group, broker, topic, queue_id, epoch,
                    next_offset,
                    passed_until, recorded_at, run_id) VALUES (%s, 'embedded', %s, 0, 'e', {at}, now(),
                    '2026-01-01T00:00:0{seconds}Z', %s)""",
                    values,
                )
    world.resend()
    # 60 messages at 10 a second, after the first backoff.
    policy = world.settings.policy_for(TOPIC)
    expected = backoff(1, Key(TOPIC, "m"), policy).total_seconds() + 6
    ((wait,),) = world.sql(
        "producer_a",
        "SELECT extract(epoch FROM next_check_at - attempted_at)::float8 FROM message_stub",
    )
    assert policy.backoff_base.total_seconds() + 6 <= wait == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize("there", ["world", "in_mariadb"])
def test_what_was_erased_is_not_sent_whoever_asks(
    there: str, request: pytest.FixtureRequest
) -> None:
    """By its stub, or by the erasure alone where the database was restored; one that was only begun forbids nothing."""
    world: World = request.getfixturevalue(there)
    world.stubs(["erased"], erased_hash=b"\x07" * 32)
    world.stubs(["restored", "begun"])
    world.sql(
        "control",
        """INSERT INTO erasure (topic, message_id, asked_by, why, done_at)
        VALUES ('orders', 'restored', 'ann', 'asked', now()), ('orders', 'begun', 'ann', 'asked', NULL)""",
    )
    world.ask(["erased", "restored", "begun"])

    assert world.resend()["not_needed"] == 2

    assert world.copies() == {("begun", "1"): 1}
    for message_id in ("erased", "restored"):
        closed = world.request(message_id)
        assert (closed["state"], closed["error"]) == ("not_needed", ERASED)
        assert world.stub(message_id)["send_count"] == 0
    assert world.ask(["erased", "restored"]) == {"already_asked": 2}
    for by in ("triage", "case 1", "ann (incident 3)"):
        assert world.ask(["erased", "restored"], by=by) == {"reopened": 2}
        assert world.resend()["not_needed"] == 2
    assert world.copies() == {("begun", "1"): 1}
