"""The brokers under test: each adapter with a real server, and the faults that a hand could cause there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from activemq import READER_PASSWORD
from activemq import ActiveMQ as Server
from backstop.brokers.activemq import ActiveMQ, Names
from backstop.brokers.activemq.frames import encode
from backstop.brokers.activemq.session import Address, Pool
from backstop.brokers.protocol import Broker, Received, Subscription
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.message.names import encode_group, encode_topic
from backstop.brokers.rocketmq.message.properties import own_headers
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.testing import DELIVERY_LIMIT, SEND_TIMEOUT, VISIBILITY, ServerUnderTest
from backstop.brokers.testing.contract import fetch_all
from backstop.model.records import ID_HEADER, Message, Outcome
from backstop_lab.servers.valkey import Valkey
from rocketmq_server import RocketMQ as RocketMQServer
from stand_still import stand_still

PATIENT = timedelta(minutes=1)
"""Time-out of the client that all tests share: a busy machine may stand still for seconds, and no test waits for it."""


class RedisStreamsUnderTest:
    """Redis Streams on the embedded Valkey."""

    silence = Outcome.UNKNOWN
    deletes_one = True

    def __init__(self, server: Valkey) -> None:
        self.server, self.keys = server, Keys()
        self._open: list[RedisStreams] = []
        self.broker = self.another(
            send_timeout=PATIENT, answer_timeout=PATIENT, connect_timeout=PATIENT
        )
        self.raw = redis.Redis.from_url(server.url())

    def another(self, url: str | None = None, **options: Any) -> RedisStreams:
        settings = {
            "visibility": VISIBILITY,
            "delivery_limit": DELIVERY_LIMIT,
            "send_timeout": SEND_TIMEOUT,
            "answer_timeout": SEND_TIMEOUT,
            "connect_timeout": SEND_TIMEOUT,
        }
        broker = RedisStreams(url or self.server.url(), **{**settings, **options})
        self._open.append(broker)
        return broker

    def create_topic(self, topic: str, queues: int, max_message_bytes: int | None = None) -> None:
        self.broker.create_topic(topic, queues, max_message_bytes=max_message_bytes)

    def delete_topic(self, topic: str) -> None:
        self.broker.delete_topic(topic)

    def create_group(self, group: str, topic: str) -> None:
        self.broker.create_group(group, topic, at="start")

    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> Subscription:
        return self.another().subscribe(group, topics, consumer)

    def stored(self, topic: str) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        for queue in range(int(self.raw.hget(self.keys.topic(topic), "queues") or 0)):
            for entry_id, fields in self.raw.xrange(self.keys.stream(topic, queue)):
                name = redis.utils.str_if_bytes(fields[b"headers"])
                found[queue, int(entry_id.split(b"-")[0]) - 1] = _id_in(name)
        return found

    def delete_message(self, topic: str, queue: int, offset: int) -> None:
        assert self.raw.xdel(self.keys.stream(topic, queue), f"{offset + 1}-0") == 1

    def move_group(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        self.raw.xgroup_setid(self.keys.stream(topic, queue), group, f"{next_offset}-0")

    def add_unreadable_dead_letter(self, group: str, topic: str) -> None:
        self.raw.xadd(
            self.keys.dead(topic, group),
            {"headers": "no json", "content": "x", "origin-topic": topic},
        )

    @contextmanager
    def refusing(self, topic: str) -> Iterator[Broker]:
        # The login may read what names the topic, and neither read nor write its queues.
        self.raw.execute_command(
            "ACL",
            "SETUSER",
            "limited",
            "reset",
            "on",
            ">secret-of-limited",
            "+@all",
            "resetkeys",
            f"~{self.keys.topic(topic)}",
        )
        url = f"redis://limited:{quote('secret-of-limited')}@127.0.0.1:{self.server.port}/0"
        try:
            yield self.another(url)
        finally:
            self.raw.execute_command("ACL", "DELUSER", "limited")

    def wipe(self) -> None:
        self.raw.flushall()

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def stall(self) -> None:
        assert self.server.pid is not None
        stand_still(self.server.pid)

    def wake(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.raw.close()


AUDIT = "audit of the tests"
"""A group of each topic's, that never receives: its queue shows what the broker has stored."""


class ActiveMQUnderTest:
    """ActiveMQ Classic: a virtual topic, and a queue for each group."""

    silence = Outcome.REFUSED
    deletes_one = False

    def __init__(self, server: Server) -> None:
        self.server, self.names = server, Names()
        self._open: list[ActiveMQ] = []
        self.broker = self.another(send_timeout=PATIENT, connect_timeout=PATIENT)
        self.pool = Pool(Address.parse(server.url()), connect_timeout=60.0)

    def another(self, url: str | None = None, **options: Any) -> ActiveMQ:
        settings = {
            "delivery_limit": DELIVERY_LIMIT,
            "send_timeout": SEND_TIMEOUT,
            "connect_timeout": SEND_TIMEOUT,
        }
        broker = ActiveMQ(url or self.server.url(), **{**settings, **options})
        self._open.append(broker)
        return broker

    def create_topic(self, topic: str, queues: int, max_message_bytes: int | None = None) -> None:
        if max_message_bytes is not None:
            self.broker = self.another(  # no limit for each topic here
                send_timeout=PATIENT,
                connect_timeout=PATIENT,
                max_message_bytes=max_message_bytes,
            )
        self.broker.create_topic(topic, queues)
        self.broker.create_group(AUDIT, topic)

    def delete_topic(self, topic: str) -> None:
        self.broker.delete_topic(topic)
        for broker in self._open:
            broker._publisher.forget(topic)

    def create_group(self, group: str, topic: str) -> None:
        self.broker.create_group(group, topic)

    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> Subscription:
        return self.another().subscribe(group, topics, consumer)

    def stored(self, topic: str) -> dict[tuple[int, int], str]:
        """Browsed to its end, past the limit of one browse: read and put back by closing."""
        session = self.pool.new()
        queue = self.names.queue(topic, AUDIT)
        subscription = {
            "destination": f"/queue/{queue}",
            "id": "1",
            "ack": "client",
            "activemq.prefetchSize": "30000",
        }
        session.write(encode("SUBSCRIBE", subscription), time.monotonic() + 60)
        size = int(self.server.jolokia().queues()[queue]["QueueSize"])
        found: dict[tuple[int, int], str] = {}
        while len(found) < size:
            frame = session.read(time.monotonic() + 60)
            assert frame is not None and frame.command == "MESSAGE", frame
            found[0, len(found)] = frame.headers[ID_HEADER]
        session.close()
        return found

    def delete_message(self, topic: str, queue: int, offset: int) -> None:
        raise AssertionError("no offsets here")

    def move_group(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        raise AssertionError("no offsets here")

    def add_unreadable_dead_letter(self, group: str, topic: str) -> None:
        session = self.pool.new()
        to = f"/queue/DLQ.{self.names.queue(topic, group)}"
        session.ask(
            encode("SEND", {"destination": to, "persistent": "true", "receipt": "1"}, b"x"),
            "1",
            time.monotonic() + 60,
        )
        session.close()

    @contextmanager
    def refusing(self, topic: str) -> Iterator[Broker]:
        yield self.another(self.server.url("limited", READER_PASSWORD))

    def wipe(self) -> None:
        raise AssertionError("no epochs here")

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def stall(self) -> None:
        assert self.server.pid is not None
        stand_still(self.server.pid)

    def wake(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.pool.close()


class RocketMQUnderTest:
    """RocketMQ: one broker, with access control."""

    silence = Outcome.UNKNOWN
    deletes_one = False

    def __init__(self, server: RocketMQServer) -> None:
        self.server = server
        self._open: list[RocketMQ] = []
        self.broker = self.another(send_timeout=PATIENT, connect_timeout=PATIENT)

    def another(self, url: str | None = None, **options: Any) -> RocketMQ:
        settings = {
            "delivery_limit": DELIVERY_LIMIT,
            "send_timeout": SEND_TIMEOUT,
            "connect_timeout": SEND_TIMEOUT,
            "answer_timeout": timedelta(seconds=20),
            "delay_levels": self.server.settings["messageDelayLevel"],
        }
        broker = RocketMQ(url or self.server.url(), **{**settings, **options})
        self._open.append(broker)
        return broker

    def create_topic(self, topic: str, queues: int, max_message_bytes: int | None = None) -> None:
        if max_message_bytes is not None:
            self.broker = self.another(  # no limit for each topic here
                send_timeout=PATIENT,
                connect_timeout=PATIENT,
                max_message_bytes=max_message_bytes,
            )
        self.broker.create_topic(topic, queues)

    def delete_topic(self, topic: str) -> None:
        self.broker.delete_topic(topic)

    def create_group(self, group: str, topic: str) -> None:
        self.broker.create_group(group, topic, at="start")

    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> Subscription:
        return self.another().subscribe(group, topics, consumer)

    def stored(self, topic: str) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        name = encode_topic(topic)
        for queue in range(len(self.broker.queues(topic))):
            at, end = 0, int(self.server.ask(30, {"topic": name, "queueId": queue}).ext["offset"])
            while at < end:
                answer = self.server.ask(
                    11,
                    {
                        "consumerGroup": "TOOLS_CONSUMER",
                        "topic": name,
                        "queueId": queue,
                        "queueOffset": at,
                        "maxMsgNums": 32,
                        "sysFlag": 4,
                        "commitOffset": 0,
                        "suspendTimeoutMillis": 0,
                        "subscription": "*",
                        "subVersion": 0,
                        "expressionType": "TAG",
                    },
                )
                found |= {(queue, one.offset): _claimed(one) for one in read_stored(answer.body)}
                at = int(answer.ext["nextBeginOffset"])
        return found

    def delete_message(self, topic: str, queue: int, offset: int) -> None:
        raise AssertionError("whole files are removed, no single messages")

    def move_group(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        self.server.ask(
            222,
            {
                "group": encode_group(group),
                "topic": encode_topic(topic),
                "queueId": queue,
                "offset": next_offset,
                "timestamp": -1,
                "isForce": True,
            },
        )

    def add_unreadable_dead_letter(self, group: str, topic: str) -> None:
        letters = f"%DLQ%{encode_group(group)}"
        self.server.create_topic(letters, 1)
        self.server.ask(
            310,
            {
                "a": "TOOLS_PRODUCER",
                "b": letters,
                "c": "TBW102",
                "d": 1,
                "e": 0,
                "f": 0,
                "g": int(time.time() * 1000),
                "h": 0,
                "i": f"RETRY_TOPIC\x01{encode_topic(topic)}\x02",
                "j": 0,
                "k": False,
                "m": False,
            },
            b"x",
        )

    @contextmanager
    def refusing(self, topic: str) -> Iterator[Broker]:
        limited = {"username": "limited", "password": "secret-of-limited", "userType": "NORMAL"}
        self.server.ask(3001, {"username": "limited"}, json.dumps(limited).encode())
        policy = {
            "resource": f"Topic:{encode_topic(topic)}",
            "actions": ["SUB"],
            "decision": "ALLOW",
        }
        acl = {
            "subject": "User:limited",
            "policies": [{"policyType": "CUSTOM", "entries": [policy]}],
        }
        self.server.ask(3006, {"subject": "User:limited"}, json.dumps(acl).encode())
        try:
            yield self.another(self.server.url("limited", "secret-of-limited"))
        finally:
            self.server.ask(3003, {"username": "limited"})

    def wipe(self) -> None:
        raise AssertionError("no epochs here")

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def stall(self) -> None:
        self.server.stall()

    def wake(self) -> None:
        self.server.wake()

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class WarmRocketMQ(RocketMQServer):
    """What it acknowledged is on disk, and who asks is known. On a busy machine a send may wait long for its turn."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            acl=True,
            settings={"flushDiskType": "SYNC_FLUSH", "waitTimeMillsInSendQueue": "10000"},
        )

    def start(self) -> None:
        """With the first sends of a JVM, which take seconds, longer than a test waits for one."""
        super().start()
        minute = timedelta(minutes=1)
        with RocketMQ(self.url(), send_timeout=minute, answer_timeout=minute) as patient:
            patient.create_topic("warm", 4)
            receipts = patient.publish([Message("warm", f"warm-{one}", b"x") for one in range(50)])
            assert all(receipt.outcome is Outcome.SENT for receipt in receipts), receipts


def _claimed(one: Stored) -> str:
    """The id of a message in RocketMQ; none of one that a killed broker had not finished writing."""
    return "" if one.cut_off else own_headers(one.properties)[ID_HEADER]


def _id_in(headers: str) -> str:
    return str(json.loads(headers)["backstop-message-id"])


ADAPTERS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], ServerUnderTest]]] = {
    "activemq": (Server, ActiveMQUnderTest),
    "redis_streams": (Valkey, RedisStreamsUnderTest),
    "rocketmq": (WarmRocketMQ, RocketMQUnderTest),
}
"""kind -> its server over a folder, and its adapter on that server."""


@pytest.fixture(scope="session", autouse=True)
def another_server_program() -> Iterator[None]:
    """BACKSTOP_TEST_REDIS_SERVER names the redis-server of another version, to run the suite against it."""
    program = os.environ.get("BACKSTOP_TEST_REDIS_SERVER")
    with pytest.MonkeyPatch.context() as patch:
        if program:
            patch.setattr("backstop_lab.servers.valkey.installed", lambda: Path(program))
        yield


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def kind(request: pytest.FixtureRequest) -> str:
    """All tests of one kind follow each other: a server that waits for its turn takes up to a fifth of a core."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of this kind, for one test at a time."""
    made = ADAPTERS[kind][0](tmp_path_factory.mktemp(kind))
    yield made
    made.kill()


@pytest.fixture
def adapter(kind: str, server: Any) -> Iterator[ServerUnderTest]:
    """An adapter on a running server of its kind: one that a test has killed is started again over its folder. A test names its own
    topics and groups, and may kill, stall and wipe the server."""
    if not server.running:
        server.start()
    under_test = ADAPTERS[kind][1](server)
    yield under_test
    under_test.close()


@pytest.fixture
def receive() -> Callable[..., list[Received]]:
    return fetch_all
