"""Ordered consumption where queues, servers and entries are not what they should be: gone, refused, restored, foreign.

What is parked is answered without its queue; one queue, topic or entry that is odd costs only itself.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg2
import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams, receive_owned
from backstop.brokers.redis_streams.keys import queue_of
from backstop.client import Limits, Work
from backstop.client.finished import MOST_LIVES
from backstop.leases import parking, queue_owner
from backstop.leases.guard import begin
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.parking import InOrder
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Counts, Message
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, Database, broker, consumer, postgres, valkey  # noqa: F401
from ordered_world import OrderedWorld, write_effect

FIRST, SECOND = (next(k for k in "abcdef" if queue_of(k, 2) == queue) for queue in (0, 1))
"""A key of each of the topic's two queues."""


@pytest.fixture
def world(broker: RedisStreams, consumer: Database, valkey: Valkey) -> OrderedWorld:
    made = OrderedWorld(broker, consumer)
    made.valkey = valkey
    return made


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which queues a topic has is asked in each round."""
    monkeypatch.setattr(receive_owned, "QUEUES_SECONDS", 0.0)


def ids(key: str, size: int) -> list[str]:
    return [f"{key}-{n:03}" for n in range(size)]


def make_again(world: OrderedWorld, queues: int) -> None:
    """The topic with so many queues; what was in it is gone."""
    world.broker.delete_topic(TOPIC)
    world.broker.create_topic(TOPIC, queues)
    world.broker.create_group(GROUP, TOPIC, "start")


def rounds(world: OrderedWorld, number: int, *workers: Any) -> Counts:
    made = count(1)
    return world.step(*workers, until=lambda: next(made) > number)


def age(world: OrderedWorld) -> None:
    """Nobody has wanted the queues for longer than a lease."""
    world.database.run(
        "UPDATE queue_owner SET state = 'FREE', owner = NULL, updated_at = updated_at - interval '1 hour',"
        " expires_at = expires_at - interval '1 hour'"
    )
    world.database.run("DELETE FROM group_member")


@pytest.mark.parametrize("left", [1, 0], ids=["fewer queues", "no topic"])
def test_a_key_that_was_parked_in_a_queue_that_is_gone_is_released_by_any_consumer(
    world: OrderedWorld, left: int
) -> None:
    key = SECOND
    mine = ids(key, 4)
    world.handler.failing = {mine[1]}
    world.publish(*mine)
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked().get(key, ("", []))[1] == mine[1:])
    world.handler.failing = set()
    if left:
        make_again(world, left)
        mine.append(f"{key}-004")
        world.publish(mine[-1])  # in the queue that is left, and behind the parked key
    else:
        world.broker.delete_topic(TOPIC)
    world.answer("retry", key)
    with world.worker("w2") as two:
        counts = rounds(world, 10, two)
        assert world.effects(key) == mine[:1], "a queue that was just let go is left to its owner"
        assert counts.get("queues_taken_to_release", 0) == 0
        age(world)
        two._queues.held.clear()
        counts = rounds(world, 10, two)
        assert counts.get("queues_taken_to_release", 0) == 0, "it has only just started"
        two._queues.since = float("-inf")
        counts = world.step(two, until=lambda: world.parked() == {})
        if left:
            world.step(two, until=lambda: world.lag() == 0)
        rounds(world, 5, two)
        assert counts["queues_taken_to_release"] == 1
        assert world.owners()[1] is None, "it is let go after the release"
    assert world.effects(key) == mine
    assert set(world.states().values()) == {"CONSUMED"}


def test_a_released_head_of_a_queue_that_is_gone_is_parked_again_where_it_fails(
    world: OrderedWorld,
) -> None:
    key = SECOND
    world.handler.failing = {f"{key}-000"}
    world.publish(*ids(key, 2))
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked().get(key, ("", []))[1] == ids(key, 2))
    make_again(world, 1)
    world.answer("retry", key)
    age(world)
    with world.worker("w2") as two:
        two._queues.since = float("-inf")
        world.step(two, until=lambda: world.parked()[key][0] == "PARKED")
        rounds(world, 5, two)
        assert world.owners()[1] is None
        world.answer("discard key", key)
        assert world.parked() == {}, "a discard needs neither the queue nor a consumer"
    assert world.effects() == []


def test_a_queue_that_comes_back_while_a_key_of_it_is_released_is_read_by_its_owner(
    world: OrderedWorld, looks_often: None
) -> None:
    key = SECOND
    mine = ids(key, 3)
    world.handler.failing = {mine[0]}
    world.publish(*mine)
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked().get(key, ("", []))[1] == mine)
    world.handler.failing = set()
    make_again(world, 1)
    age(world)
    world.answer("retry", key)
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        entered.set()
        assert go_on.wait(300)
        write_effect(connection, message, "w2")

    with world.worker("w2", slow) as two:
        two._queues.since = float("-inf")
        world.step(two, until=entered.is_set)
        make_again(world, 2)
        mine.append(f"{key}-003")
        world.publish(mine[-1])
        rounds(world, 5, two)
        assert two._queues.held[TOPIC, 1].draining, "it is drained, to be taken as any other"
        go_on.set()
        world.step(two, until=lambda: world.parked() == {} and world.lag() == 0)
        assert not two._queues.held[TOPIC, 1].releases_only
    assert world.effects(key) == mine


def test_members_of_a_topic_with_fewer_queues_than_before_share_those_that_are_left(
    world: OrderedWorld, looks_often: None
) -> None:
    """Who holds more of the queues that are gone must not be counted as somebody who has enough."""
    make_again(world, 4)
    with world.worker("w1") as one, world.worker("w2") as two:
        world.step(one, until=lambda: set(world.owners().values()) == {"w1"})
        world.step(one, two, until=lambda: len(set(world.owners().values())) == 2)
        held = [{number for _, number in each._queues.held} for each in (one, two)]
        make_again(world, 2)
        world.publish(*ids(FIRST, 3), *ids(SECOND, 3))
        world.step(
            one,
            two,
            until=lambda: (
                len({world.owners()[0], world.owners()[1], None}) == 3
                and world.owners()[2] is world.owners()[3] is None
            ),
        )
        world.step(one, two, until=lambda: world.lag() == 0)
        assert sorted(map(len, held)) == [2, 2]
    assert (world.effects(FIRST), world.effects(SECOND)) == (ids(FIRST, 3), ids(SECOND, 3))


def test_a_queue_whose_stream_was_deleted_holds_up_no_other_and_its_keys_are_released(
    world: OrderedWorld,
) -> None:
    world.handler.failing = {f"{SECOND}-000"}
    world.publish(*ids(SECOND, 2))
    server = redis.Redis.from_url(world.valkey.url())
    with world.worker() as worker:
        world.step(worker, until=lambda: world.parked().get(SECOND, ("", []))[1] == ids(SECOND, 2))
        server.delete(world.broker._keys.stream(TOPIC, 1))
        world.publish(*ids(FIRST, 3))
        world.handler.failing = set()
        world.answer("retry", SECOND)
        counts = world.step(
            worker,
            until=lambda: len(world.effects()) == 5 and worker._queues.held[TOPIC, 1].refusals > 1,
        )
    assert counts["queues_unread"] >= 1 and "unavailable" not in counts
    assert (world.effects(FIRST), world.effects(SECOND)) == (ids(FIRST, 3), ids(SECOND, 2))


def test_a_topic_that_is_not_there_holds_up_no_other(world: OrderedWorld) -> None:
    world.publish(*ids(FIRST, 3))
    with world.worker(topics=("nothing", TOPIC)) as worker:
        world.step(worker, until=lambda: world.lag() == 0)
    assert world.effects() == ids(FIRST, 3)


def test_a_topic_that_is_refused_leaves_the_broker_heard_and_its_queues_as_they_were(
    world: OrderedWorld, looks_often: None
) -> None:
    """Also where nothing comes in the other topics: else all queues were released, for nobody who could read more."""
    world.broker.create_topic("refused", 2)
    world.broker.create_group(GROUP, "refused", "start")
    server, topics = redis.Redis.from_url(world.valkey.url()), (TOPIC, "refused")
    with world.worker(topics=topics) as worker:
        world.step(worker, until=lambda: len(worker._queues.held) == 4)
        server.rename(world.broker._keys.topic("refused"), "kept")
        server.set(world.broker._keys.topic("refused"), "no hash")
        spoiled_at = time.monotonic()
        world.step(worker, until=lambda: worker._keeper._heard_at > spoiled_at)
        assert worker._keeper.topics == {TOPIC: [0, 1], "refused": [0, 1]}
        assert len(worker._queues.held) == 4
    world.publish(*ids(FIRST, 3))
    with world.worker("w2", topics=topics) as worker:  # it never knew the queues of the other
        world.expire_queues()
        world.step(worker, until=lambda: world.lag() == 0)
        assert worker._keeper.topics == {TOPIC: [0, 1]}
        server.rename("kept", world.broker._keys.topic("refused"))
        world.step(worker, until=lambda: len(worker._queues.held) == 4)
    assert world.effects() == ids(FIRST, 3)


def test_a_topic_whose_acknowledgements_are_refused_holds_up_no_other(world: OrderedWorld) -> None:
    world.broker.create_topic("refused", 1)
    world.broker.create_group(GROUP, "refused", "start")
    server, stream = (
        redis.Redis.from_url(world.valkey.url()),
        world.broker._keys.stream("refused", 0),
    )

    def handle(connection: Any, message: Message, work: Any) -> None:
        write_effect(connection, message, "w1")
        if message.topic == "refused":
            server.rename(stream, "kept")
            server.set(stream, "no stream")

    world.broker.publish([Message("refused", "r-000", b"{}", partition_key="r")])
    with world.worker(handler=handle, topics=(TOPIC, "refused")) as worker:
        deadline, is_published = time.monotonic() + 60, False
        while world.lag() or not is_published:
            assert time.monotonic() < deadline
            if not is_published and server.type(stream) == b"string":
                world.publish(*ids(FIRST, 20))
                is_published = True
            with suppress(BrokerUnavailable):  # while it has heard of nothing else
                worker.step(Counts())
            worker._wait_for_result(0.002)
        for number in range(3):
            world.publish(*ids(f"{FIRST}{number}", 20))
            world.step(worker, until=lambda: world.lag() == 0)
        assert len(worker._acknowledgements._done) == 1
        server.rename("kept", stream)
        world.step(worker, until=lambda: sum(world.broker.lag("refused", GROUP).values()) == 0)
        assert worker._acknowledgements._refused == {}
    assert len(world.effects()) == 81


def test_a_broker_that_refuses_every_topic_has_told_of_none(world: OrderedWorld) -> None:
    server = redis.Redis.from_url(world.valkey.url())
    server.set(world.broker._keys.topic("refused"), "no hash")
    with (
        closing(world.broker.subscribe_owned(GROUP, ["refused"], "w1")) as subscription,
        pytest.raises(BrokerUnavailable, match="WRONGTYPE"),
    ):
        subscription.queues()


def test_a_limit_that_stopped_a_queue_is_forgotten_once_the_queue_is_gone(
    world: OrderedWorld, looks_often: None
) -> None:
    world.handler.failing = {f"{SECOND}-000"}
    world.publish(*ids(SECOND, 5))
    with world.worker(limits=Limits(messages=2)) as worker:
        world.step(worker, until=world.stopped)
        make_again(world, 1)
        world.step(worker, until=lambda: world.owners()[1] is None)
        assert world.stopped() == []
    # Or by whoever comes after its owner died.
    world.database.run(
        "INSERT INTO parking_full (consumer_group, topic, queue_id, ordering_key, reached) VALUES (%s, %s, 1, 'x', 'keys')",
        (GROUP, TOPIC),
    )
    age(world)
    with world.worker("w2") as two:
        two._queues.since = float("-inf")
        world.step(two, until=lambda: world.stopped() == [])


# Two owners of one key


def test_a_key_that_two_queues_owners_park_at_once_is_parked_once_with_both_heads(
    world: OrderedWorld,
) -> None:
    """A topic that got more queues has one key in two of them."""
    heads: list[tuple[InOrder, Acquired]] = []
    with closing(world.database.connect()) as one, closing(world.database.connect()) as two:
        queue_owner.declare(one, GROUP, TOPIC, [0, 1])
        for queue in queue_owner.take(one, GROUP, TOPIC, "w1", [0, 1], 2):
            message = Message(TOPIC, f"k-{queue.queue_id}", b"{}", partition_key="k")
            lease = begin(one, GROUP, TOPIC, message.message_id)
            assert isinstance(lease, Acquired)
            heads.append((InOrder(queue, "k", message, Arrival(TOPIC, message.message_id)), lease))
        one.commit()
        limits = Limits(keys=1)  # one key, however many owners have it
        parking.park(one, *heads[0], "poison", limits)
        late = threading.Thread(target=lambda: parking.park(two, *heads[1], "poison", limits))
        late.start()
        waiting = "SELECT count(*) AS waiting FROM pg_locks WHERE NOT granted"
        deadline = time.monotonic() + 60
        while world.database.one(waiting)["waiting"] == 0:
            assert time.monotonic() < deadline, "the second one did not wait for the first"
        one.commit()
        late.join(60)
        two.commit()
    assert world.parked() == {"k": ("PARKED", ["k-0", "k-1"])}


def test_two_owners_that_park_at_once_do_not_pass_the_limit_of_keys(world: OrderedWorld) -> None:
    heads: list[tuple[InOrder, Acquired]] = []
    full: list[str] = []
    with closing(world.database.connect()) as one, closing(world.database.connect()) as two:
        queue_owner.declare(one, GROUP, TOPIC, [0, 1])
        for queue in queue_owner.take(one, GROUP, TOPIC, "w1", [0, 1], 2):
            key = f"k{queue.queue_id}"
            message = Message(TOPIC, f"{key}-0", b"{}", partition_key=key)
            lease = begin(one, GROUP, TOPIC, message.message_id)
            assert isinstance(lease, Acquired)
            heads.append((InOrder(queue, key, message, Arrival(TOPIC, message.message_id)), lease))
        one.commit()
        parking.park(one, *heads[0], "poison", Limits(keys=1))

        def park_second() -> None:
            try:
                parking.park(two, *heads[1], "poison", Limits(keys=1))
                two.commit()
            except parking.ParkingFull as error:
                two.rollback()
                full.append(error.reached)

        late = threading.Thread(target=park_second)
        late.start()
        waiting = (
            "SELECT count(*) AS waiting FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
        while world.database.one(waiting)["waiting"] == 0:
            assert late.is_alive(), "the second one did not wait for the first"
        one.commit()
        late.join(60)
    assert full == ["keys"] and world.parked() == {"k0": ("PARKED", ["k0-0"])}


# Foreign entries


def add(world: OrderedWorld, key: str, message_id: str | None, epoch: str | None) -> None:
    """An entry that a foreign program writes."""
    server = redis.Redis.from_url(world.valkey.url())
    stream = world.broker._keys.stream(TOPIC, queue_of(key, 2))
    ((_, own),) = server.xrevrange(stream, count=1)
    entry = {name: value for name, value in own.items() if name != b"epoch"}
    headers = json.loads(entry[b"headers"])
    name = next(name for name, value in headers.items() if value.startswith(f"{key}-"))
    headers.pop(name)
    entry[b"headers"] = json.dumps(
        {**headers, name: message_id} if message_id else headers
    ).encode()
    server.xadd(stream, entry if epoch is None else {**entry, b"epoch": epoch.encode()})


def pending(world: OrderedWorld) -> int:
    server = redis.Redis.from_url(world.valkey.url())
    return sum(
        server.xpending(world.broker._keys.stream(TOPIC, queue), GROUP)["pending"]
        for queue in range(2)
    )


def test_entries_of_a_foreign_epoch_are_done_in_order_and_acknowledged(world: OrderedWorld) -> None:
    world.publish(f"{FIRST}-000")
    add(world, FIRST, f"{FIRST}-001", None)
    add(world, FIRST, f"{FIRST}-002", "another life")
    with world.worker() as worker:
        world.step(worker, until=lambda: len(world.effects()) == 3 and pending(world) == 0)
    assert world.effects() == ids(FIRST, 3)


def test_an_entry_of_a_foreign_epoch_that_cannot_be_read_is_a_dead_letter_at_once(
    world: OrderedWorld,
) -> None:
    world.publish(f"{FIRST}-000")
    add(world, FIRST, None, None)
    with world.worker() as worker:
        counts = world.step(worker, until=lambda: len(world.effects()) == 1 and pending(world) == 0)
        counts += rounds(world, 5, worker)
    assert counts["broken"] == 1, "it is not read again and again"
    assert len(list(world.broker.dead_letters(GROUP))) == 1


def test_foreign_epochs_do_not_let_the_filter_grow_nor_make_it_forget_the_queues_own(
    world: OrderedWorld,
) -> None:
    world.publish(f"{FIRST}-000")
    for number in range(1, 21):
        add(world, FIRST, f"{FIRST}-{number:03}", f"life {number}")
    with world.worker() as worker:
        world.step(worker, until=lambda: len(world.effects()) == 21 and pending(world) == 0)
        finished = worker._finished
        assert len(finished._sets) == len(finished._ids) == len(finished._fetched) == MOST_LIVES
        assert (finished.gaps((TOPIC, 0)), len(finished._lives[TOPIC, 0])) == (0, MOST_LIVES)
    assert world.effects() == ids(FIRST, 21)


# Servers that are away, or are another self


def test_logs_that_were_restored_in_place_are_asked_again(world: OrderedWorld) -> None:
    """As pg_restore does it: same server, no connection breaks, and the last logs and effects are gone."""
    mine = ids(FIRST, 6)
    with world.worker() as worker:
        world.publish(*mine)
        world.step(worker, until=lambda: world.lag() == 0)
        connection = world.database.connect()
        with closing(connection), connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TEMPORARY TABLE older AS SELECT * FROM consumer_log WHERE message_id <= %s",
                (mine[2],),
            )
            cursor.execute("TRUNCATE consumer_log; INSERT INTO consumer_log SELECT * FROM older")
            cursor.execute("DELETE FROM ordered_effect WHERE message_id > %s", (mine[2],))
        worker._keeper._beat_at = float("inf")  # the messages come before the next renewal
        worker._finished._fetched.clear()
        server = redis.Redis.from_url(world.valkey.url())
        for queue in range(2):
            server.xgroup_setid(world.broker._keys.stream(TOPIC, queue), GROUP, "0")
        world.step(worker, until=lambda: world.effects() == mine and world.lag() == 0)
    assert set(world.states().values()) == {"CONSUMED"}


def test_a_queue_whose_row_an_older_database_lacks_is_declared_again(world: OrderedWorld) -> None:
    """A failover to a standby that had not got the row, under a consumer that lives on."""
    with world.worker() as worker:
        world.step(worker, until=lambda: set(world.owners().values()) == {"w1"})
        world.database.run("DELETE FROM queue_owner WHERE queue_id = 1")
        worker._keeper._server_life = "the server before"
        world.publish(*ids(FIRST, 2), *ids(SECOND, 2))
        world.step(worker, until=lambda: len(world.effects()) == 4 and world.lag() == 0)
    assert set(world.owners()) == {0, 1}


def test_a_message_that_got_the_id_of_one_that_a_failover_lost_is_done_and_then_acknowledged(
    world: OrderedWorld,
) -> None:
    server = redis.Redis.from_url(world.valkey.url())
    keys = (world.broker._keys.stream(TOPIC, 0), world.broker._keys.life(TOPIC, 0))
    lost, new = ids(FIRST, 2)
    with world.worker() as worker:
        subscription = worker._acknowledgements._subscription
        acknowledge = subscription.acknowledge

        def refuse(received: Any) -> None:
            if received:
                raise BrokerUnavailable("it is away", unaffected="all", next_step="wait")

        rounds(world, 5, worker)
        kept = {key: server.dump(key) for key in keys}
        subscription.acknowledge = refuse  # type: ignore[method-assign]
        world.publish(lost)
        with pytest.raises(BrokerUnavailable):
            world.step(worker, until=lambda: False)
        assert world.effects() == [lost]
        for key, value in kept.items():  # the promoted replica has not got it
            server.restore(key, 0, value, replace=True)
        subscription.acknowledge = acknowledge  # type: ignore[method-assign]
        world.publish(new)
        world.step(worker, until=lambda: world.effects() == [lost, new] and pending(world) == 0)


@contextmanager
def away(postgres: Postgres) -> Iterator[None]:
    """The consumer database takes no connection and has lost all that it had."""
    admin = psycopg2.connect(postgres.admin_dsn())
    admin.autocommit = True
    try:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE consumer ALLOW_CONNECTIONS false")
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'consumer'"
            )
        yield
    finally:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE consumer ALLOW_CONNECTIONS true")
        admin.close()


def test_a_database_that_is_away_in_a_handover_is_waited_for_and_nothing_is_left_behind(
    world: OrderedWorld, postgres: Postgres
) -> None:
    entered, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert go_on.wait(300)

    world.publish(*ids(FIRST, 3))
    counts = Counts()
    with world.worker(handler=slow) as worker:
        running = threading.Thread(target=lambda: worker.run(stop, counts=counts))
        running.start()
        assert entered.wait(60)
        with away(postgres):
            stop.set()
            go_on.set()
            deadline = time.monotonic() + 60
            while counts.get("unavailable", 0) < 3:
                assert time.monotonic() < deadline, counts
                time.sleep(0.01)
        running.join(60)
        assert not running.is_alive()
    assert set(world.owners().values()) == {None}, "no lease is waited for"
    assert world.effects() == []
    with world.worker("w2") as two:
        counts = world.step(two, until=lambda: world.lag() == 0)
    assert (world.effects(), counts["processed"]) == (ids(FIRST, 3), 3)
    assert counts.get("busy", 0) == 0, "the lease of what was in work was given back"


def test_a_broker_that_is_away_in_a_handover_keeps_no_queue_and_nothing_is_done_twice(
    world: OrderedWorld,
) -> None:
    entered, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def slow(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        entered.set()
        assert go_on.wait(300)

    world.publish(*ids(FIRST, 3))
    with world.worker(handler=slow) as worker:
        running = threading.Thread(target=lambda: worker.run(stop))
        running.start()
        assert entered.wait(60)
        world.valkey.stop()
        try:
            stop.set()
            go_on.set()
            running.join(60)
            assert not running.is_alive()
            assert (world.effects(), set(world.owners().values())) == ([f"{FIRST}-000"], {None})
        finally:
            world.valkey.start()
    with world.worker("w2") as two:
        counts = world.step(two, until=lambda: world.lag() == 0)
    assert (world.effects(), counts["processed"]) == (ids(FIRST, 3), 2)


@contextmanager
def stalled(valkey: Valkey) -> Iterator[None]:
    assert valkey.pid is not None
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(valkey.pid, signal.SIGCONT)


def test_a_consumer_that_stops_hands_over_without_a_word_of_a_broker_that_stalls(
    world: OrderedWorld, looks_often: None
) -> None:
    world.broker = RedisStreams(world.valkey.url(), answer_timeout=timedelta(hours=1))
    with closing(world.broker), world.worker() as worker:
        world.step(worker, until=lambda: set(world.owners().values()) == {"w1"})
        leaving = threading.Thread(target=lambda: worker._hand_over(Counts()))
        with stalled(world.valkey):
            leaving.start()
            leaving.join(120)
            handed_over = not leaving.is_alive()
        leaving.join()
    assert handed_over and set(world.owners().values()) == {None}


def test_an_answer_is_not_waited_for_so_long_that_queues_are_not_renewed() -> None:
    """Between two renewals a consumer waits for its queues, one read and its acknowledgements."""
    waits = inspect.signature(RedisStreams).parameters["answer_timeout"].default
    assert 3 * waits < queue_owner.LEASE


class Unreachable:
    """A subscription whose broker does not answer this consumer while `is_away`."""

    assigns = False

    def __init__(self) -> None:
        self.is_away = False

    def over(self, inner: Any) -> Any:
        self._inner = inner
        return self

    def __getattr__(self, name: str) -> Any:
        if self.is_away and name in ("queues", "fetch", "acknowledge", "bury"):
            raise BrokerUnavailable("it is away", unaffected="all", next_step="wait")
        return getattr(self._inner, name)


def test_a_consumer_that_alone_does_not_reach_the_broker_leaves_its_queues_to_the_others(
    world: OrderedWorld,
) -> None:
    """What it did last is not acknowledged, comes to the next owner, and is stopped by its log."""
    wall, lease, counts = Unreachable(), timedelta(seconds=2), Counts()
    mine = [*ids(FIRST, 3), *ids(SECOND, 3)]
    with (
        world.worker("w1", through=wall.over, queue_lease=lease) as one,
        world.worker("w2", queue_lease=lease) as two,
    ):

        def until(holds: Callable[[], Any]) -> None:
            deadline = time.monotonic() + 60
            while not holds():
                assert time.monotonic() < deadline, counts
                with suppress(BrokerUnavailable):
                    one.step(counts)
                two.step(counts)

        until(lambda: set(world.owners().values()) == {"w1", "w2"})
        begin = one._begin

        def begin_and_lose(lanes: Any, counts: Counts) -> None:
            begin(lanes, counts)
            wall.is_away = wall.is_away or bool(lanes)

        one._begin = begin_and_lose  # type: ignore[method-assign]
        world.publish(*mine)
        until(lambda: set(world.owners().values()) == {"w2"} and world.lag() == 0)
        assert wall.is_away and one._queues.held == {} and counts["broker_unheard"] == 1
        members = world.database.run("SELECT member FROM group_member")
        assert [row["member"] for row in members] == ["w2"]
        assert sorted(world.effects()) == sorted(mine)
        wall.is_away, one._begin = False, begin  # type: ignore[method-assign]
        until(lambda: set(world.owners().values()) == {"w1", "w2"})
    assert counts["broker_unheard"] == 1
