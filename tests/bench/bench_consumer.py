"""consumer.*: ordered lanes beside a plain loop, the pause of a handover, and how long a poisoned key holds up anybody."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2

from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams import RedisStreams
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.client import OrderedConsumer, Retries, Work
from backstop.client.finished import FinishedOffsets
from backstop.leases import parking
from backstop.model.records import Message, Position
from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import Row, alternating, median
from compile_java import class_path, compiled, java
from rocketmq_java import SOURCES
from rocketmq_server import RocketMQ as RocketMQServer

TOPIC, GROUP = "orders", "billing"
KEYS, QUEUES, MESSAGES, MANY = 1_000, 8, 4_000, 100_000
HANDLER_SECONDS = 0.001
PATIENCE = 3_600.0
WORKERS = 16
EFFECT = "CREATE TABLE effect (message_id text, queue integer, at float8, member text)"
DEDUP = "; CREATE TABLE dedup (message_id text PRIMARY KEY)"


class Stage:
    def __init__(self, broker: Any, dsn: str, group: str = GROUP) -> None:
        self.dsn, self.broker, self.number, self.sent = dsn, broker, 0, 0
        self.topic, self.group = TOPIC, group
        self.poison: set[str] = set()

    def connect(self) -> Any:
        return psycopg2.connect(self.dsn)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def fresh(self, messages: int = 0) -> None:
        """A new topic with so many messages in it, round the keys."""
        self.run(
            "TRUNCATE consumer_log, effect, dedup, queue_owner, group_member, parked_key, parked_message, parking_full"
        )
        self.number += 1
        self.sent, self.topic, self.poison = 0, f"{TOPIC}-{self.number}", set()
        self.broker.create_topic(self.topic, QUEUES)
        self.broker.create_group(self.group, self.topic, "start")
        while self.sent < messages:
            self.publish(min(1_000, messages - self.sent))

    def publish(self, size: int) -> None:
        numbers = range(self.sent, self.sent + size)
        self.broker.publish(
            [
                Message(self.topic, f"{n % KEYS}-{n}", b"{}", partition_key=str(n % KEYS))
                for n in numbers
            ]
        )
        self.sent += size

    def handler(self, member: str) -> Callable[[Any, Message, Work], None]:
        def handle(connection: Any, message: Message, work: Work) -> None:
            time.sleep(HANDLER_SECONDS)
            if message.message_id in self.poison:
                raise ValueError("poison")
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO effect (message_id, queue, at, member) SELECT %s, queue_id, %s, %s FROM consumer_log"
                    " WHERE (consumer_group, topic, message_id) = (%s, %s, %s)",
                    (
                        message.message_id,
                        time.time(),
                        member,
                        self.group,
                        message.topic,
                        message.message_id,
                    ),
                )

        return handle

    @contextmanager
    def consumer(
        self, member: str = "one", workers: int = WORKERS
    ) -> Iterator[tuple[OrderedConsumer, Callable[[], None]]]:
        """It runs in a thread; the function stops it gracefully."""
        subscription = self.broker.subscribe_owned(self.group, [self.topic], member)
        made = OrderedConsumer(
            subscription,
            self.connect,
            self.group,
            self.handler(member),
            member=member,
            workers=workers,
            beat=timedelta(milliseconds=100),
            retries=Retries(3, timedelta(milliseconds=100)),
        )
        stop = threading.Event()
        thread = threading.Thread(target=made.run, args=(stop,))
        thread.start()

        def end() -> None:
            stop.set()
            thread.join()

        try:
            yield made, end
        finally:
            end()
            made.close()
            subscription.close()

    def wait(self, done: Callable[[], Any], every: float = 0.05) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"not done after {PATIENCE} s"
            time.sleep(every)

    def is_empty(self) -> bool:
        return not any(self.broker.lag(self.topic, self.group).values())


@contextmanager
def stage() -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Valkey(Path(folder) / "vk") as valkey,
        Postgres(Path(folder) / "pg") as postgres,
    ):
        postgres.create_database("consumer")
        made = Stage(RedisStreams(valkey.url()), postgres.admin_dsn("consumer"))
        made.run(whole("consumer"))
        made.run(EFFECT + DEDUP)
        yield made
        made.broker.close()


def _lanes(world: Stage, messages: int) -> float:
    world.fresh(messages)
    begun = time.perf_counter()
    with world.consumer():
        world.wait(world.is_empty)
        return time.perf_counter() - begun


def _plain_loop(world: Stage, messages: int) -> float:
    """What people write: one message after the other, the effect and an id in one transaction, then the acknowledgement."""
    world.fresh(messages)
    connection, subscription = (
        world.connect(),
        world.broker.subscribe(world.group, [world.topic], "plain"),
    )
    begun, left = time.perf_counter(), messages
    while left:
        for received in subscription.fetch(100, timedelta(seconds=1)):
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO dedup VALUES (%s) ON CONFLICT DO NOTHING",
                    (received.message.message_id,),
                )
                if cursor.rowcount:
                    time.sleep(HANDLER_SECONDS)
                    cursor.execute(
                        "INSERT INTO effect (message_id) VALUES (%s)",
                        (received.message.message_id,),
                    )
            subscription.acknowledge([received])
            left -= 1
    spent = time.perf_counter() - begun
    subscription.close()
    connection.close()
    return spent


def lanes(full: bool) -> list[Row]:
    """Messages of 1,000 keys with handlers of 1 ms."""
    messages = MANY if full else MESSAGES
    with stage() as world:
        ours, plain = alternating(
            lambda: _lanes(world, messages), lambda: _plain_loop(world, messages)
        )
    rate, peer = round(messages / median(ours)), round(messages / median(plain))
    return [
        Row(
            "consumer.lanes",
            rate,
            "messages/s",
            "-",
            None,
            peer=peer,
            rows=messages,
            runs=ours,
            peer_runs=plain,
            note=f"{KEYS} keys, {HANDLER_SECONDS * 1000:g} ms handlers, {WORKERS} threads; peer: a plain loop, one by one",
        )
    ]


@contextmanager
def rocketmq_stage() -> Iterator[tuple[Stage, RocketMQServer]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        RocketMQServer(Path(folder) / "mq") as server,
        Postgres(Path(folder) / "pg") as postgres,
    ):
        postgres.create_database("consumer")
        broker = RocketMQ(server.url(), delay_levels=server.settings["messageDelayLevel"])
        made = Stage(broker, postgres.admin_dsn("consumer"))
        made.run(whole("consumer"))
        made.run(EFFECT + DEDUP)
        yield made, server
        broker.close()


def _fresh_group(world: Stage, messages: int) -> None:
    """A group of its own for each run: the brokers remember members."""
    world.group = f"{GROUP}-{world.number + 1}"
    world.fresh(messages)


def _between_effects(world: Stage, messages: int) -> float:
    """Seconds from the first effect to the last: without the start of a process, or of sharing the queues."""
    world.wait(lambda: world.run("SELECT count(*) FROM effect")[0][0] == messages)
    return float(world.run("SELECT max(at) - min(at) FROM effect")[0][0])


def _lanes_on_rocketmq(world: Stage, messages: int) -> float:
    _fresh_group(world, messages)
    with world.consumer():
        return _between_effects(world, messages)


def _official(world: Stage, server: RocketMQServer, messages: int, folder: Path) -> float:
    """RocketMQ's Java client, MessageListenerOrderly: in order for each queue."""
    _fresh_group(world, messages)
    shown = psycopg2.extensions.parse_dsn(world.dsn)
    url = (
        f"jdbc:postgresql://{shown['host']}:{shown['port']}/{shown['dbname']}?user={shown['user']}"
        f"&password={shown.get('password', '')}"
    )
    folder.mkdir(exist_ok=True)
    with (folder / "java.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(java()),
                "-Xmx256m",
                f"-Duser.home={folder}",
                f"-Drocketmq.client.logRoot={folder}",
                "-cp",
                f"{class_path(compiled(SOURCES))}{os.pathsep}{os.environ['BACKSTOP_JDBC_JAR']}",
                "Orderly",
                server.namesrv,
                world.group,
                world.topic,
                url,
                str(WORKERS),
                str(int(HANDLER_SECONDS * 1000)),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            return _between_effects(world, messages)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def official(full: bool) -> list[Row]:
    """The same messages on RocketMQ: lanes by key beside the official client's ordered consumer."""
    messages = MANY if full else MESSAGES
    with rocketmq_stage() as (world, server), tempfile.TemporaryDirectory() as folder:
        ours, theirs = alternating(
            lambda: _lanes_on_rocketmq(world, messages),
            lambda: _official(world, server, messages, Path(folder) / "java"),
        )
    return [
        Row(
            "consumer.official",
            round(messages / median(ours)),
            "messages/s",
            "-",
            None,
            peer=round(messages / median(theirs)),
            rows=messages,
            runs=ours,
            peer_runs=theirs,
            note=f"RocketMQ, {QUEUES} queues, {KEYS} keys, {HANDLER_SECONDS * 1000:g} ms handlers, {WORKERS} threads;"
            " peer: its Java client's MessageListenerOrderly with an id against doubles in the handler's transaction",
        )
    ]


def handover(full: bool) -> list[Row]:
    """How long a queue stands while it changes hands under traffic: from the old owner's last effect to the new one's first."""
    rounds = 10 if full else 4
    pauses: list[float] = []
    with stage() as world:
        for number in range(rounds):
            world.fresh()
            stop = threading.Event()
            sender = threading.Thread(
                target=lambda stop=stop: [
                    world.publish(10) for _ in iter(lambda: stop.wait(0.05), True)
                ]
            )
            with world.consumer(f"old-{number}") as (_, end):
                sender.start()
                world.wait(
                    lambda: world.run("SELECT count(DISTINCT queue) FROM effect")[0][0] == QUEUES
                )
                with world.consumer(f"new-{number}"):
                    end()
                    asked = (
                        f"SELECT count(DISTINCT queue) FROM effect WHERE member = 'new-{number}'"
                    )
                    world.wait(lambda asked=asked: world.run(asked)[0][0] == QUEUES)
                    stop.set()
                    sender.join()
                    world.wait(world.is_empty)
            assert world.run("SELECT count(*), count(DISTINCT message_id) FROM effect")[0] == (
                world.sent,
                world.sent,
            )
            by_queue: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for queue, member, at in world.run("SELECT queue, member, at FROM effect ORDER BY at"):
                by_queue[queue][member[:3]].append(at)
            pauses += [
                max(0.0, each["new"][0] - each["old"][-1])
                for each in by_queue.values()
                if each["old"]
            ]
    worst = statistics.quantiles(pauses, n=100)[98] * 1000
    middle = median(pauses) * 1000
    return [
        Row(
            "consumer.handover",
            round(worst),
            "ms (p99)",
            "-",
            None,
            rows=len(pauses),
            note=f"{len(pauses)} queues handed over under traffic, 0 messages done twice; median {middle:.0f} ms",
        )
    ]


def unblock(full: bool) -> list[Row]:
    """From the first failure of a poisoned key until it is parked and its queue goes on; from the answer until it is done."""
    parked: list[float] = []
    released: list[float] = []
    with stage() as world:
        for _ in range(10 if full else 4):
            world.fresh(KEYS)
            world.poison = {"7-7"}
            world.publish(10 * KEYS if full else 2 * KEYS)
            with world.consumer():
                world.wait(
                    lambda: world.run(
                        "SELECT 1 FROM consumer_log WHERE message_id = '7-7' AND attempts > 0"
                    ),
                    0.005,
                )
                begun = time.perf_counter()
                world.wait(lambda: world.run("SELECT 1 FROM parked_key"), 0.005)
                parked.append(time.perf_counter() - begun)
                world.wait(world.is_empty)
                world.poison = set()
                begun = time.perf_counter()
                with world.connect() as connection:
                    parking.answer_retry(connection, GROUP, world.topic, "7", "ann")
                world.wait(lambda: not world.run("SELECT 1 FROM parked_key"), 0.005)
                released.append(time.perf_counter() - begun)
    return [
        Row(
            "consumer.unblock",
            median(parked),
            "s",
            "-",
            None,
            runs=parked,
            note="from the first try of the poison message to its key being parked: 3 tries, 0.1 s and 0.2 s apart",
        ),
        Row(
            "consumer.release",
            median(released),
            "s",
            "-",
            None,
            runs=released,
            note="from a person's answer until every kept message of the key is done, in order",
        ),
    ]


def done_set(full: bool) -> list[Row]:
    """An answer of the duplicate filter, over 10^6 offsets of which one in a hundred comes again and 100 are unfinished."""
    offsets, done = 1_000_000, FinishedOffsets()
    place = (TOPIC, 0)
    unfinished = frozenset(range(offsets - 500, offsets, 5))
    most = kept = 0
    asked: list[Received] = []
    for offset in range(offsets):
        one = Received(Message(TOPIC, str(offset), b""), Position(0, offset, "e"), "", 1)
        done.fetched(one)
        if offset not in unfinished:
            done.add(one)
        if offset % 100 == 0:
            asked.append(one)
        if offset % 1_000 == 999:
            most, kept = max(most, done.gaps(place)), max(kept, done.size())
    rounds: list[float] = []
    for _ in range(11):
        begun = time.perf_counter()
        again = sum(map(done.knows, asked))
        rounds.append((time.perf_counter() - begun) / len(asked) * 1e6)
    each = median(rounds)
    assert again > 0 and not any(
        done.knows(one) for one in asked if one.position.offset in unfinished
    )
    return [
        Row(
            "consumer.done_set",
            round(each, 3),
            "us/answer",
            "< 2",
            each < 2,
            rows=offsets,
            note=f"at most {most} intervals, {kept} offsets and ids kept, {len(done.saved(place) or '')} bytes saved",
        )
    ]


BENCHMARKS = {
    ("consumer.lanes",): lanes,
    ("consumer.official",): official,
    ("consumer.handover",): handover,
    ("consumer.unblock", "consumer.release"): unblock,
    ("consumer.done_set",): done_set,
}
