"""Dead letters of a real RocketMQ: whoever made them, each names its message and its origin, is stored once, and is decided."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.rocketmq.dead_letters.dead_queue import MARKS
from backstop.brokers.rocketmq.dead_letters.drain import DRAIN_GROUP
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.control.connection import connect
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import GROUPS_HEADER, ID_HEADER, Position
from backstop.runs.run import open_run
from backstop_lab.servers.postgres import Postgres
from rocketmq_java import JavaPeer
from rocketmq_letters_world import World, put, until, world_of
from rocketmq_server import RocketMQ as Server

pytestmark = pytest.mark.other_broker

CHILD = Path(__file__).parents[1] / "chaos" / "drain_killed_child.py"
SETTINGS = {
    # Commits are in memory alone until an orderly end: a kill loses them all.
    "flushConsumerOffsetInterval": "3600000",
    # A test of retention fills a file in no time.
    "mappedFileSizeCommitLog": "1048576",
    "cleanResourceInterval": "200",
    "deletePhysicFilesInterval": "1",
    "waitTimeMillsInSendQueue": "60000",
}
AWAY = "OperationalError: connection to server at 10.0.0.7, port 5432 failed: Connection refused"
KIB = 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("rocketmq"), settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def java(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(server, tmp_path_factory.mktemp("java")) as peer:
        yield peer


@pytest.fixture
def world(postgres: Postgres, server: Server) -> Iterator[World]:
    with world_of(postgres, server) as made:
        yield made


def names(count: int, start: int = 0) -> list[str]:
    return [f"m-{number}" for number in range(start, start + count)]


def place(one: Stored) -> tuple[int, int]:
    return one.queue_id, one.offset


class TestWhoeverMadeThem:
    def letters(self, world: World) -> dict[str, dict[str, Any]]:
        world.drain()
        return {one["message_id"]: one for one in world.stored("to_jsonb(dead_letter)")}

    @pytest.mark.parametrize("mode", ["concurrent", "ordered"])
    def test_a_letter_of_a_consumer_that_pushes_names_its_origin_and_how_often_it_was_delivered(
        self, world: World, java: JavaPeer, mode: str
    ) -> None:
        world.publish([world.message(one, one.encode(), colour="“red”") for one in names(3)])
        sent = {one.properties[ID_HEADER]: place(one) for one in world.new_messages(3)}
        consumer = java.consume(world.group, world.topic, mode=mode, fail=-1, limit=2)
        until("three letters", lambda: set(world.left()) == set(names(3)))
        consumer.close()
        found = self.letters(world)
        assert {name: (one["queue_id"], one["queue_offset"]) for name, one in found.items()} == sent
        for name, one in found.items():
            assert (one["topic"], one["consumer_group"], one["invalid"]) == (
                world.topic,
                world.group,
                None,
            )
            assert (one["deliveries"], one["queue_epoch"]) == (3, "0")
            assert one["properties"]["RETRY_TOPIC"] == world.topic
            (content, headers, ago), *_ = world.control(
                "SELECT content, headers, now() - died_at FROM dead_letter WHERE message_id = %s",
                name,
            )
            assert bytes(content) == name.encode() and json.loads(bytes(headers)) == {
                ID_HEADER: name,
                "colour": "“red”",
            }
            assert timedelta(0) < ago < timedelta(minutes=5)
        assert sum(one.retries == 2 for one in consumer.begun) == 3, (
            "so it was: the first delivery and two more"
        )

    def test_a_letter_of_a_consumer_that_pops_names_its_origin_and_how_often_it_was_delivered(
        self, world: World, java: JavaPeer
    ) -> None:
        world.publish([world.message("m-0")])
        [original] = world.new_messages(1)
        consumer = java.consume(world.group, world.topic, mode="pop", fail=-1)
        consumer.wait_until(
            "a second delivery", lambda it: any(one.retries == 1 for one in it.begun)
        )
        consumer.close()
        retried = next(one for one in consumer.begun if one.retries == 1)
        # A proxy sends this at the limit. A consumer that POPs without one never makes a letter: it acknowledges.
        world.server.ask(
            36,
            {
                "offset": java.view(
                    f"%RETRY%{world.group}_{world.topic}", retried.offset_id
                ).physical,
                "group": world.group,
                "delayLevel": -1,
                "originMsgId": retried.offset_id,
                "originTopic": world.topic,
                "unitMode": False,
            },
        )
        [found] = self.letters(world).values()
        assert found["properties"]["RETRY_TOPIC"] == f"%RETRY%{world.group}_{world.topic}"
        assert (found["topic"], found["consumer_group"], found["message_id"]) == (
            world.topic,
            world.group,
            "m-0",
        )
        assert (found["queue_id"], found["queue_offset"]) == place(original)
        assert found["deliveries"] == 2

    def test_one_message_of_two_groups_makes_two_letters_of_one_origin(self, world: World) -> None:
        [original] = world.die("m-0")
        world.give_up([original], world.other)
        assert world.drain()["stored"] == 2
        assert sorted(world.stored("consumer_group, message_id, queue_id, queue_offset")) == sorted(
            (group, "m-0", *place(original)) for group in (world.group, world.other)
        )

    def test_an_origin_that_retention_has_removed_has_no_position_and_the_letter_is_whole(
        self, world: World
    ) -> None:
        world.publish([world.message("m-0", b"whole")])
        [original] = world.new_messages(1)
        for _ in range(10):
            put(world.server, world.topic, original.queue_id, {}, bytes(150 * KIB))
        world.give_up([original])
        world.server.configure(fileReservedTime=0)
        try:
            world.server.delete_expired_files()
            until(
                "the removal of the first file",
                lambda: world.broker.queues(world.topic)[original.queue_id].first_offset,
            )
        finally:
            world.server.configure(fileReservedTime=72)
        assert world.drain()["stored"] == 1
        [(content, *rest)] = world.stored(
            "content, topic, message_id, queue_id, queue_offset, queue_epoch, invalid"
        )
        assert (bytes(content), rest) == (b"whole", [world.topic, "m-0", None, None, None, None])

    def test_of_two_messages_that_it_could_be_none_is_taken_for_the_origin(
        self, world: World, java: JavaPeer
    ) -> None:
        """A producer that tried again after a silence has stored its message twice under one id."""
        world.publish([world.message("m-0")])
        [first] = world.new_messages(1)
        put(world.server, world.topic, 1 - first.queue_id, first.properties, b"{}")
        [second] = world.new_messages(1)
        world.give_up([second])
        consumer = java.consume(world.other, world.topic, mode="ordered", fail=-1, limit=0)
        until("two letters of the ordered consumer", lambda: len(world.left(world.other)) == 2)
        consumer.close()
        world.drain()
        found = world.control(
            "SELECT consumer_group, queue_id, queue_offset FROM dead_letter ORDER BY 1"
        )
        assert found == [
            (world.group, *place(second)),
            (world.other, None, None),
            (world.other, None, None),
        ], "who leaves the broker's own id says which of them it was; an ordered consumer does not"

    def test_what_is_no_message_of_ours_is_stored_whole_and_says_why(self, world: World) -> None:
        world.die("m-0")
        put(world.server, world.queue, 0, {"x": "y"}, b"\x00odd")
        counts = world.drain()
        assert (counts["stored"], counts["invalid"]) == (2, 1)
        [(content, headers, why, topic)] = world.control(
            "SELECT content, headers, invalid, topic FROM dead_letter WHERE message_id IS NULL"
        )
        assert (bytes(content), bytes(headers), topic) == (b"\x00odd", b'{"x":"y"}', None)
        assert why == f"it has no property {ID_HEADER}; it names no topic"

    def test_names_that_rocketmq_does_not_take_come_back_as_they_were(
        self, postgres: Postgres, server: Server
    ) -> None:
        with world_of(postgres, server, names="ü: %41 ") as world:
            [original] = world.die("m-0")
            # The broker says that it has stored a letter before its queue's index has it.
            until("its letter", lambda: list(world.broker.dead_letters(world.group)))
            assert [one.topic for one in world.broker.dead_letters(world.group)] == [world.topic]
            world.drain()
            assert world.stored("topic, consumer_group, queue_id, queue_offset") == [
                (world.topic, world.group, *place(original))
            ]


class TestDraining:
    def test_letters_are_stored_in_their_order_and_are_then_behind_the_drain(
        self, world: World
    ) -> None:
        world.die(*names(250))
        assert world.drain(page=30) == {
            "queues": 1,
            "read": 250,
            "stored": 250,
            "acknowledged": 250,
        }
        assert world.stored() == names(250)
        assert world.left() == []
        assert world.drain() == {"queues": 1}

    @pytest.mark.parametrize(
        ("boundary", "stored", "left"),
        [
            ("inside the transaction", 40, 60),
            ("after the commit", 60, 60),
            ("half way through an acknowledgement", 60, 50),
            ("after the acknowledgement", 60, 40),
        ],
    )
    def test_killed_at_any_arrow_the_next_drain_has_every_letter_once(
        self, world: World, tmp_path: Path, boundary: str, stored: int, left: int
    ) -> None:
        world.die(*names(100))
        control = connect(world.settings, world.connections)
        run = open_run(control, "triage", "*", world.settings)
        control.close()
        case = tmp_path / "case.json"
        case.write_text(
            json.dumps(
                {
                    "settings": world.settings.model_dump(mode="json"),
                    "urls": dict(world.urls),
                    "run_id": run.run_id,
                    "token": run.token,
                    "boundary": boundary,
                    "reader": "rocketmq",
                }
            )
        )
        ended = subprocess.run(
            [sys.executable, str(CHILD), str(case)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=os.environ,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        # The reading thread is ahead of the storing one by a page at most.
        kept, behind = len(world.stored()), len(world.left())
        assert stored <= kept <= min(stored + 40, 100) and left - 20 <= behind <= left + 40
        assert kept + behind >= 100, "a letter is in one of both at every instant"
        world.die(*names(5, 100))
        world.drain()
        assert world.stored() == names(105) and world.left() == []

    def test_two_drains_at_once_store_each_letter_once(self, world: World) -> None:
        world.die(*names(600))
        start = threading.Barrier(2)

        def one(scope: str) -> int:
            start.wait()
            return int(world.drain(page=50, scope=scope).get("stored", 0))

        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(one, ["*", json.dumps([world.topic])])) == 600
        world.drain()
        assert world.stored() == names(600) and world.left() == []

    def test_a_queue_that_is_being_filled_is_drained_to_the_end_it_had(self, world: World) -> None:
        world.die(*names(200))
        originals = world.die(*names(300, 200), group=world.other)
        stop = threading.Event()

        def keep_filling() -> None:
            for one in originals:
                if not stop.is_set():
                    world.give_up([one])

        with ThreadPoolExecutor(1) as pool:
            filling = pool.submit(keep_filling)
            counts = world.drain(page=50)
            stop.set()
            filling.result()
        assert "queues_cut_short" not in counts
        world.drain()
        mine = world.control(
            "SELECT message_id FROM dead_letter WHERE consumer_group = %s ORDER BY dead_letter_id",
            world.group,
        )
        assert [one for (one,) in mine] == names(len(mine)) and len(mine) >= 200
        assert world.left() == []

    def test_letters_on_several_brokers_are_all_drained(
        self, postgres: Postgres, server: Server, tmp_path: Path
    ) -> None:
        with (
            Server(tmp_path, name="broker-b", joins=server, settings=SETTINGS) as second,
            world_of(postgres, server, brokers="broker-a,broker-b") as world,
        ):
            for at, to in (("a", server), ("b", second)):
                for number in range(4):
                    properties = {ID_HEADER: f"{at}-{number}", "UNIQ_KEY": f"{at}{number}"}
                    stored = put(to, world.topic, 1, properties, b"{}")
                    to.ask(
                        36,
                        {
                            "offset": int(stored[16:], 16),
                            "group": world.group,
                            "delayLevel": -1,
                            "originTopic": world.topic,
                            "originMsgId": stored,
                            "unitMode": False,
                        },
                    )
            assert world.drain()["stored"] == 8
            places = sorted(world.stored("message_id, queue_id, queue_offset"))
            assert places == [
                (f"{at}-{number}", queue, number)
                for at, queue in (("a", 1), ("b", 10_001))
                for number in range(4)
            ]
            assert world.left() == []
            second.kill_broker()
            with pytest.raises(BrokerUnavailable):
                world.left()
            with pytest.raises(BrokerUnavailable):
                world.drain()


class TestAfterTheBrokerForgot:
    """Commits are in its memory first, and a broker may be built anew under them."""

    def committed(self, world: World) -> list[int]:
        return [
            int(
                world.server.ask(
                    14,
                    {
                        "consumerGroup": DRAIN_GROUP,
                        "topic": world.queue,
                        "queueId": queue,
                        "setZeroIfNotFound": False,
                    },
                ).ext["offset"]
            )
            for queue in (0, MARKS)
        ]

    def test_commits_lost_in_a_crash_store_nothing_twice_and_open_nothing_again(
        self, world: World
    ) -> None:
        world.die(*names(20))
        world.drain()
        world.control("""
            UPDATE dead_letter SET state = 'discarded', proof = '{}', decided_by = 'ann', closed_at = now()
            WHERE message_id = 'm-3'""")
        before = world.control("SELECT to_jsonb(d) FROM dead_letter d ORDER BY dead_letter_id")
        world.server.kill_broker()
        world.server.start()
        assert world.left() == names(20), "the drain's offset is gone with the crash"
        counts = world.drain()
        assert counts == {"queues": 1, "read": 20, "known": 20, "acknowledged": 20}
        assert (
            world.control("SELECT to_jsonb(d) FROM dead_letter d ORDER BY dead_letter_id") == before
        )
        assert world.left() == []

    def test_an_offset_that_somebody_set_back_stores_nothing_twice(self, world: World) -> None:
        world.die(*names(10))
        world.drain()
        world.server.ask(
            15,
            {"consumerGroup": DRAIN_GROUP, "topic": world.queue, "queueId": 0, "commitOffset": 4},
        )
        world.die(*names(2, 10))
        counts = world.drain()
        assert (counts["stored"], world.stored(), world.left()) == (2, names(12), [])

    def test_an_offset_beyond_the_end_hides_nothing(self, world: World) -> None:
        world.die(*names(3))
        world.drain()
        world.server.ask(
            15,
            {
                "consumerGroup": DRAIN_GROUP,
                "topic": world.queue,
                "queueId": 0,
                "commitOffset": 1_000,
            },
        )
        world.die(*names(2, 3))
        assert world.drain()["stored"] == 2
        assert world.stored() == names(5) and world.left() == []
        assert self.committed(world)[0] == 5

    def test_in_a_broker_built_anew_a_letter_at_an_old_offset_is_a_new_letter(
        self, world: World
    ) -> None:
        world.die(*names(3))
        world.drain()
        offset, mark = self.committed(world)
        assert offset == 3
        world.server.kill_broker()
        for path in (world.server.base / "store").iterdir():
            if path.name != "config":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        world.server.start()
        world.broker.create_topic(world.topic, 2)
        # The file with the offsets outlived the log that they were of.
        for queue, value in ((0, offset), (MARKS, mark)):
            world.server.ask(
                15,
                {
                    "consumerGroup": DRAIN_GROUP,
                    "topic": world.queue,
                    "queueId": queue,
                    "commitOffset": value,
                },
            )
        world.offsets.clear()
        world.die(*names(5, 100))
        assert world.left() == names(5, 100)
        assert world.drain()["stored"] == 5
        assert world.stored() == names(3) + names(5, 100) and world.left() == []
        assert self.committed(world)[0] == 5

    def test_a_broker_that_is_away_or_not_yet_known_has_letters_and_says_nothing_of_them(
        self, world: World
    ) -> None:
        world.die("m-0")
        world.server.kill_broker()
        for ask in (
            world.left,
            world.drain,
            lambda: world.broker.dead_letter_queues([world.group]),
        ):
            with pytest.raises(BrokerUnavailable):
                ask()
        world.server.start()
        world.server.restart_namesrv()
        assert world.left() == ["m-0"]


class TestTheWholeWay:
    @pytest.mark.parametrize("to", ["topic", "group"])
    def test_a_false_letter_is_discarded_with_proof_and_an_undone_one_is_done_by_one_replay(
        self, postgres: Postgres, server: Server, java: JavaPeer, to: str
    ) -> None:
        """A group that takes no duplicates must not see the copy: then it goes to the one group's own retry topic."""
        with world_of(
            postgres, server, other_duplicates="no" if to == "group" else "guard"
        ) as world:
            for one in ("false", "undone"):
                world.sent_before(one)
            for one in ("false", "undone"):
                world.log(one, "CONSUMED", group=world.other)
            world.publish([world.message(one) for one in ("false", "undone")])
            consumer = java.consume(world.group, world.topic, fail=-1, limit=2)
            other = java.consume(world.other, world.topic)
            until("two letters", lambda: set(world.left()) == {"false", "undone"})
            other.wait_until("both", lambda it: len(it.done) == 2)
            world.log("false", "CONSUMED")
            world.log("undone", "FAILED", AWAY)
            counts = world.triage()
            assert (counts["stored"], counts["discarded"], counts["replaying"]) == (2, 1, 1)
            assert dict(world.stored("message_id, category")) == {
                "false": "already_confirmed",
                "undone": "transient",
            }
            [(proof,)] = world.control("SELECT proof FROM dead_letter WHERE message_id = 'false'")
            assert proof["log"] == "CONSUMED"
            delivered = len(consumer.begun)
            consumer.heal()
            assert until("the resend", world.resend_now) == 1, world.control(
                "SELECT to_jsonb(r) FROM resend_request r"
            )
            consumer.wait_until("the replay", lambda it: len(it.done) == 1)
            [again] = consumer.done
            assert (again.body, again.retries, again.properties[ID_HEADER]) == (b"{}", 0, "undone")
            assert json.loads(again.properties[GROUPS_HEADER]) == [world.group]
            if to == "topic":
                other.wait_until("its copy", lambda it: len(it.done) == 3)
            [(queue, position)] = world.rows(
                "shop_a",
                """
                SELECT queue_id, queue_offset FROM send_attempt WHERE message_id = 'undone' AND send_number = 2""",
            )
            assert (position is None) == (to == "group")
            assert to == "group" or Position(queue, position, "0") == Position(
                again.queue, again.offset, "0"
            )
            assert world.triage()["replayed"] == 1
            assert dict(world.stored("message_id, state")) == {
                "false": "discarded",
                "undone": "replayed",
            }
            consumer.close(), other.close()
            assert len(consumer.begun) == delivered + 1, (
                "it was delivered once more, and did not bounce"
            )
            assert len(other.done) == (3 if to == "topic" else 2), (
                "a copy for one group reaches no other"
            )
            assert world.left() == []

    def test_what_a_consumer_gave_up_at_once_is_not_taken_for_one_that_was_busy_to_the_limit(
        self, world: World
    ) -> None:
        world.sent_before("m-0")
        world.die("m-0")
        world.triage()
        assert world.stored("category, cause_text") == [("unknown", "reconsumed 1 times")], (
            "a person looks"
        )

    def test_a_group_without_letters_has_no_queue_and_one_with_them_has_it_once(
        self, world: World
    ) -> None:
        assert world.broker.dead_letter_queues([world.group]) == []
        world.die("m-0")
        assert world.broker.dead_letter_queues([world.group, world.group, world.other]) == [
            world.queue
        ]
