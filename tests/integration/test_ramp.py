"""Canary, then ramp, on real databases and a real broker: a large batch goes on by proof and stops by harm."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from backstop.brokers.protocol import DeadLetterRef
from backstop.brokers.redis_streams import RedisStreams
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.model.errors import BrokerUnavailable, StoreUnavailable, Unavailable
from backstop.model.records import Counts
from backstop.resend.run_once import prepare, run_once
from letters import INSERT
from letters import values as letter_values
from resend_world import OTHER, TOPIC, World, ids, once, servers, world  # noqa: F401

CANARY = 4


@pytest.fixture
def ramped(world: World) -> World:
    world.set("policy", "canary", to=CANARY)
    return world


def asked(world: World, number: int, topic: str = TOPIC, prefix: str = "m") -> list[str]:
    wanted = ids(number, prefix)
    world.stubs(wanted, topic=topic)
    world.ask(wanted, topic=topic, ramped=True)
    return wanted


def out(world: World) -> list[str]:
    return sorted(message_id for message_id, _ in world.copies())


def confirm(world: World, *message_ids: str) -> None:
    for message_id in message_ids:
        for group in ("billing", "shipping"):
            world.consume(message_id, group)


def batch(world: World) -> dict[str, Any]:
    ((row,),) = world.sql(
        "control", "SELECT to_jsonb(b) FROM resend_batch b ORDER BY batch_id DESC LIMIT 1"
    )
    return dict(row)


def cases(world: World) -> list[tuple[Any, ...]]:
    return world.sql(
        "control",
        "SELECT case_id, kind, topic, state, summary, evidence FROM case_file ORDER BY case_id",
    )


def decided(world: World, case_id: int, action: str, **options: Any) -> Counts:
    connection = connect(world.settings, world.connections)
    try:
        return decide(
            connection,
            world.settings,
            world.connections,
            case_id,
            action,
            "ann",
            "because",
            options,
        ).counts
    finally:
        connection.close()


def test_as_many_as_a_canary_go_out_at_once_without_a_batch(ramped: World) -> None:
    wanted = asked(ramped, CANARY)
    assert ramped.resend()["sent"] == CANARY
    assert out(ramped) == wanted
    assert ramped.sql("control", "SELECT count(*) FROM resend_batch") == [(0,)]


def test_a_large_batch_begins_with_a_canary_and_grows_only_by_what_was_confirmed(
    ramped: World,
) -> None:
    wanted = asked(ramped, 20)
    ramped.resend()
    assert out(ramped) == wanted[:4] and batch(ramped)["step_size"] == 4

    assert ramped.resend()["batches_waiting"] == 1, (
        "no group has passed them: its clock does not run"
    )
    assert out(ramped) == wanted[:4]
    confirm(ramped, *wanted[:3])
    ramped.resend()
    assert out(ramped) == wanted[:4], "one of the step is not proven yet"

    confirm(ramped, wanted[3])
    ramped.resend()
    assert out(ramped) == wanted[:12]
    confirm(ramped, *wanted[4:12])
    ramped.resend()
    assert out(ramped) == wanted and batch(ramped)["state"] == "ramping"
    confirm(ramped, *wanted[12:])
    assert ramped.resend()["batches_closed"] == 1
    assert batch(ramped)["state"] == "done" and batch(ramped)["released"] == 20
    assert set(ramped.copies().values()) == {1} and ramped.requests() == {"sent": 20}


@contextmanager
def refusing(world: World, last: str) -> Iterator[None]:
    """The shard refuses every change of the messages up to this one."""
    world.sql(
        "producer_a",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;"
        f" CREATE TRIGGER refuse BEFORE UPDATE ON message_stub FOR EACH ROW WHEN (NEW.message_id <= '{last}')"
        " EXECUTE FUNCTION refuse()",
    )
    try:
        yield
    finally:
        world.sql("producer_a", "DROP TRIGGER refuse ON message_stub; DROP FUNCTION refuse")


def test_a_row_that_its_shard_refuses_delays_no_step_and_proves_none(ramped: World) -> None:
    wanted = asked(ramped, 20)
    with refusing(ramped, wanted[3]):
        for _ in range(2):
            with pytest.raises(Unavailable, match="not this one"):
                ramped.resend()
            ramped.sql("control", "UPDATE resend_request SET not_before = now() WHERE NOT held")
        assert out(ramped) == [], "nothing of the first step went out, and nothing else either"
        assert batch(ramped)["released"] == CANARY

    with refusing(ramped, wanted[0]):
        with pytest.raises(Unavailable, match="not this one"):
            ramped.resend()
        assert out(ramped) == wanted[1:4]
        confirm(ramped, *wanted[1:4])
        ramped.resend()
        assert out(ramped) == wanted[1:12]


def test_what_a_mass_loss_holds_is_in_no_step_and_proves_none(ramped: World) -> None:
    wanted = asked(ramped, 40)
    ramped.sql(
        "control",
        "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('mass_loss', %(topic)s, 'billing', 's')"
        " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', %(topic)s, u.id, 'billing' FROM c, unnest(%(ids)s::text[]) AS u (id)",
        {"topic": TOPIC, "ids": wanted[:28]},
    )
    for _ in range(4):
        ramped.resend()
    assert out(ramped) == wanted[28:32], "a canary, of which nothing is confirmed"


def test_a_step_that_a_mass_loss_took_away_holds_nothing_of_its_topic(ramped: World) -> None:
    wanted = asked(ramped, 12)
    ramped.resend(limit=1)  # a canary is released, and one of it goes out
    assert out(ramped) == wanted[:1]
    ramped.sql(
        "control",
        "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('mass_loss', %(topic)s, 'billing', 's')"
        " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', %(topic)s, u.id, 'billing' FROM c, unnest(%(ids)s::text[]) AS u (id)",
        {"topic": TOPIC, "ids": wanted[1:4]},
    )
    ramped.resend()
    assert ramped.request(wanted[1])["state"] == "not_needed"
    assert out(ramped) == wanted[:1]
    confirm(ramped, wanted[0])
    ramped.sql("control", "UPDATE case_member SET settled_at = now()")
    ramped.sql("control", "UPDATE case_file SET state = 'closed', closed_at = now()")
    ramped.resend()
    assert out(ramped) == [wanted[0], *wanted[4:8]], "a canary again, and not a larger step"


def test_a_message_on_two_shards_delays_no_step(ramped: World) -> None:
    wanted = asked(ramped, 12)
    ramped.stubs([wanted[0]], shard="b")
    ramped.resend()
    assert out(ramped) == wanted[1:CANARY]
    confirm(ramped, *wanted[1:CANARY])
    ramped.resend()
    assert out(ramped) == wanted[1:12]


def test_one_topics_batch_does_not_hold_up_another_topic(ramped: World) -> None:
    asked(ramped, 10)
    others = asked(ramped, 3, OTHER, "o")
    ramped.resend()
    assert sorted(i for i, _ in ramped.copies(OTHER)) == others and len(out(ramped)) == CANARY


def test_what_is_asked_for_while_a_batch_is_live_joins_it(ramped: World) -> None:
    wanted = asked(ramped, 6)
    ramped.resend()
    late = asked(ramped, 2, prefix="z")
    ramped.resend()
    assert out(ramped) == wanted[:4], (
        "also two more, fewer than a canary, wait for the canary that is out"
    )
    confirm(ramped, *wanted[:4])
    ramped.resend()
    assert out(ramped) == sorted(wanted + late)
    assert ramped.sql("control", "SELECT count(*) FROM resend_batch") == [(1,)]


def passed_by(world: World) -> None:
    """Both groups went past everything, and the next look has come."""
    for queue in range(2):
        stream = world.keys.stream(TOPIC, queue)
        for group in ("billing", "shipping"):
            world.raw.xgroup_setid(stream, group, "$")
    for shard in "ab":
        world.sql(
            f"producer_{shard}",
            "UPDATE message_stub SET next_check_at = now() - interval '1 second'",
        )


@pytest.mark.parametrize("harm", ["failed", "lost_again", "refused", "parked", "exhausted"])
def test_harm_stops_the_batch_with_a_case_until_a_person_decides(ramped: World, harm: str) -> None:
    wanted = asked(ramped, 12)
    ramped.resend()
    confirm(ramped, *wanted[:3])
    if harm == "failed":
        ramped.sql(
            "consumer_billing",
            """INSERT INTO consumer_log (consumer_group, topic, message_id, state, updated_at)
            VALUES ('billing', %s, %s, 'FAILED', clock_timestamp())""",
            [TOPIC, wanted[3]],
        )
    elif harm == "parked":
        ramped.consume(wanted[3], "billing", state="PARKED")
    elif harm == "refused":
        ramped.sql(
            "control",
            "UPDATE resend_request SET state = 'refused' WHERE message_id = %s",
            [wanted[3]],
        )
    else:
        passed_by(ramped)
        if harm == "exhausted":
            ramped.sql(
                "producer_a",
                "UPDATE message_stub SET max_sends = 1 WHERE message_id = %s",
                [wanted[3]],
            )

    counts = ramped.resend()

    assert counts["batches_stopped"] == 1 and "published" not in counts
    ((case_id, kind, topic, state, summary, evidence),) = cases(ramped)
    assert (kind, topic, state) == ("ramp_stopped", TOPIC, "open")
    assert f"1 {harm.replace('_', ' ')} ({wanted[3]})" in summary and "after 4 messages" in summary
    assert evidence["examples"] == {harm: [wanted[3]]} and evidence["done"] == 3
    assert ramped.sql("control", "SELECT count(*) FROM alert WHERE case_id = %s", [case_id]) == [
        (1,)
    ]
    assert batch(ramped)["state"] == "stopped"

    ramped.resend()
    assert out(ramped) == wanted[:4] and len(cases(ramped)) == 1, (
        "it sends nothing more, and asks once"
    )

    decided(ramped, case_id, "go_on")
    ramped.resend()
    assert out(ramped) == wanted[:8], "a canary again, not the step it had grown to"
    confirm(ramped, *wanted[4:8])
    ramped.resend()
    assert out(ramped) == wanted


def test_a_batch_given_up_is_closed_and_only_a_person_asks_for_it_again(ramped: World) -> None:
    wanted = asked(ramped, 10)
    ramped.resend()
    ramped.consume(wanted[0], "billing", state="PARKED")
    ramped.resend()
    ((case_id, *_),) = cases(ramped)
    assert decided(ramped, case_id, "give_up") == {"given_up": 6}
    assert batch(ramped)["state"] == "given_up" and ramped.requests() == {
        "sent": 4,
        "not_needed": 6,
    }
    assert "ann: because" in ramped.request(wanted[9])["error"]

    assert ramped.ask(wanted[4:], ramped=True) == {"already_asked": 6}
    ramped.resend()
    assert out(ramped) == wanted[:4]
    assert ramped.ask([wanted[9]], by="case 7", ramped=True) == {"reopened": 1}
    ramped.resend()
    assert out(ramped) == [*wanted[:4], wanted[9]]


def test_what_was_asked_for_after_the_form_was_shown_is_not_given_up_and_begins_a_batch_of_its_own(
    ramped: World,
) -> None:
    wanted = asked(ramped, 10)
    ramped.resend()
    ramped.consume(wanted[0], "billing", state="PARKED")
    ramped.resend()
    ((case_id, *_),) = cases(ramped)
    ramped.sql(
        "control",
        "UPDATE resend_request SET state = 'not_needed' WHERE message_id = %s",
        [wanted[9]],
    )
    ((at,),) = ramped.sql("control", "SELECT clock_timestamp()")
    late = asked(ramped, 6, prefix="z")
    assert ramped.ask([wanted[9]], ramped=True) == {"reopened": 1}
    shown = {"at": at.isoformat()}
    assert decided(ramped, case_id, "give_up", shown=shown) == {"given_up": 5}
    assert ramped.request(late[0])["state"] == "open"
    ramped.resend()
    begun = batch(ramped)
    assert (begun["state"], begun["step_size"], begun["case_id"]) == ("ramping", CANARY, None)
    assert len(out(ramped)) == 2 * CANARY


def test_what_a_dead_worker_held_of_a_batch_given_up_is_not_sent_when_it_is_free_again(
    ramped: World,
) -> None:
    wanted = asked(ramped, 10)
    ramped.resend(limit=2)
    held = "UPDATE resend_request SET state = 'claimed', claim_token = gen_random_uuid(), claim_deadline = now() + interval '1 h'"
    ramped.sql("control", f"{held} WHERE message_id = %s", [wanted[2]])
    ramped.consume(wanted[0], "billing", state="PARKED")
    assert ramped.resend()["batches_stopped"] == 1
    ((case_id, *_),) = cases(ramped)
    decided(ramped, case_id, "give_up")
    ramped.expire_claims()
    ramped.resend()
    ramped.resend()
    closed = ramped.request(wanted[2])
    assert closed["state"] == "not_needed" and "ann: because" in closed["error"]
    assert out(ramped) == wanted[:2]
    assert ramped.ask([wanted[2]], ramped=True) == {"already_asked": 1}
    assert ramped.ask([wanted[2]], by="case 7", ramped=True) == {"reopened": 1}
    ramped.resend()
    assert out(ramped) == wanted[:3]


@pytest.mark.parametrize("person_asks_again", [False, True])
def test_what_a_live_worker_hands_back_of_a_batch_given_up_is_closed_unless_a_person_asks_again(
    ramped: World, person_asks_again: bool
) -> None:
    wanted = asked(ramped, 10)
    ramped.resend(limit=2)

    def give_up() -> None:
        ramped.consume(wanted[0], "billing", state="PARKED")
        with ramped.run(TOPIC) as beside:
            assert run_once(ramped.settings, ramped.connections, beside)["batches_stopped"] == 1
        ((case_id, *_),) = cases(ramped)
        assert decided(ramped, case_id, "give_up") == {"given_up": 6}
        if person_asks_again:
            assert ramped.ask(wanted[2:4], by="case 7", ramped=True) == {"already_asked": 2}
        raise StoreUnavailable("away", unaffected="", next_step="")

    assert ramped.hooked_resend({"sizes before": once(give_up)})["handed_back"] == 2
    ramped.resend()
    states = {ramped.request(message_id)["state"] for message_id in wanted[2:4]}
    assert states == ({"sent"} if person_asks_again else {"not_needed"})
    assert out(ramped) == wanted[: 4 if person_asks_again else 2]


def test_of_what_a_live_worker_hands_back_only_the_group_that_was_asked_for_again_is_open(
    ramped: World,
) -> None:
    wanted = ids(10)
    ramped.stubs(wanted)
    ramped.ask(wanted, groups=("billing", "shipping"), ramped=True)
    ramped.resend(limit=2)

    def give_up() -> None:
        ramped.consume(wanted[0], "billing", state="PARKED")
        with ramped.run(TOPIC) as beside:
            assert run_once(ramped.settings, ramped.connections, beside)["batches_stopped"] == 1
        ((case_id, *_),) = cases(ramped)
        decided(ramped, case_id, "give_up")
        ramped.ask([wanted[2]], groups=("billing",), by="case 7", ramped=True)
        raise StoreUnavailable("away", unaffected="", next_step="")

    assert ramped.hooked_resend({"sizes before": once(give_up)})["handed_back"] == 2
    again, given_up = (ramped.request(message_id) for message_id in wanted[2:4])
    assert (again["state"], again["groups"]) == ("open", ["billing"])
    assert (given_up["state"], given_up["groups"]) == ("not_needed", ["billing", "shipping"])


def test_what_a_stopped_batch_had_released_and_not_sent_waits_as_well(ramped: World) -> None:
    wanted = asked(ramped, 10)
    ramped.resend(limit=2)
    assert out(ramped) == wanted[:2]
    ramped.consume(wanted[0], "billing", state="PARKED")
    assert ramped.resend()["batches_stopped"] == 1
    assert out(ramped) == wanted[:2]
    ((case_id, *_),) = cases(ramped)
    decided(ramped, case_id, "go_on")
    ramped.resend()
    assert out(ramped) == wanted[:6], "one canary, and not also what the stopped step had released"


def test_two_runs_at_once_release_one_step(ramped: World) -> None:
    wanted = asked(ramped, 30)
    ramped.resend()
    confirm(ramped, *wanted[:4])
    ready = threading.Barrier(3)
    done: list[Counts] = []

    def one(*topics: str) -> None:
        with ramped.run(*topics) as run:
            ready.wait()
            done.append(run_once(ramped.settings, ramped.connections, run))

    threads = [
        threading.Thread(target=one, args=topics) for topics in ((), (TOPIC,), (OTHER, TOPIC))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts.get("released", 0) for counts in done) == 8
    assert out(ramped) == wanted[:12] and batch(ramped)["step"] == 2


def test_a_step_judged_by_a_run_that_woke_up_late_releases_nothing(ramped: World) -> None:
    wanted = asked(ramped, 30)
    ramped.resend()
    confirm(ramped, *wanted[:4])

    def meanwhile() -> None:
        with ramped.run(TOPIC) as other:
            prepare_alone(ramped, other)

    def prepare_alone(world: World, run: Any) -> None:
        with world.worker(run) as worker:
            assert prepare(worker)["released"] == 8

    with ramped.run() as run, ramped.worker(run, {"stub_table after": once(meanwhile)}) as worker:
        assert "released" not in prepare(worker)
    assert batch(ramped)["step"] == 2


def test_a_paused_topics_batch_stays_where_it_is(ramped: World) -> None:
    wanted = asked(ramped, 10)
    ramped.resend()
    confirm(ramped, *wanted[:4])
    ramped.sql(
        "control", "INSERT INTO pause (topic, paused_by, why) VALUES (%s, 'ann', 'x')", [TOPIC]
    )
    assert ramped.resend() == {}
    assert batch(ramped)["step"] == 1


def test_a_shard_that_is_away_proves_nothing(ramped: World) -> None:
    wanted = asked(ramped, 10)
    ramped.resend()
    confirm(ramped, *wanted[:4])
    good = ramped.urls["backstop_producer_a"]
    ramped.urls["backstop_producer_a"] = "postgresql://u:p@127.0.0.1:9/x"
    with pytest.raises(Exception, match="shop_a"):
        ramped.resend()
    assert batch(ramped)["step"] == 1
    ramped.urls["backstop_producer_a"] = good
    ramped.resend()
    assert batch(ramped)["step"] == 2


def test_a_canary_of_zero_switches_the_ramp_off(world: World) -> None:
    world.set("policy", "canary", to=4)
    wanted = asked(world, 30)
    world.set("policy", "canary", to=0)
    world.resend()
    assert out(world) == wanted


def test_a_dry_run_shows_what_is_held_and_releases_nothing(ramped: World) -> None:
    asked(ramped, 10)
    told: list[str] = []
    assert (
        ramped.resend(dry_run=True, tell=lambda planned: told.append(str(planned)))["would_send"]
        == 10
    )
    assert len(told) == 10 and all("held until a step" in line for line in told)
    assert ramped.sql("control", "SELECT count(*) FROM resend_request WHERE held") == [(10,)]


def letter(world: World, message_id: str, entry_id: str = "*", group: str = "billing") -> None:
    """The group's queue of dead letters holds the message; `entry_id` 1-0: since 1970."""
    world.raw.xadd(
        world.keys.dead(TOPIC, group),
        {
            "headers": json.dumps({"backstop-message-id": message_id, "backstop-topic": TOPIC}),
            "origin-topic": TOPIC,
            "origin-group": group,
        },
        id=entry_id,
    )


def test_messages_dead_lettered_before_the_ramp_do_not_stop_it_and_a_new_letter_does(
    ramped: World,
) -> None:
    wanted = ids(12)
    ramped.stubs(wanted)
    for number, message_id in enumerate(wanted, 1):
        letter(ramped, message_id, f"1-{number}")
    ramped.ask(wanted, by="case 1", ramped=True)
    ramped.resend()
    assert out(ramped) == wanted[:4], "a person sends what is dead-lettered"
    assert ramped.resend()["batches_waiting"] == 1 and cases(ramped) == []
    confirm(ramped, *wanted[:4])
    ramped.resend()
    assert out(ramped) == wanted and cases(ramped) == [], (
        "the log proves the copy; the old letter says nothing"
    )
    letter(ramped, wanted[5])
    assert ramped.resend()["batches_stopped"] == 1
    ((_, kind, _, _, summary, evidence),) = cases(ramped)
    assert kind == "ramp_stopped" and f"1 dead lettered ({wanted[5]})" in summary
    assert evidence["harm"] == {"dead_lettered": 1}


def test_letters_that_were_drained_count_as_those_in_the_queue(ramped: World) -> None:
    wanted = ids(12)
    ramped.stubs(wanted)
    for message_id in wanted:
        ramped.sql("control", INSERT, letter_values(message_id, age="1 hour"))
    ramped.ask(wanted, by="case 1", ramped=True)
    ramped.resend()
    confirm(ramped, *wanted[:4])
    ramped.resend()
    assert out(ramped) == wanted and cases(ramped) == [], "they died long before the step"
    ramped.sql("control", INSERT, letter_values(wanted[5], age="0 seconds"))
    assert ramped.resend()["batches_stopped"] == 1


def test_a_step_waits_when_nobody_can_say_how_old_its_dead_letters_are(
    ramped: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ids(12)
    ramped.stubs(wanted)
    for number, message_id in enumerate(wanted, 1):
        for group in ("billing", "shipping"):
            letter(ramped, message_id, f"1-{number}", group)
    ramped.ask(wanted, by="case 1", ramped=True)
    ramped.resend(limit=1)
    confirm(ramped, *out(ramped))
    answers = RedisStreams.dead_letters

    def gone_since_the_judge_looked(
        self: RedisStreams, group: str, **options: Any
    ) -> Iterator[DeadLetterRef]:
        if sys._getframe(2).f_code.co_filename.endswith(
            "earlier_dead_letters.py"
        ):  # behind what guards each broker
            raise BrokerUnavailable(
                "The broker is away.", unaffected="All.", next_step="Bring it back."
            )
        return answers(self, group, **options)

    with monkeypatch.context() as away, pytest.raises(Unavailable, match="broker"):
        away.setattr(RedisStreams, "dead_letters", gone_since_the_judge_looked)
        ramped.resend()
    assert batch(ramped)["step"] == 1 and out(ramped) == wanted[:4], "not one of the next step"


def test_a_message_parked_before_its_step_is_left_behind_and_the_ramp_goes_on(
    ramped: World,
) -> None:
    wanted = asked(ramped, 10)
    for group in ("billing", "shipping"):
        ramped.consume(wanted[0], group, state="PARKED")
    ramped.resend()
    assert out(ramped) == wanted[1:4] and ramped.request(wanted[0])["state"] == "open"
    confirm(ramped, *wanted[1:4])
    ramped.resend()
    assert out(ramped) == wanted[1:] and cases(ramped) == []
