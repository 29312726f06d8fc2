"""Ordered consumption on real parts: order by key, parking and release, owned queues and their fence."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg2
import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import (
    Consumer,
    DownstreamAway,
    KeptConnection,
    Limits,
    Retries,
    Work,
    acknowledge,
    leased,
    ordered_peers,
    read_owned,
    row_lock,
    suspects,
    transactional,
)
from backstop.client.blame import Blame
from backstop.leases import parking, queue_owner
from backstop.leases.guard import begin, complete, fail, renew_many
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.parking import InOrder
from backstop.leases.queue_owner import QueueLost, share_of
from backstop.model.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DecisionRefused,
    LeaseLost,
    StoreUnavailable,
)
from backstop.model.records import GROUPS_HEADER, ID_HEADER, Counts, Message
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, Database, broker, consumer, postgres, valkey  # noqa: F401
from ordered_world import SOON, OrderedWorld, write_effect


@pytest.fixture
def world(broker: RedisStreams, consumer: Database, valkey: Valkey) -> OrderedWorld:
    made = OrderedWorld(broker, consumer)
    made.valkey = valkey
    return made


def ids(key: str, size: int) -> list[str]:
    return [f"{key}-{n:03}" for n in range(size)]


# Order


def test_messages_of_one_key_are_done_in_order_and_different_keys_at_once(
    world: OrderedWorld,
) -> None:
    keys = [f"k{n}" for n in range(10)]
    world.publish(*(i for n in range(12) for key in keys for i in [f"{key}-{n:03}"]))
    at_once, running, met = count(), set(), threading.Event()

    def handle(connection: Any, message: Message, work: Work) -> None:
        assert message.partition_key not in running, "two of one key at once"
        running.add(message.partition_key)
        if next(at_once) < 2:  # the first two wait for each other
            met.wait(60) if len(running) < 2 else met.set()
        write_effect(connection, message, "w1")
        running.discard(message.partition_key)

    with world.worker(handler=handle) as worker:
        counts = world.step(worker, until=lambda: world.lag() == 0)
    assert met.is_set()
    assert counts["processed"] == 120
    assert {key: world.effects(key) for key in keys} == {key: ids(key, 12) for key in keys}


def test_a_failed_head_is_tried_again_in_place_while_its_followers_wait(
    world: OrderedWorld,
) -> None:
    world.publish(*ids("a", 3), *ids("b", 3))
    failures = {"a-000": 2}

    def handle(connection: Any, message: Message, work: Work) -> None:
        world.handler.tried.append(message.message_id)
        write_effect(connection, message, "w1")
        if failures.get(message.message_id, 0) >= work.attempts:
            raise ValueError("not yet")

    with world.worker(handler=handle) as worker:
        counts = world.step(worker, until=lambda: world.lag() == 0)
    tried = [i for i in world.handler.tried if i.startswith("a")]
    assert tried == ["a-000", "a-000", "a-000", "a-001", "a-002"]
    assert (world.effects("a"), world.effects("b")) == (ids("a", 3), ids("b", 3))
    assert (counts["failed"], world.parked()) == (2, {})


def test_a_copy_sent_again_is_acknowledged_without_effect(world: OrderedWorld) -> None:
    world.publish("a-000", "a-000", "a-001", "a-000")
    with world.worker() as worker:
        counts = world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), counts["done"]) == (["a-000", "a-001"], 2)


def test_what_is_not_for_us_is_acknowledged_and_what_cannot_be_read_or_conflicts_is_a_dead_letter(
    world: OrderedWorld,
) -> None:
    theirs = Message(TOPIC, "theirs", b"{}", {GROUPS_HEADER: json.dumps(["shipping"])})
    world.broker.publish([theirs, Message(TOPIC, "nul", b"{}", partition_key="a\x00b")])
    world.publish("a-000")
    world.publish("a-000", content=b"other")
    with world.worker() as worker:
        counts = world.step(worker, until=lambda: world.lag() == 0)
    assert sorted(str(d.message_id) for d in world.broker.dead_letters(GROUP)) == ["a-000", "nul"]
    assert (world.effects(), counts["not_for_us"], counts["broken"], counts["conflict"]) == (
        ["a-000"],
        1,
        1,
        1,
    )


# Parking


def test_a_poison_message_parks_its_key_and_never_its_queue(world: OrderedWorld) -> None:
    world.handler.failing = {"a-001"}
    world.publish(*(i for n in range(5) for i in (f"a-{n:03}", f"b-{n:03}", f"c-{n:03}")))
    with world.worker() as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.handler.tried.count("a-001") == 3
    assert (world.effects("a"), world.effects("b")) == (["a-000"], ids("b", 5))
    assert world.parked() == {"a": ("PARKED", ["a-001", "a-002", "a-003", "a-004"])}
    assert world.states("a") == {"a-000": "CONSUMED"} | dict.fromkeys(ids("a", 5)[1:], "PARKED")
    (key,) = world.database.run("SELECT last_error FROM parked_key")
    assert key["last_error"] == "ValueError: cannot read a-001"


class Mute(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise KeyError("template")


def test_an_exception_that_cannot_say_its_text_parks_its_key(world: OrderedWorld) -> None:
    def handle(connection: Any, message: Message, work: Work) -> None:
        if message.message_id == "a-000":
            raise Mute
        write_effect(connection, message, "w1")

    world.publish(*ids("a", 2), *ids("b", 2))
    with world.worker(handler=handle) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), world.parked()) == (ids("b", 2), {"a": ("PARKED", ids("a", 2))})


def test_a_handler_that_turned_autocommit_on_is_never_taken_for_done(world: OrderedWorld) -> None:
    """Its end would be committed before the queue's fence was compared."""

    def handle(connection: Any, message: Message, work: Work) -> None:
        connection.commit()
        connection.autocommit = True

    world.publish("a-000")
    with world.worker(handler=handle) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.parked() == {"a": ("PARKED", ["a-000"])}
    assert "autocommit" in world.database.one("SELECT last_error FROM parked_key")["last_error"]


def parked_world(world: OrderedWorld) -> None:
    world.handler.failing = {"a-001"}
    world.publish(*ids("a", 4))
    with world.worker() as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.parked() == {"a": ("PARKED", ["a-001", "a-002", "a-003"])}


def test_a_follower_that_failed_elsewhere_before_is_kept_and_its_queue_goes_on(
    world: OrderedWorld,
) -> None:
    """By a consumer without order, or in another queue of its topic: nobody works on it, so its key's parking takes its log."""
    logs = {"a-001": "FAILED", "a-002": "EXPIRED", "a-003": "CONSUMING"}
    for message_id, state in logs.items():
        assert isinstance(world.begin(message_id), Acquired)
        world.database.run(
            "UPDATE consumer_log SET state = %s WHERE message_id = %s", (state, message_id)
        )
    world.expire_leases()
    zombie = world.begin("a-003")
    assert isinstance(zombie, Acquired)
    world.expire_leases()
    world.handler.failing = {"a-000"}
    world.publish(*ids("a", 600), *ids("b", 5))
    with world.worker() as worker:
        world.step(worker, until=lambda: world.lag() == 0)
        assert world.parked() == {"a": ("PARKED", ids("a", 600))}
        assert (world.states("a"), world.effects()) == (
            dict.fromkeys(ids("a", 600), "PARKED"),
            ids("b", 5),
        )
        stopped = "SELECT sum(duplicates_stopped) AS stopped, sum(conflicts) AS conflicts FROM consumer_log"
        assert world.database.one(stopped) == {"stopped": 0, "conflicts": 0}
        with closing(world.database.connect()) as connection, pytest.raises(LeaseLost):
            complete(connection, zombie)
        world.handler.failing = set()
        world.answer("retry", "a")
        world.step(worker, until=lambda: world.parked() == {})
    assert world.effects("a") == ids("a", 600)


def test_a_follower_that_another_worker_has_waits_for_it_and_one_of_an_older_content_is_over(
    world: OrderedWorld,
) -> None:
    world.publish("a-000")
    world.handler.failing = {"a-000"}
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked())
        held = world.begin("a-001")
        assert isinstance(held, Acquired)
        assert isinstance(world.begin("a-002", content=b"new", content_version=2), Acquired)
        world.database.run("UPDATE consumer_log SET state = 'FAILED' WHERE message_id = 'a-002'")
        world.publish("a-001", "a-002")
        counts = world.step(worker, until=lambda: worker._lanes.waiting() == 2)
        counts += world.step(worker, until=lambda: world.stopped_copies("a-001"))
        assert world.parked() == {"a": ("PARKED", ["a-000"])}
        with closing(world.database.connect()) as connection:
            complete(connection, held)
            connection.commit()
        counts += world.step(worker, until=lambda: world.lag() == 0)
    assert (counts["superseded"], world.parked()["a"][1]) == (1, ["a-000"])
    assert world.states() == {"a-000": "PARKED", "a-001": "CONSUMED", "a-002": "FAILED"}


def test_at_a_limit_a_follower_that_failed_before_stops_its_queue_too(world: OrderedWorld) -> None:
    assert isinstance(world.begin("a-002"), Acquired)
    world.database.run("UPDATE consumer_log SET state = 'FAILED'")
    world.handler.failing = {"a-000"}
    world.publish(*ids("a", 3))
    with world.worker(limits=Limits(messages=2)) as worker:
        world.step(worker, until=lambda: world.stopped())
        assert world.stopped() == [("a", "messages")]
        world.answer("discard key", "a")
        world.handler.failing = set()
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), world.stopped()) == (["a-002"], [])


def test_a_released_key_is_done_in_order_from_its_kept_contents_and_then_free(
    world: OrderedWorld,
) -> None:
    parked_world(world)
    world.handler.failing = set()
    world.answer("retry", "a")
    world.publish("a-004")
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked() == {} and world.lag() == 0)
    assert world.effects("a") == ids("a", 5)
    assert set(world.states().values()) == {"CONSUMED"}


def test_a_released_head_that_fails_is_the_parked_head_again(world: OrderedWorld) -> None:
    parked_world(world)
    world.answer("retry", "a")
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked()["a"][0] == "PARKED")
    assert world.parked() == {"a": ("PARKED", ["a-001", "a-002", "a-003"])}
    assert world.handler.tried.count("a-001") == 4
    assert world.database.one("SELECT times_parked FROM parked_key")["times_parked"] == 2


@pytest.mark.parametrize("end", ["clock_timestamp()", "'-infinity'"])
def test_a_released_head_whose_worker_ended_is_parked_again(world: OrderedWorld, end: str) -> None:
    parked_world(world)
    world.answer("retry", "a")
    world.database.run(
        f"UPDATE consumer_log SET state = 'CONSUMING', lease_expires_at = {end} WHERE message_id = 'a-001'"
    )
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked()["a"][0] == "PARKED")
    assert (world.handler.tried.count("a-001"), world.states()["a-001"]) == (3, "PARKED")


@pytest.mark.parametrize("end", ["NULL", "'infinity'"])
def test_a_released_head_that_is_held_without_an_end_holds_up_no_other_key(
    world: OrderedWorld, end: str
) -> None:
    parked_world(world)
    world.answer("retry", "a")
    world.database.run(
        f"UPDATE consumer_log SET state = 'CONSUMING', lease_expires_at = {end} WHERE message_id = 'a-001'"
    )
    world.publish("b-000")
    with world.worker() as worker:
        world.step(worker, until=lambda: world.effects("b") == ["b-000"])
    assert (world.parked()["a"][0], world.states()["a-001"]) == ("RELEASING", "CONSUMING")


@pytest.mark.parametrize("state", ["EXPIRED", "CONSUMING"])
@pytest.mark.parametrize("most", [1000, 3], ids=["room", "full"])
def test_a_copy_of_a_released_head_whose_worker_ended_waits_and_the_key_is_parked_again(
    world: OrderedWorld, state: str, most: int
) -> None:
    """The copy is read before the release is looked at; the head's content is kept already."""
    parked_world(world)
    world.answer("retry", "a")
    world.database.run(
        "UPDATE consumer_log SET state = %s, lease_expires_at = clock_timestamp() WHERE message_id = 'a-001'",
        (state,),
    )
    world.publish("a-001")
    with world.worker(limits=Limits(messages=most)) as worker:
        world.step(worker, until=lambda: world.parked()["a"][0] == "PARKED")
        world.step(worker, until=lambda: world.lag() == 0)
        assert world.parked() == {"a": ("PARKED", ["a-001", "a-002", "a-003"])}
        assert (world.states()["a-001"], world.stopped()) == ("PARKED", [])
        world.handler.failing = set()
        world.answer("retry", "a")
        world.step(worker, until=lambda: world.parked() == {})
    assert world.effects("a") == ids("a", 4)


@pytest.mark.parametrize(
    ("what", "effects"),
    [
        ("discard head", ["a-000", "a-002", "a-003", "a-004"]),
        ("discard key", ["a-000", "a-004"]),
        ("edit", ids("a", 5)),
    ],
)
def test_a_person_may_discard_the_head_or_the_key_or_edit_the_head(
    world: OrderedWorld, what: str, effects: list[str]
) -> None:
    parked_world(world)
    if what == "edit":
        world.handler.failing = set()
    world.answer(what, "a", b"edited" if what == "edit" else None)
    with pytest.raises(DecisionRefused):
        world.answer("edit", "a", b"twice")
    world.publish("a-001", "a-004")  # a copy of what was discarded, and a new one
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked() == {} and world.lag() == 0)
    assert world.effects("a") == effects
    if what == "edit":
        (row,) = world.database.run("SELECT content FROM ordered_effect WHERE message_id = 'a-001'")
        assert bytes(row["content"]) == b"edited"
    else:
        assert world.states()["a-001"] == "PARKED"


@pytest.mark.parametrize(
    ("what", "effects"),
    [("discard head", ["a-000", "a-002", "a-003"]), ("discard key", ["a-000"])],
)
def test_what_is_being_released_may_still_be_discarded_unless_a_worker_has_its_head(
    world: OrderedWorld, what: str, effects: list[str]
) -> None:
    parked_world(world)
    world.handler.failing = set()
    world.answer("retry", "a")
    log = "UPDATE consumer_log SET state = '{}', lease_expires_at = clock_timestamp() WHERE message_id = 'a-001'"
    for state in ("CONSUMING", "EXPIRED", "FAILED"):
        world.database.run(log.format(state))
        with pytest.raises(DecisionRefused, match=state):
            world.answer(what, "a")
    world.database.run(log.format("PARKED"))
    world.answer(what, "a")  # no consumer lives
    world.publish("a-001")  # a copy of what was discarded
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked() == {} and world.lag() == 0)
    assert world.effects("a") == effects
    assert world.states()["a-001"] == "PARKED"


def test_a_consumer_without_order_refuses_to_work_beside_ordered_ones(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_peers, "LOOK_AGAIN", 0.0)
    subscription = world.broker.subscribe(GROUP, [TOPIC], "plain")
    plain = Consumer(
        subscription,
        world.database.connect,
        GROUP,
        world.handler.by("plain"),
        wait=SOON,
    )
    with closing(plain), closing(subscription):
        world.publish("a-000")
        assert plain.run_once() == {"processed": 1}
        with world.worker() as worker:
            world.step(worker, until=lambda: set(world.owners().values()) == {"w1"})
            world.publish("a-001", "b-001")
            with pytest.raises(ConfigurationError, match="in order"):
                plain.run_once()
            world.step(worker, until=lambda: world.lag() == 0)
            worker._hand_over(Counts())
    rows = world.database.run("SELECT message_id, member FROM ordered_effect ORDER BY 1")
    assert [tuple(row.values()) for row in rows] == [
        ("a-000", "plain"),
        ("a-001", "w1"),
        ("b-001", "w1"),
    ]


def test_the_refusal_beside_ordered_consumers_is_one_statement_and_follows_the_database(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the database is upgraded to a release with ordered consumers while a consumer runs."""
    monkeypatch.setattr(ordered_peers, "LOOK_AGAIN", 0.0)
    asked: list[str] = []

    def note(name: str) -> None:
        called = getattr(queue_owner, name)

        def ask(*given: Any) -> Any:
            asked.append(name)
            return called(*given)

        monkeypatch.setattr(queue_owner, name, ask)

    note("has_members")
    note("ordered_topics")
    store = KeptConnection(world.database.connect, "consumer database")
    with closing(store):
        peers = ordered_peers.OrderedPeers(store, GROUP)
        world.database.run("ALTER TABLE group_member RENAME TO not_yet")
        try:
            peers.refuse([TOPIC])
        finally:
            world.database.run("ALTER TABLE not_yet RENAME TO group_member")
        peers.refuse([TOPIC])
        peers.refuse([TOPIC])
        assert asked == ["has_members", "has_members", "ordered_topics", "ordered_topics"]
        with world.worker() as worker:
            worker.step(Counts())
            with pytest.raises(ConfigurationError, match="in order"):
                peers.refuse([TOPIC])
    assert asked[4:] == ["ordered_topics"]


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        (Limits(keys=1), "keys"),
        (Limits(messages=3), "messages"),
        (Limits(bytes=3 * 4), "bytes"),
    ],
    ids=["keys", "messages", "bytes"],
)
def test_at_a_limit_the_queue_stops_and_goes_on_after_the_answer_with_nothing_lost(
    world: OrderedWorld, limits: Limits, reached: str
) -> None:
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    world.handler.failing = {"a-000", "b-000"} if reached == "keys" else {"a-000"}
    world.publish(*ids("a", 5), *ids("b", 3), *ids("c", 9))
    with world.worker(limits=limits) as worker:
        world.step(worker, until=lambda: world.stopped() and len(world.effects("c")) == 9)
        assert [why for _, why in world.stopped()] == [reached]
        world.publish("d-000")
        for _ in range(20):
            world.step(worker, until=count().__next__)  # one round
        assert (world.effects("d"), world.lag() > 0) == ([], True), (
            "a queue that stopped is not read"
        )
        world.handler.failing = set()
        (parked,) = world.parked()
        world.answer("retry", parked)
        world.step(worker, until=lambda: world.lag() == 0 and world.parked() == {})
    assert {key: world.effects(key) for key in "abcd"} == {
        "a": ids("a", 5),
        "b": ids("b", 3),
        "c": ids("c", 9),
        "d": ["d-000"],
    }
    assert world.stopped() == []


def test_a_key_that_waits_with_many_followers_keeps_no_other_key_of_its_queue_from_being_read(
    world: OrderedWorld,
) -> None:
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    away = [True]

    def handle(connection: Any, message: Message, work: Work) -> None:
        if away and message.partition_key == "a":
            raise StoreUnavailable("the database of tenant a", unaffected="", next_step="")
        write_effect(connection, message, "w1")

    world.publish(*ids("a", 40), "b-000")
    with world.worker(handler=handle, fetch=20) as worker:
        world.step(worker, until=lambda: world.effects() == ["b-000"])
        assert world.parked() == {}
        away.clear()
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.effects("a") == ids("a", 40)


@pytest.mark.parametrize(
    "says_so", [False, True], ids=["by the number of keys", "by the handler's word"]
)
def test_while_a_downstream_is_away_nothing_is_parked_and_the_queue_goes_on_when_it_is_back(
    world: OrderedWorld, says_so: bool
) -> None:
    away, tried = threading.Event(), count()
    away.set()

    def handle(connection: Any, message: Message, work: Work) -> None:
        next(tried)
        write_effect(connection, message, "w1")
        if away.is_set():
            raise DownstreamAway("the bank") if says_so else ConnectionError("the bank")

    keys = "ab" if says_so else "abcdef"
    world.publish(*(i for key in keys for i in ids(key, 4)))
    with world.worker(handler=handle) as worker:
        world.step(worker, until=lambda: next(tried) > 60)
        assert (world.parked(), world.effects()) == ({}, [])
        away.clear()
        world.step(worker, until=lambda: world.lag() == 0)
    assert {key: world.effects(key) for key in keys} == {key: ids(key, 4) for key in keys}
    assert world.parked() == {}


def test_poison_keys_of_a_quiet_topic_are_parked_although_most_keys_of_a_window_fail(
    world: OrderedWorld,
) -> None:
    """A good message comes every eleven seconds: three of six keys fail within thirty."""
    now, poison = [0.0], {"a-000", "b-000", "c-000"}
    world.handler.failing = poison
    world.publish(*poison)
    with world.worker(blame=Blame(clock=lambda: now[0])) as worker:
        for n in range(30):
            good, before = f"good{n}-000", len(world.handler.tried)
            world.publish(good)
            world.step(worker, until=lambda good=good: good in world.effects())
            world.step(
                worker,
                until=lambda before=before: (
                    len(world.parked()) == 3 or len(world.handler.tried) > before + 3
                ),
            )
            now[0] += 11.0
        assert world.parked().keys() == {"a", "b", "c"}
    assert world.effects() == [f"good{n}-000" for n in range(30)]


def test_poison_at_a_limit_is_no_downstream_and_is_parked_once_there_is_room(
    world: OrderedWorld,
) -> None:
    now, poison = [0.0], [f"{key}-000" for key in "abcd"]
    world.publish(*(f"{key}-000" for key in "efghijklmn"))
    with world.worker(limits=Limits(keys=1), blame=Blame(clock=lambda: now[0])) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
        now[0], world.handler.failing = 1.0, set(poison)
        world.publish(*poison)

        def stand_at_the_limit() -> bool:
            # The third try of each asks for its parking.
            return sum(world.handler.tried.count(one) > 4 for one in poison) == 3

        world.step(worker, until=stand_at_the_limit)
        now[0], tried = 40.0, len(world.handler.tried)
        world.step(worker, until=lambda: len(world.handler.tried) > tried + 12)
        assert world.database.run("SELECT * FROM downstream_away") == []
        (first,) = world.parked()
        world.answer("discard key", first)
        world.step(worker, until=lambda: set(world.parked()) - {first})


def test_a_message_that_kills_its_process_each_time_is_parked_without_another_try(
    world: OrderedWorld,
) -> None:
    world.publish("a-000", "a-001")
    with world.worker() as first:
        first._pool.submit = lambda task: None  # type: ignore[method-assign]  # it dies in the handler
        world.step(first, until=lambda: world.states() == {"a-000": "CONSUMING"})
    world.database.run("UPDATE consumer_log SET attempts = 3")
    world.expire_queues()
    world.expire_leases()
    with world.worker("w2") as second:
        world.step(second, until=lambda: world.lag() == 0)
    assert (world.handler.tried, world.parked()) == ([], {"a": ("PARKED", ["a-000", "a-001"])})
    assert world.database.one("SELECT last_error FROM parked_key") == {
        "last_error": parking.CRASHED
    }


def test_a_key_whose_parking_was_cut_off_is_parked_with_its_handlers_error(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    park, cut_off = parking.park, [True]

    def away_once(*given: Any) -> None:
        if cut_off:
            cut_off.clear()
            raise StoreUnavailable("the consumer database", unaffected="", next_step="")
        park(*given)

    monkeypatch.setattr(parking, "park", away_once)
    world.handler.failing = {"a-000"}
    world.publish("a-000")
    with world.worker(lease=timedelta(seconds=1)) as worker:
        with pytest.raises(StoreUnavailable):
            world.step(worker, until=world.parked)
        world.step(worker, until=world.parked)
    assert (world.handler.tried, world.parked()) == (["a-000"] * 3, {"a": ("PARKED", ["a-000"])})
    errors = "SELECT k.last_error AS key, l.last_error AS log FROM parked_key k, consumer_log l"
    said = "ValueError: cannot read a-000"
    assert world.database.one(errors) == {"key": said, "log": said}


def test_a_head_that_failed_too_often_elsewhere_is_parked_with_the_error_that_was_recorded(
    world: OrderedWorld,
) -> None:
    for _ in range(4):
        failed = world.begin("a-000")
        assert isinstance(failed, Acquired)
        with closing(world.database.connect()) as connection:
            fail(connection, failed, "ValueError: no rate")
            connection.commit()
    world.publish("a-000")
    with world.worker() as worker:
        world.step(worker, until=world.parked)
    assert world.handler.tried == []
    assert world.database.one("SELECT last_error FROM parked_key") == {
        "last_error": "ValueError: no rate"
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_that_kills_its_process_parks_its_own_key_and_not_what_was_in_work_beside_it(
    world: OrderedWorld,
) -> None:
    """Each life of a worker ends when a task of the pool enters the killer's handler; what the others had begun expires."""
    others = [f"{key}-000" for key in "bcdefgh"]
    world.publish("a-000", "a-001", *others)
    lives = 0
    while world.lag():
        lives += 1
        assert lives < 20, world.states()
        died = threading.Event()

        def handle(connection: Any, message: Message, work: Work, died: Any = died) -> None:
            if message.message_id == "a-000":
                died.set()
            if died.wait(0.05):  # all threads of a process end with it: nothing is committed
                raise _Died
            write_effect(connection, message, "w")

        with suppress(_Died), world.worker(f"w{lives}", handle) as worker:
            report = worker._results.put
            worker._results.put = (  # type: ignore[method-assign]  # nor does the dead one hear of it
                lambda result, died=died, report=report: died.is_set() or report(result)
            )
            world.step(worker, until=lambda died=died: died.is_set() or world.lag() == 0)
            if died.is_set():
                raise _Died
        world.expire_queues()
        world.expire_leases()
    assert world.parked() == {"a": ("PARKED", ["a-000", "a-001"])}
    assert sorted(world.effects()) == others


def test_a_suspect_that_hangs_holds_up_the_others_for_a_bounded_time_only(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "ALONE_FOR", 0.5)
    hangs, go_on = threading.Event(), threading.Event()

    def handle(connection: Any, message: Message, work: Work) -> None:
        if message.message_id in ("a-000", "b-000"):
            hangs.set()
            assert go_on.wait(300)
        write_effect(connection, message, "w2")

    world.publish("a-000", "b-000")
    with world.worker() as first:
        first._pool.submit = lambda task: None  # type: ignore[method-assign]  # it dies in the handlers
        world.step(first, until=lambda: list(world.states().values()) == ["CONSUMING"] * 2)
    world.expire_queues()
    world.expire_leases()
    others = [f"{key}-000" for key in "cdefgh"]
    with world.worker("w2", handle) as worker:
        try:
            world.step(worker, until=hangs.is_set)
            world.publish(*others)
            world.step(worker, until=lambda: sorted(world.effects()) == others)
        finally:
            go_on.set()
        world.step(worker, until=lambda: world.lag() == 0)
    assert (len(world.effects()), world.parked()) == (8, {})


class _Died(BaseException):
    """The end of a process, as its threads see it."""


def test_a_database_that_went_away_during_each_try_parks_nothing(world: OrderedWorld) -> None:
    """A try that its database did not let end is no failure of the message."""
    tries = count(1)

    def handle(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        if next(tries) <= 5:
            connection.close()

    world.publish("a-000", "a-001")
    counts = Counts()
    with world.worker(handler=handle, lease=timedelta(seconds=30)) as worker:
        deadline = time.monotonic() + 240
        while world.lag() and time.monotonic() < deadline:
            worker.step(counts)
            worker._wait_for_result(0.01)
            if not worker._in_pool:
                world.expire_leases()
    assert counts["unavailable"] == 5, counts
    assert (world.parked(), world.effects()) == ({}, ["a-000", "a-001"])


def test_a_message_that_ends_its_own_connection_each_time_parks_its_key(
    world: OrderedWorld,
) -> None:
    """Its database answers every time: it is the message, and not an outage."""

    def handle(connection: Any, message: Message, work: Work) -> None:
        if message.message_id == "a-000":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        write_effect(connection, message, "w1")

    world.publish(*ids("a", 2), *ids("b", 2))
    with world.worker(handler=handle) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), world.parked()) == (ids("b", 2), {"a": ("PARKED", ids("a", 2))})


@pytest.mark.parametrize("way", [transactional, leased])
def test_a_handler_that_says_another_database_is_away_parks_no_key_and_is_not_counted(
    world: OrderedWorld, way: Any
) -> None:
    away, told = [True], []

    def handle(*given: Any) -> None:
        message: Message = given[-2]
        if away and message.message_id == "a-000":
            told.append(message)
            raise StoreUnavailable("the shop's database", unaffected="", next_step="")
        if way is transactional:
            write_effect(given[0], message, "w1")

    world.publish(*ids("a", 2), *ids("b", 2))
    with world.worker(handler=way(handle)) as worker:
        world.step(worker, until=lambda: len(told) > 8 or world.parked())
        assert world.parked() == {}
        away.clear()
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.states() == dict.fromkeys(ids("a", 2) + ids("b", 2), "CONSUMED")
    assert world.database.one("SELECT attempts FROM consumer_log WHERE message_id = 'a-000'") == {
        "attempts": 1
    }


@pytest.mark.parametrize("way", [transactional, leased])
def test_another_database_that_is_away_for_many_keys_is_a_downstream_and_parks_nothing(
    world: OrderedWorld, way: Any
) -> None:
    away, told = [True], Counts()

    def handle(*given: Any) -> None:
        message: Message = given[-2]
        if away:
            told.add(message.message_id)
            raise StoreUnavailable("the shop's database", unaffected="", next_step="")
        if way is transactional:
            write_effect(given[0], message, "w1")

    heads = [f"{key}-000" for key in "abcd"]
    world.publish(*heads)
    with world.worker(handler=way(handle)) as worker:
        counts = world.step(worker, until=lambda: all(told.get(head, 0) >= 4 for head in heads))
        said = world.database.run("SELECT topic, error FROM downstream_away")
        assert [row["topic"] for row in said] == [TOPIC]
        assert "the shop's database" in said[0]["error"]
        assert (world.parked(), counts["downstream_away"] > 0) == ({}, True)
        away.clear()
        world.step(worker, until=lambda: world.lag() == 0)
        assert world.database.run("SELECT 1 FROM downstream_away") == []
    assert world.database.run("SELECT DISTINCT state, attempts FROM consumer_log") == [
        {"state": "CONSUMED", "attempts": 1}
    ]


def test_a_thread_that_gets_no_connection_is_no_failure_of_its_message(world: OrderedWorld) -> None:
    refusals = iter(range(8))

    def connect() -> Any:
        if next(refusals, None) is not None:
            raise psycopg2.OperationalError("too many clients already")
        return world.database.connect()

    world.publish("a-000")
    with world.worker() as worker:
        worker._pool._connect = connect  # the main thread has its own
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), world.parked()) == (["a-000"], {})


def test_an_error_of_what_opens_connections_is_no_failure_of_a_message(world: OrderedWorld) -> None:
    class VaultDown(Exception):
        pass

    refusals = iter(range(8))

    def connect() -> Any:
        if next(refusals, None) is not None:
            raise VaultDown
        return world.database.connect()

    world.publish("a-000")
    with world.worker() as worker:
        worker._pool._connect = connect  # the main thread has its own
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), world.parked()) == (["a-000"], {})


def test_a_dead_letter_that_the_broker_refuses_holds_up_nothing_and_is_not_done_before(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter(range(3))
    world.broker.publish([Message(TOPIC, "nul", b"{}", partition_key="a\x00b")])
    world.publish(*ids("b", 3))
    with world.worker() as worker:
        bury = worker._acknowledgements._subscription.bury

        def refuse(received: Any, error: str) -> bool:
            assert not worker._finished.knows(received)
            if next(refusals, None) is not None:
                raise BrokerUnavailable("not taken", unaffected="all", next_step="wait")
            return bool(bury(received, error))

        monkeypatch.setattr(worker._acknowledgements._subscription, "bury", refuse)
        world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), next(refusals, None)) == (ids("b", 3), None)
    assert [str(d.message_id) for d in world.broker.dead_letters(GROUP)] == ["nul"]


def test_a_broker_that_does_not_answer_is_asked_for_one_dead_letter_a_round(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledge, "SILENT_AFTER", 0.05)
    world.broker.publish(
        [Message(TOPIC, f"nul-{n}", b"{}", partition_key="a\x00b") for n in range(20)]
    )
    asked: list[Any] = []

    def silent(received: Any, error: str) -> bool:
        asked.append(received)
        time.sleep(0.1)
        raise BrokerUnavailable("it is silent", unaffected="all", next_step="wait")

    with world.worker() as worker:
        bury = worker._acknowledgements._subscription.bury
        monkeypatch.setattr(worker._acknowledgements._subscription, "bury", silent)
        world.step(worker, until=lambda: asked)
        assert len(asked) == 1, "each would wait for an answer, and no queue would be renewed"
        monkeypatch.setattr(worker._acknowledgements._subscription, "bury", bury)
        world.step(worker, until=lambda: world.lag() == 0)
    assert len(list(world.broker.dead_letters(GROUP))) == 20


def test_what_is_not_in_hand_any_more_is_not_buried_nor_taken_for_finished(
    world: OrderedWorld,
) -> None:
    """It comes again, to its next owner or to this one, and becomes a dead letter then."""
    world.broker.publish([Message(TOPIC, "nul", b"{}", partition_key="a\x00b")])
    with world.worker() as worker:
        bury, seen = worker._acknowledgements._subscription.bury, []

        def once_gone(received: Any, error: str) -> bool:
            seen.append(received)
            return len(seen) > 1 and bool(bury(received, error))

        worker._acknowledgements._subscription.bury = once_gone  # type: ignore[method-assign]
        world.step(worker, until=lambda: bool(seen))
        assert not worker._finished.knows(seen[0])
        assert bury(seen[0], "late") is True and bury(seen[0], "again") is False
    assert [str(d.message_id) for d in world.broker.dead_letters(GROUP)] == ["nul"]


def test_what_no_database_can_hold_is_a_dead_letter_and_stops_neither_its_key_nor_its_queue(
    world: OrderedWorld,
) -> None:
    """A foreign program writes entries; behind a parked key they would have to be kept."""
    world.publish("a-000")
    world.handler.failing = {"a-000"}
    server = redis.Redis.from_url(world.valkey.url())
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked())
        (stream,) = [
            stream
            for queue in range(2)
            if server.xlen(stream := world.broker._keys.stream(TOPIC, queue))
        ]
        ((_, entry),) = server.xrange(stream)

        def add(message_id: str, headers: dict[str, str] | None = None, **fields: bytes) -> None:
            named = json.dumps({ID_HEADER: message_id, **(headers or {})}).encode()
            given = {name.encode(): value for name, value in fields.items()}
            server.xadd(stream, {**entry, b"headers": named, **given})

        incompressible = random.Random(1).randbytes(1_500).hex().encode()
        add("a-001", tag=b"x\0y")
        add("a-002", epoch=incompressible)
        add("a-003", {GROUPS_HEADER: "[" * 5_000})
        add("a-004")
        add("b-000", {GROUPS_HEADER: "[" * 5_000}, key=b"b")
        add("b-001", epoch=incompressible, key=b"b")
        add("b-002", key=b"b")
        world.step(worker, until=lambda: world.parked()["a"][1] == ["a-000", "a-004"])
        world.step(worker, until=lambda: world.effects("b") == ["b-002"])
    dead = sorted(str(letter.message_id) for letter in world.broker.dead_letters(GROUP))
    assert dead == ["a-001", "a-002", "a-003", "b-000", "b-001"]


# Owned queues


def test_a_queue_is_owned_by_one_member_and_shared_when_another_comes_and_goes(
    world: OrderedWorld,
) -> None:
    world.publish(*(i for n in range(40) for i in ids(f"k{n}", 3)))
    with world.worker("w1") as one, world.worker("w2") as two:
        counts = world.step(one, until=lambda: len(world.effects()) > 30)
        assert set(world.owners().values()) == {"w1"}
        counts += world.step(one, two, until=lambda: set(world.owners().values()) == {"w1", "w2"})
        counts += world.step(one, two, until=lambda: world.lag() == 0)
        one._hand_over(counts)
        assert set(world.owners().values()) == {None, "w2"}
        counts += world.step(two, until=lambda: set(world.owners().values()) == {"w2"})
        assert [row["member"] for row in world.database.run("SELECT member FROM group_member")] == [
            "w2"
        ]
    assert counts["processed"] == 120 and counts.keys().isdisjoint(
        {"done", "done_before", "lease_lost", "fenced"}
    )
    assert (
        sorted(world.handler.tried)
        == sorted(world.effects())
        == sorted(i for n in range(40) for i in ids(f"k{n}", 3))
    )


def test_a_worker_that_lost_its_queue_has_no_effect_and_the_new_owner_does_it_in_order(
    world: OrderedWorld,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert go_on.wait(300)

    world.publish(*ids("a", 3))
    counts = Counts()
    with world.worker("w1", slow) as late, world.worker("w2") as two:
        world.step(late, until=entered.is_set)
        late._keeper._beat_at = time.monotonic() + 60  # it does not know
        world.expire_queues()
        world.step(two, until=lambda: set(world.owners().values()) == {"w2"})
        go_on.set()
        late._wait_for_result(60)
        assert late._results._arrived[0].tried.value == "fenced", (
            "its lease runs, but the queue is another's"
        )
        assert world.effects() == []
        late.step(counts)
        counts += world.step(two, until=lambda: world.lag() == 0)
    rows = world.database.run("SELECT message_id, member FROM ordered_effect ORDER BY number")
    assert [tuple(row.values()) for row in rows] == [(i, "w2") for i in ids("a", 3)]
    assert (counts["fenced"], counts["queues_lost"]) == (1, 1)


def test_a_late_worker_begins_nothing_and_parks_nothing(world: OrderedWorld) -> None:
    world.handler.failing = {"a-000"}
    world.publish(*ids("a", 3), *ids("b", 3), *ids("c", 3), *ids("d", 3))
    with world.worker("w1") as late, world.worker("w2") as two:
        late._start = lambda counts: False  # type: ignore[method-assign]
        for _ in range(5):
            late.step(Counts())
        assert sum(late._lanes.held(holding.queue) for holding in late._queues.held.values()) == 12
        world.expire_queues()
        two._keeper.keep(Counts())
        assert set(world.owners().values()) == {"w2"}
        del late._start
        late._keeper._beat_at = time.monotonic() + 60  # it does not know yet
        counts = Counts()
        late.step(counts)
        assert counts == {"notowner": 4, "queues_lost": 2}
        assert (world.states(), world.handler.tried) == ({}, [])
        world.step(two, until=lambda: world.lag() == 0)
    assert world.parked() == {"a": ("PARKED", ids("a", 3))}
    assert all(world.effects(key) == ids(key, 3) for key in "bcd")


@pytest.fixture
def own(consumer: Database) -> Iterator[Any]:
    with closing(consumer.connect()) as one, closing(consumer.connect()) as two:
        queue_owner.declare(one, GROUP, TOPIC, [0])
        (queue,) = queue_owner.take(
            one, GROUP, TOPIC, "w1", [0], 1, timedelta(0)
        )  # it expires at once
        one.commit()
        yield one, two, queue


def test_fences_grow_although_the_databases_clock_was_set_back(world: OrderedWorld) -> None:
    """What was granted while the clock was an hour ahead is past, for the database and for the broker."""
    fences = "SELECT queue_id, fence FROM queue_owner ORDER BY 1"
    world.publish(*ids("a", 3))
    with world.worker("w1") as late:
        world.step(late, until=lambda: world.lag() == 0)
        world.database.run("UPDATE queue_owner SET fence = fence + 3600000000")
        before = {row["queue_id"]: row["fence"] for row in world.database.run(fences)}
        server = redis.Redis.from_url(world.valkey.url())
        for queue, fence in before.items():
            server.set(world.broker._keys.fence(TOPIC, queue, GROUP), fence)
        world.expire_queues()
        world.publish(*(f"a-{n:03}" for n in range(3, 6)))
        with world.worker("w2") as worker:
            world.step(worker, until=lambda: world.lag() == 0)
            assert set(world.owners().values()) == {"w2"}
            for queue in before:
                assert late._reader._subscription.fetch((TOPIC, queue), before[queue], 10) is None
    after = {row["queue_id"]: row["fence"] for row in world.database.run(fences)}
    assert all(after[queue] > fence for queue, fence in before.items())
    assert world.effects("a") == ids("a", 6)


def test_a_takeover_leaves_a_queue_whose_fence_was_compared_and_a_renewal_does_not_wait(
    world: OrderedWorld, own: Any
) -> None:
    one, two, queue = own
    queue_owner.compare(one, queue)
    assert queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1) == [], (
        "its owner's transaction is about to commit"
    )
    assert queue_owner.renew(two, GROUP, "w1", [queue], timedelta(0)) == {queue}
    two.commit()
    one.commit()
    (taken,) = queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)
    two.commit()
    assert taken.fence > queue.fence
    with pytest.raises(QueueLost):
        queue_owner.compare(one, queue)
    assert queue_owner.renew(one, GROUP, "w1", [queue]) == set()


def test_a_fence_that_is_compared_while_another_takes_the_queue_is_refused(
    world: OrderedWorld, own: Any
) -> None:
    one, two, queue = own
    queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)
    assert meanwhile(world, lambda: queue_owner.held(one, [queue]), two.commit) == set()


def test_who_lost_a_queue_says_neither_that_it_stopped_nor_that_it_goes_on(
    world: OrderedWorld, own: Any
) -> None:
    one, two, lost = own
    (queue,) = queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)
    parking.stop_queue(two, queue, "k", "messages")
    two.commit()
    parking.go_on(one, lost)
    one.commit()
    assert world.stopped() == [("k", "messages")]
    parking.go_on(two, queue)
    two.commit()
    parking.stop_queue(one, lost, "k", "messages")
    one.commit()
    assert world.stopped() == []


def test_a_handler_that_fails_after_the_drain_does_not_hide_that_its_queue_stands(
    world: OrderedWorld,
) -> None:
    entered, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        if message.message_id == "b-000":
            entered.set()
            assert go_on.wait(300)
        raise ValueError(message.message_id)

    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    world.publish("b-000", *ids("a", 5))
    soon, limits = timedelta(milliseconds=300), Limits(messages=2)
    with (
        world.worker("w1", slow, drain_within=soon, limits=limits) as late,
        world.worker("w2", limits=limits) as two,
    ):
        leaving = threading.Thread(target=late.run, args=(stop,))
        leaving.start()
        try:
            assert entered.wait(60)
            deadline = time.monotonic() + 60
            while not world.stopped():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            stop.set()
            world.step(two, until=lambda: any(h.stopped_by for h in two._queues.held.values()))
        finally:
            stop.set()
            go_on.set()
            leaving.join(60)
        assert world.stopped() == [("a", "messages")]


def meanwhile(world: OrderedWorld, ask: Callable[[], Any], then: Callable[[], None]) -> Any:
    """What is answered to somebody who waits for a lock until `then`; or the error."""
    answers: list[Any] = []

    def asking() -> None:
        try:
            answers.append(ask())
        except LeaseLost as error:
            answers.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    watch = world.database.connect()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with closing(watch), watch, watch.cursor() as cursor:
        deadline = time.monotonic() + 60
        while cursor.execute(waiting) or cursor.fetchone() == (0,):
            assert time.monotonic() < deadline, "it did not wait"
    then()
    thread.join(60)
    (answer,) = answers
    return answer


@pytest.mark.parametrize("error", [None, "the shop's database is away"])
def test_a_renewal_brings_back_no_head_that_was_set_back(
    world: OrderedWorld, own: Any, error: str | None
) -> None:
    one, two, _ = own
    lease = begin(one, GROUP, TOPIC, "a-000")
    assert isinstance(lease, Acquired)
    one.commit()
    parking.set_back(one, lease, error, released=False)
    renewed = meanwhile(world, lambda: renew_many(two, GROUP, [lease]), one.commit)
    assert renewed == set()
    assert isinstance(begin(two, GROUP, TOPIC, "a-000"), Acquired)


@pytest.mark.parametrize("what", ["renewed", "taken over", "of a queue that is taken"])
def test_a_head_that_ends_while_its_log_or_its_queue_changes_ends_by_what_it_is_then(
    world: OrderedWorld, own: Any, what: str
) -> None:
    one, two, queue = own
    message = Message(TOPIC, "a-000", b"{}", partition_key="a")
    lease = begin(one, GROUP, TOPIC, "a-000")
    assert isinstance(lease, Acquired)
    one.commit()
    head = InOrder(queue, "a", message, Arrival(TOPIC, "a-000"))
    if what == "renewed":
        assert renew_many(two, GROUP, [lease]) == {lease}
    elif what == "taken over":
        with two.cursor() as cursor:
            cursor.execute("UPDATE consumer_log SET owner_token = gen_random_uuid()")
    else:
        queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)
    answer = meanwhile(world, lambda: parking.complete(one, head, lease), two.commit)
    one.commit() if answer is None else one.rollback()
    assert type(answer) is {"renewed": type(None), "taken over": LeaseLost}.get(what, QueueLost)
    assert world.states() == {"a-000": "CONSUMED" if what == "renewed" else "CONSUMING"}


def test_a_worker_that_stands_still_after_the_comparison_is_ended_by_the_server(
    world: OrderedWorld, own: Any
) -> None:
    one, two, queue = own
    queue_owner.compare(one, queue, timedelta(milliseconds=50))
    deadline = time.monotonic() + 60
    while not (taken := queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)):
        two.commit()
        assert time.monotonic() < deadline, "one frozen worker keeps the queue from everybody"
    assert taken[0].fence > queue.fence


def test_a_member_that_stands_still_in_its_beat_holds_up_no_other(
    world: OrderedWorld, own: Any
) -> None:
    one, two, queue = own
    queue_owner.join(one, GROUP, TOPIC, "w1", [0], timedelta(0))
    one.commit()
    queue_owner.renew(one, GROUP, "w1", [queue], timedelta(0))
    queue_owner.join(one, GROUP, TOPIC, "w1", [0])  # and nothing more
    with two.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '5s'")
    assert queue_owner.join(two, GROUP, TOPIC, "w2", [0]) == {"w2": 0}
    assert queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1) == []
    two.commit()
    one.commit()
    assert set(queue_owner.join(two, GROUP, TOPIC, "w2", [0])) == {"w1", "w2"}


def test_a_queue_that_somebody_is_taking_is_lost_and_its_renewal_does_not_wait(
    world: OrderedWorld, own: Any
) -> None:
    one, two, queue = own
    (taken,) = queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1)  # and stands still
    with one.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '5s'")
    assert queue_owner.renew(one, GROUP, "w1", [queue]) == set()
    two.commit()
    assert taken.fence > queue.fence


def test_a_member_that_stands_still_in_its_beat_is_ended_by_the_server(
    world: OrderedWorld, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, queue = own
    monkeypatch.setattr(queue_owner, "idle_limit", lambda *_: "50")
    assert queue_owner.renew(one, GROUP, "w1", [queue], timedelta(0)) == {queue}
    deadline = time.monotonic() + 60
    while not queue_owner.take(two, GROUP, TOPIC, "w2", [0], 1):
        two.commit()
        assert time.monotonic() < deadline, "one frozen member keeps its queue from everybody"


def test_a_member_that_stands_still_with_a_parked_key_is_ended_by_the_server(
    world: OrderedWorld, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = own
    monkeypatch.setattr(queue_owner, "idle_limit", lambda *_: "50")
    world.database.run(
        "INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)"
        f" VALUES ('{GROUP}', '{TOPIC}', 'a', 0, 'PARKED', 0, 0)"
    )
    assert set(parking._lock_keys(one, GROUP, [(TOPIC, "a")])) == {(TOPIC, "a")}
    with two.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '10s'")
    assert set(parking._lock_keys(two, GROUP, [(TOPIC, "a")])) == {(TOPIC, "a")}


def test_entries_whose_answer_was_lost_and_those_of_a_dead_owner_are_adopted_in_order(
    world: OrderedWorld,
) -> None:
    world.publish(*ids("a", 6))
    (queue,) = [q for q, lag in world.broker.lag(TOPIC, GROUP).items() if lag]
    place = (TOPIC, queue)
    with world.broker.subscribe_owned(GROUP, [TOPIC], "dead") as dead:
        assert len(dead.fetch(place, 7, 2) or []) == 2
    with world.broker.subscribe_owned(GROUP, [TOPIC], "w1") as next_one:
        found = next_one.fetch(place, 8, 3)
        assert [one.message.message_id for one in found or []] == ["a-000", "a-001", "a-002"]
        assert dead.fetch(place, 7, 2) is None, "a lower fence reads nothing any more"
        next_one._adopted[place, 8] = b"-"  # an answer was lost on its way here
        next_one._in_hand[place].pop(found[1].broker_id)  # type: ignore[index]
        found = next_one.fetch(place, 8, 10)
        assert [one.message.message_id for one in found or []] == [
            "a-001",
            "a-003",
            "a-004",
            "a-005",
        ]


@pytest.mark.parametrize(
    ("members", "shares"),
    [
        ({"a": 0}, {"a": 5}),
        ({"a": 5, "b": 0}, {"a": 3, "b": 2}),
        ({"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": 2, "b": 2, "c": 0}, {"a": 2, "b": 2, "c": 1}),
        (dict.fromkeys("abcdef", 1), {"a": 1, "f": 0}),
    ],
)
def test_every_member_computes_the_same_shares_and_as_few_queues_as_possible_move(
    members: dict[str, int], shares: dict[str, int]
) -> None:
    assert {member: share_of(member, members, 5) for member in shares} == shares
    assert sum(share_of(member, members, 5) for member in members) == 5


def test_a_queue_is_drained_while_its_lease_lasts(world: OrderedWorld) -> None:
    for drain_within, within in ((30.0, 4.5), (2.0, 2.0)):
        lease = {
            "queue_lease": timedelta(seconds=5),
            "drain_within": timedelta(seconds=drain_within),
        }
        with world.worker(**lease) as worker:  # type: ignore[arg-type]
            assert worker._queues.drain_within == timedelta(seconds=within)


def test_what_cannot_keep_order_is_refused_before_it_starts(world: OrderedWorld) -> None:
    for values in (
        {"handler": row_lock(lambda *_: None)},
        {"workers": 0},
        {"retries": Retries(0)},
        {"beat": timedelta(seconds=2), "queue_lease": timedelta(seconds=5)},
    ):
        with pytest.raises(ConfigurationError), world.worker(**values):  # type: ignore[arg-type]
            pass


def test_a_leased_handler_is_called_in_order_and_its_end_is_fenced(world: OrderedWorld) -> None:
    called: list[str] = []
    world.publish(*ids("a", 3))
    with world.worker(
        handler=leased(lambda message, work: called.append(message.message_id))
    ) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert called == ids("a", 3)
    assert set(world.states().values()) == {"CONSUMED"}


def test_a_leased_handler_during_which_the_server_ends_an_idle_connection_is_done_once(
    world: OrderedWorld,
) -> None:
    called: list[str] = []

    def handle(message: Message, work: Work) -> None:
        called.append(message.message_id)
        world.database.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle' AND pid <> pg_backend_pid()"
        )

    world.publish(*ids("a", 2))
    with world.worker(handler=leased(handle), workers=1) as worker:
        counts, deadline = Counts(), time.monotonic() + 60
        while world.lag():
            assert time.monotonic() < deadline, counts
            with suppress(StoreUnavailable):  # the connection of its main thread
                worker.step(counts)
            worker._wait_for_result(0.01)
    assert (called, world.parked()) == (ids("a", 2), {})


def test_a_consumer_that_is_stopped_does_not_begin_what_waits_for_a_thread(
    world: OrderedWorld,
) -> None:
    entered, stop = threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert work.stopping.wait(60)

    world.publish("a-000", "b-000")
    with world.worker(handler=slow, workers=1) as worker:
        running = threading.Thread(target=worker.run, args=(stop,))
        running.start()
        assert entered.wait(60)
        deadline = time.monotonic() + 60
        while len(worker._in_pool) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        stop.set()
        running.join(60)
        assert not running.is_alive()
    assert len(world.effects()) == 1
    assert sorted(world.states().values()) == ["CONSUMED", "EXPIRED"]
    assert set(world.owners().values()) == {None}


def test_a_leased_head_that_lost_its_lease_while_it_waited_for_a_thread_is_not_begun(
    world: OrderedWorld,
) -> None:
    called: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    def handle(message: Message, work: Work) -> None:
        called.append(message.message_id)
        entered.set()
        assert go_on.wait(300)

    world.publish("a-000", "b-000")
    with world.worker(handler=leased(handle), workers=1) as late:
        world.step(late, until=lambda: entered.is_set() and len(late._in_pool) == 2)
        held = dict(late._leases._held)
        (waits,) = [lease for lease in held if lease.message_id not in called]
        world.expire_leases()
        assert isinstance(world.begin(waits.message_id), Acquired)  # by another worker
        held[waits].lost.set()  # as when no renewal was answered for as long as it lasts
        go_on.set()
        world.step(late, until=lambda: not late._in_pool)
    assert waits.message_id not in called


def test_a_consumer_that_is_stopped_finishes_what_is_in_handlers_and_releases_its_queues(
    world: OrderedWorld,
) -> None:
    entered, stop = threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert work.stopping.wait(60)

    world.publish(*ids("a", 3))
    with world.worker(handler=slow) as worker:
        running = threading.Thread(target=worker.run, args=(stop,))
        running.start()
        assert entered.wait(60)
        stop.set()
        running.join(60)
        assert not running.is_alive()
    assert (world.effects(), world.states()) == (["a-000"], {"a-000": "CONSUMED"})
    assert set(world.owners().values()) == {None}
    with world.worker("w2") as two:
        counts = world.step(two, until=lambda: world.lag() == 0)
    assert (world.effects(), counts["processed"]) == (ids("a", 3), 2)
    assert SOON.total_seconds() < 1


# Strict order


def test_a_handler_that_outlasts_the_drain_has_no_effect_and_its_queue_goes_on(
    world: OrderedWorld,
) -> None:
    """The drain has a limit; after it the fence decides."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert go_on.wait(300)

    mine, counts, stop = ids("a", 3), Counts(), threading.Event()
    world.publish(*mine)
    soon = timedelta(milliseconds=300)
    with (
        world.worker("w1", slow, drain_within=soon) as late,
        world.worker("w2") as two,
    ):
        leaving = threading.Thread(target=lambda: late.run(stop, counts=counts))
        leaving.start()
        try:
            assert entered.wait(60)
            stop.set()
            world.step(two, until=lambda: set(world.owners().values()) == {"w2"})
            world.publish("b-000")  # other keys of the queue go on; this one's lease is renewed
            world.step(two, until=lambda: world.effects() == ["b-000"])
        finally:
            go_on.set()
            leaving.join(60)
        world.step(two, until=lambda: world.lag() == 0)
    assert world.effects("a") == mine
    members = world.database.run("SELECT DISTINCT member FROM ordered_effect")
    assert [row["member"] for row in members] == ["w2"]
    assert counts["fenced"] == 1 and "processed" not in counts


def test_a_queue_with_too_many_open_messages_is_not_read_on_until_they_are_done(
    world: OrderedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_owned, "MOST_GAPS", 2)
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    go_on = threading.Event()

    def handle(connection: Any, message: Message, work: Work) -> None:
        if message.message_id.startswith("slow"):
            assert go_on.wait(300)
        write_effect(connection, message, "w1")

    def gaps() -> int:
        return worker._finished.gaps((TOPIC, 0))

    with world.worker(handler=handle) as worker:
        try:
            world.publish(*(i for n in range(3) for i in (f"slow{n}-000", f"a{n}-000")))
            world.step(worker, until=lambda: gaps() == 3)
            world.publish("b-000")
            rounds = count()
            world.step(worker, until=lambda: next(rounds) > 20)
            assert world.effects("b") == []
        finally:
            go_on.set()
        world.step(worker, until=lambda: world.lag() == 0)
        assert (world.effects("b"), gaps()) == (["b-000"], 0)


def test_in_strict_order_a_queue_waits_for_a_failed_message_and_parks_nothing(
    world: OrderedWorld,
) -> None:
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    in_turn = [f"{key}-{n:03}" for n in range(3) for key in "abc"]
    world.publish(*in_turn)
    world.handler.failing = {"b-001"}
    with world.worker(strict=True) as worker:
        counts = world.step(worker, until=lambda: world.handler.tried.count("b-001") > 5)
        assert (world.effects(), world.parked(), counts["suspended"] >= 2) == (
            in_turn[:4],
            {},
            True,
        )
        world.handler.failing = set()
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.effects() == in_turn


def test_in_strict_order_queues_take_turns_and_followers_of_a_key_that_was_parked_are_kept(
    world: OrderedWorld,
) -> None:
    parked_world(world)
    world.publish("a-004", *ids("b", 20), *ids("c", 20))
    with world.worker(strict=True, workers=1) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.parked() == {"a": ("PARKED", ["a-001", "a-002", "a-003", "a-004"])}
    assert (world.effects("b"), world.effects("c")) == (ids("b", 20), ids("c", 20))


def test_messages_of_a_topic_that_was_made_again_are_done_whatever_is_still_in_hand_of_the_old_one(
    world: OrderedWorld,
) -> None:
    """A new life of a queue gives the same entry ids once more."""
    world.publish("a-0", "b-0")
    world.handler.failing = {"a-0", "b-0"}
    patient = Retries(3, timedelta(seconds=1), timedelta(seconds=1))
    with world.worker(retries=patient) as worker:
        world.step(worker, until=lambda: len(set(world.handler.tried)) == 2)
        world.broker.delete_topic(TOPIC)
        world.broker.create_topic(TOPIC, 2)
        world.broker.create_group(GROUP, TOPIC, "start")
        world.publish("a-1", "b-1")
        world.handler.failing = set()
        world.step(worker, until=lambda: len(world.effects()) == 4 and world.lag() == 0)
    assert (world.effects("a"), world.effects("b")) == (["a-0", "a-1"], ["b-0", "b-1"])


# Done-sets


def test_a_restored_database_is_asked_again_whatever_was_finished_before(
    world: OrderedWorld,
) -> None:
    mine = ids("a", 6)
    with world.worker(lease=timedelta(seconds=1)) as worker:
        world.publish(*mine)
        world.step(worker, until=lambda: world.lag() == 0)
        # As an older self: the last logs and effects are gone, and connections were cut. The group's place is set back.
        world.database.run("DELETE FROM consumer_log WHERE message_id > 'a-002'")
        world.database.run("DELETE FROM ordered_effect WHERE message_id > 'a-002'")
        world.database.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        server = redis.Redis.from_url(world.valkey.url())
        for queue in range(len(world.owners())):
            server.xgroup_setid(world.broker._keys.stream(TOPIC, queue), GROUP, "0")
        stop = threading.Event()
        running = threading.Thread(target=worker.run, args=(stop,))
        running.start()
        deadline = time.monotonic() + 240
        while world.effects() != mine and time.monotonic() < deadline:
            time.sleep(0.02)
        stop.set()
        running.join(120)
    assert world.effects() == mine
    assert set(world.states().values()) == {"CONSUMED"}


def test_a_database_restored_behind_a_pooler_that_keeps_its_clients_is_asked_again(
    world: OrderedWorld,
) -> None:
    """No connection of the client breaks, as with a PgBouncer that waits for its server: only the server's life differs."""
    mine = ids("a", 6)
    with world.worker() as worker:
        world.publish(*mine)
        world.step(worker, until=lambda: world.lag() == 0)
        assert all(world.states().values())
        world.database.run("DELETE FROM consumer_log WHERE message_id > 'a-002'")
        world.database.run("DELETE FROM ordered_effect WHERE message_id > 'a-002'")
        worker._keeper._server_life = "the server before"
        worker._keeper._beat_at = float("inf")  # the messages come before the next renewal
        worker._finished._fetched.clear()
        server = redis.Redis.from_url(world.valkey.url())
        for queue in range(len(world.owners())):
            server.xgroup_setid(world.broker._keys.stream(TOPIC, queue), GROUP, "0")
        world.step(worker, until=lambda: world.effects() == mine and world.lag() == 0)
    assert set(world.states().values()) == {"CONSUMED"}


@pytest.mark.parametrize("is_restored", [False, True])
def test_what_was_finished_in_another_life_of_the_database_is_not_handed_over(
    world: OrderedWorld, is_restored: bool
) -> None:
    """Behind a pooler the database may become an older self between the last renewal and the release."""
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    world.handler.failing = {"a-000"}
    world.publish("a-000", "b-000")
    hour, counts = timedelta(hours=1), Counts()
    with world.worker(retries=Retries(3, hour, hour)) as worker:
        world.step(worker, until=lambda: worker._finished.saved((TOPIC, 0)))
        world.step(worker, until=lambda: "a-000" in world.handler.tried and not worker._in_pool)
        worker._keeper.keep(counts, leaving=True)
        if is_restored:
            worker._keeper._server_life = "the server before"
        worker._keeper.release_drained()
    released = world.database.one("SELECT owner, finished IS NULL AS is_empty FROM queue_owner")
    assert released == {"owner": None, "is_empty": is_restored}


def test_what_was_fetched_when_the_database_went_away_is_done_before_what_comes_after_it(
    world: OrderedWorld,
) -> None:
    """The database is asked whether it is the same one before a known message is taken for finished."""
    mine = ids("a", 5)
    with world.worker() as worker:
        world.publish(*mine[:3])
        world.step(worker, until=lambda: world.lag() == 0)
        world.publish(mine[3])
        server = redis.Redis.from_url(world.valkey.url())
        for queue in range(len(world.owners())):
            server.xgroup_setid(world.broker._keys.stream(TOPIC, queue), GROUP, "0")
        worker._keeper._beat_at = float("inf")  # the messages come before the next renewal
        worker._looked_at = time.monotonic()
        world.database.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        counts = Counts()
        with pytest.raises(StoreUnavailable):
            worker.step(counts)
        assert worker.in_process() == 4
        world.publish(mine[4])
        counts = world.step(worker, until=lambda: world.lag() == 0)
    assert (world.effects(), counts["done"]) == (mine, 3)


def test_another_message_at_a_finished_offset_is_not_taken_for_the_finished_one(
    world: OrderedWorld,
) -> None:
    world.publish("a-000")
    with world.worker() as worker:
        world.step(worker, until=lambda: world.lag() == 0)
        ((_, ids),) = worker._finished._ids.items()
        ids[max(ids) + 1] = "another life's"
        world.publish("a-001")
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.effects() == ["a-000", "a-001"]


def test_what_nobody_does_leaves_no_gap_and_what_was_done_above_an_open_message_is_handed_over(
    world: OrderedWorld,
) -> None:
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    theirs = [
        Message(TOPIC, f"theirs-{n}", b"{}", {GROUPS_HEADER: json.dumps(["shipping"])})
        for n in range(50)
    ]
    world.broker.publish(
        [
            one
            for n in range(50)
            for one in (theirs[n], Message(TOPIC, f"a-{n:03}", b"{}", partition_key="a"))
        ]
    )
    entered, go_on = threading.Event(), threading.Event()

    def handle(connection: Any, message: Message, work: Work) -> None:
        if message.message_id == "slow-000":
            entered.set()
            assert go_on.wait(300)
        write_effect(connection, message, "w1")

    with world.worker(handler=handle) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
        assert worker._finished.gaps((TOPIC, 0)) == 0
        world.publish("slow-000", "b-000", "b-001")
        world.step(
            worker, until=lambda: (worker._finished.saved((TOPIC, 0)) or "").count("b-00") == 2
        )
        assert (entered.is_set(), worker._finished.gaps((TOPIC, 0))) == (True, 1)
        saved = worker._finished.saved((TOPIC, 0))
        go_on.set()
        world.step(worker, until=lambda: world.lag() == 0)
        assert worker._finished.saved((TOPIC, 0)) is None, "nothing is open below what is done"
    assert saved is not None
    ((epoch, ids),) = json.loads(saved).items()
    assert sorted(ids.values()) == ["b-000", "b-001"]
    world.database.run("UPDATE queue_owner SET finished = %s::jsonb", (saved,))
    world.expire_queues()
    with world.worker("w2") as two:
        world.step(two, until=lambda: set(world.owners().values()) == {"w2"})
        assert two._finished._ids[TOPIC, 0, epoch] == {
            int(offset): whose for offset, whose in ids.items()
        }


def test_what_comes_again_and_is_known_leaves_no_gap(world: OrderedWorld) -> None:
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    world.publish("a-000", "b-000", "b-001")
    world.handler.failing, hour = {"a-000"}, timedelta(hours=1)
    with world.worker(retries=Retries(3, hour, hour)) as worker:
        worker._acknowledgements._subscription.acknowledge = lambda received: (
            None
        )  # lost on their way
        world.step(
            worker, until=lambda: (worker._finished.saved((TOPIC, 0)) or "").count("b-00") == 2
        )
        worker._hand_over(Counts())
    world.handler.failing = set()
    with world.worker("w2") as two:
        counts = world.step(two, until=lambda: world.lag() == 0)
        assert (counts["done_before"], two._finished.saved((TOPIC, 0))) == (2, None)


def test_a_queue_is_handed_over_whose_dead_letter_has_an_id_that_no_database_holds(
    world: OrderedWorld,
) -> None:
    """It lies behind an unfinished message, so the next owner would be told that it is finished."""
    world.publish("a-000")
    world.handler.failing = {"a-000"}
    server = redis.Redis.from_url(world.valkey.url())
    streams = [world.broker._keys.stream(TOPIC, queue) for queue in range(2)]
    (stream,) = [one for one in streams if server.xlen(one)]
    ((_, entry),) = server.xrange(stream)
    server.xadd(stream, {**entry, b"headers": json.dumps({ID_HEADER: "a\x00b"}).encode()})
    hour = timedelta(hours=1)
    with world.worker(retries=Retries(3, hour, hour)) as worker:
        world.step(worker, until=lambda: list(world.broker.dead_letters(GROUP)))
        world.step(worker, until=lambda: world.handler.tried and not worker._in_pool)
        worker._hand_over(Counts())
    assert world.owners() == {0: None, 1: None}
    assert world.database.run("SELECT 1 FROM queue_owner WHERE finished IS NOT NULL") == []
    world.handler.failing = set()
    with world.worker("w2") as two:
        world.step(two, until=lambda: world.lag() == 0)
    assert (world.effects(), len(list(world.broker.dead_letters(GROUP)))) == (["a-000"], 1)


def test_a_list_of_what_is_finished_goes_on_through_owners_that_read_nothing(
    world: OrderedWorld,
) -> None:
    """Of a queue that is taken for a release alone, or handed on at once, nobody has read."""
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, 1)
    world.broker.create_group(GROUP, TOPIC, "start")
    world.handler.failing = {"a-000"}
    world.publish("a-000", "a-001")
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked())
        worker._hand_over(Counts())
    world.handler.failing = set()
    saved = json.dumps({"e": {"7": "x-000"}})
    world.database.run("UPDATE queue_owner SET finished = %s::jsonb", (saved,))
    with world.worker("w2") as two:
        world.step(two, until=lambda: two._finished._ids)
        two._hand_over(Counts())
    world.broker.delete_topic(TOPIC)
    world.answer("retry", "a")
    world.database.run("UPDATE queue_owner SET updated_at = updated_at - interval '1 hour'")
    world.database.run("UPDATE queue_owner SET expires_at = expires_at - interval '1 hour'")
    with world.worker("w3") as three:
        three._queues.since = float("-inf")
        counts = world.step(
            three, until=lambda: world.parked() == {} and world.owners() == {0: None}
        )
    assert counts["queues_taken_to_release"] == 1
    assert world.database.one("SELECT finished FROM queue_owner")["finished"] == json.loads(saved)


# A broker that assigns the queues


class Assigning:
    """A subscription whose broker says which queues are this consumer's."""

    assigns = True

    def __init__(self, *queues: int) -> None:
        self.assigned, self.let_go = list(queues), []

    def over(self, inner: Any) -> Any:
        self._inner = inner
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def queues(self) -> dict[str, list[int]]:
        return {TOPIC: list(self.assigned)}

    def forget(self, queue: Any) -> None:
        self.let_go.append(queue)
        self._inner.forget(queue)


def test_what_the_broker_assigns_is_taken_and_what_it_revokes_is_drained_and_then_let_go(
    world: OrderedWorld,
) -> None:
    first, second = Assigning(0, 1), Assigning()
    with (
        world.worker("w1", through=first.over) as one,
        world.worker("w2", through=second.over) as two,
    ):
        world.step(one, two, until=lambda: world.owners() == {0: "w1", 1: "w1"})
        world.publish(*(f"k{n}-{m:03}" for m in range(8) for n in range(6)))
        entered, go_on = threading.Event(), threading.Event()
        world.handler.tried.clear()
        submit = one._pool.submit

        def hold(task: Any) -> None:
            submit(lambda store: (entered.set(), go_on.wait(300), task(store))[2])

        one._pool.submit = hold  # type: ignore[method-assign]
        world.step(one, until=entered.is_set)
        first.assigned, second.assigned = [0], [1]
        for _ in range(20):
            world.step(one, two, until=count().__next__)
        assert world.owners()[1] == "w1" and first.let_go == [], "its handlers have not ended"
        go_on.set()
        world.step(
            one, two, until=lambda: world.owners() == {0: "w1", 1: "w2"} and world.lag() == 0
        )
        assert first.let_go == [(TOPIC, 1)]
    assert {key: world.effects(key) for key in (f"k{n}" for n in range(6))} == {
        f"k{n}": ids(f"k{n}", 8) for n in range(6)
    }
    assert len(world.handler.tried) == 48, "nothing was tried twice"
