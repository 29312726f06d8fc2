"""A small system whose broker is a real RocketMQ, and the hands that make dead letters there as consumers make them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg2
from psycopg2.extras import Json

from backstop.brokers.open import open_broker
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.message.names import dead_letter_topic, encode_group, encode_topic
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import only_answers
from backstop.brokers.rocketmq.wire.frames import Request
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import ID_HEADER, Counts, Message, Outcome
from backstop.resend.run_once import run_duty as resend_duty
from backstop.runs.run import close_run, open_run
from backstop.triage import run_once
from backstop.triage.drain.drain import Bounds, drain_all
from backstop_lab.servers.postgres import Postgres
from rocketmq_server import RocketMQ as Server
from system import fresh_databases, settings_dict

WAIT_SECONDS = 120.0
PULL = {
    "consumerGroup": "TOOLS_CONSUMER",
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "subVersion": 0,
    "expressionType": "TAG",
}
BROKER = "rmq"


def until(what: str, holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Waits for a condition; returns what it said."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
        time.sleep(0.02)
    return found


@dataclass
class World:
    """One topic with two groups, of names that nobody else has."""

    server: Server
    settings: Settings
    connections: Connections
    broker: RocketMQ
    urls: Mapping[str, str]
    topic: str
    group: str
    other: str
    offsets: dict[int, int] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return dead_letter_topic(self.group)

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        """One committed statement."""
        connection = psycopg2.connect(self.urls[database])
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def control(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self.rows("control", query, *values)

    def stored(self, columns: str = "message_id") -> list[Any]:
        """Of every letter in the control database, in the order in which they were stored."""
        rows = self.control(f"SELECT {columns} FROM dead_letter ORDER BY dead_letter_id")
        return [row[0] if len(row) == 1 else row for row in rows]

    def left(self, group: str | None = None) -> list[str | None]:
        """Ids of what the broker's dead-letter queue holds that is not acknowledged."""
        return [letter.message_id for letter in self.broker.dead_letters(group or self.group)]

    def publish(self, messages: Sequence[Message]) -> None:
        """Each of them is there, however long a busy machine takes."""
        with RocketMQ(self.server.url(), send_timeout=timedelta(seconds=WAIT_SECONDS)) as patient:
            left = list(messages)
            while left:
                receipts = patient.publish(left)
                assert all(receipt.outcome is not Outcome.UNKNOWN for receipt in receipts), receipts
                left = [
                    one
                    for one, receipt in zip(left, receipts, strict=True)
                    if receipt.outcome is Outcome.REFUSED
                ]

    def message(self, message_id: str, content: bytes = b"{}", **headers: str) -> Message:
        return Message(self.topic, message_id, content, {ID_HEADER: message_id, **headers})

    def give_up(self, messages: Sequence[Stored], group: str | None = None) -> None:
        """What RocketMQ's consumers send when they give a message up at once: the broker writes the letter."""
        requests = [
            Request(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {
                    "offset": one.physical_offset,
                    "group": encode_group(group or self.group),
                    "delayLevel": -1,
                    "originMsgId": one.store_id,
                    "originTopic": one.topic,
                    "unitMode": False,
                    "maxReconsumeTimes": 16,
                },
                lane="in this order",
            )
            for one in messages
        ]
        for answer in only_answers(
            self.broker._pool.ask_many(
                self.server.address, requests, time.monotonic() + WAIT_SECONDS
            )
        ):
            assert answer.code == ResponseCode.SUCCESS, answer.said()

    def die(self, *ids: str, content: bytes = b"{}", group: str | None = None) -> list[Stored]:
        """These are published, and the group gives them up, in this order."""
        self.publish([self.message(one, content) for one in ids])
        found = {one.properties[ID_HEADER]: one for one in self.new_messages(len(ids))}
        self.give_up([found[one] for one in ids], group)
        return [found[one] for one in ids]

    def new_messages(self, count: int) -> list[Stored]:
        """What was published since the last call, as it is stored."""
        found: list[Stored] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages were found"
            for queue in range(2):
                at = self.offsets.setdefault(queue, 0)
                [answer] = only_answers(
                    self.broker._pool.ask_many(
                        self.server.address,
                        [
                            Request(
                                RequestCode.PULL_MESSAGE,
                                {
                                    **PULL,
                                    "topic": encode_topic(self.topic),
                                    "queueId": queue,
                                    "queueOffset": at,
                                    "maxMsgNums": 32,
                                },
                            )
                        ],
                        deadline,
                    )
                )
                if answer.code == ResponseCode.SUCCESS:
                    found += read_stored(answer.body)
                    self.offsets[queue] = answer.number("nextBeginOffset")
        return found

    def drain(self, *, page: int = 2_000, scope: str = "*") -> Counts:
        control = connect(self.settings, self.connections)
        try:
            run = open_run(control, "triage", scope, self.settings, dead_after=timedelta(0))
            counts = drain_all(
                self.settings, self.connections, control, run, bounds=Bounds(page=page)
            )
            close_run(control, run, "done", {})
            return counts
        finally:
            control.close()

    def triage(self) -> Counts:
        return run_once.run_duty(self.settings, self.connections)

    def resend_now(self) -> int:
        """How many copies went out. A request that was postponed a moment ago is looked at again."""
        self.control(
            "UPDATE resend_request SET not_before = now() - interval '1 second' WHERE state = 'open'"
        )
        return int(resend_duty(self.settings, self.connections).get("published", 0))

    def sent_before(self, message_id: str, headers: Mapping[str, str] | None = None) -> None:
        """The stub of a message that its application sent a minute ago."""
        self.rows(
            "shop_a",
            """
            INSERT INTO message_stub (topic, message_id, content, headers, send_count, created_at, first_seen_at, next_check_at,
                attempted_at, sent_at, attempt_deadline)
            VALUES (%s, %s, %s, %s, 1, now() - interval '1 minute', now() - interval '1 minute', now() - interval '1 second',
                now() - interval '1 minute', now() - interval '1 minute', now() - interval '30 seconds')""",
            self.topic,
            message_id,
            b"{}",
            Json(dict(headers or {})),
        )
        self.rows(
            "shop_a",
            """
            INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)
            VALUES (%s, %s, 1, 'producer', now() - interval '1 minute', 'sent')""",
            self.topic,
            message_id,
        )

    def log(
        self, message_id: str, state: str, error: str | None = None, group: str | None = None
    ) -> None:
        self.rows(
            "billing_db",
            """
            INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, updated_at, lease_expires_at,
                last_error)
            VALUES (%s, %s, %s, %s, CASE WHEN %s = 'CONSUMED' THEN now() END, now() - interval '1 minute', now(), %s)""",
            group or self.group,
            self.topic,
            message_id,
            state,
            state,
            error,
        )


def put(server: Server, topic: str, queue: int, properties: Mapping[str, str], body: bytes) -> str:
    """Stores a message past the adapter; returns the broker's own id of it."""
    written = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return server.ask(
        310,
        {
            "a": "producer",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue,
            "f": 0,
            "g": 0,
            "h": 0,
            "i": written,
            "j": 0,
            "k": False,
            "m": False,
        },
        body,
    ).ext["msgId"]


@contextmanager
def world_of(
    postgres: Postgres,
    server: Server,
    *,
    names: str = "-",
    other_duplicates: str = "guard",
    **options: Any,
) -> Iterator[World]:
    """A fresh system on a server that other tests use too: databases are empty, topic and groups are new. `names`: is in the names."""
    with (
        fresh_databases(postgres, ("control", "shop_a", "billing_db")) as urls,
        _world_of(
            {"broker": server.url(), **urls}, server, names, other_duplicates, options
        ) as made,
    ):
        yield made


@contextmanager
def _world_of(
    urls: dict[str, str], server: Server, names: str, other_duplicates: str, options: Any
) -> Iterator[World]:
    name = f"r{uuid.uuid4().hex[:10]}"
    topic, group, other = f"orders{names}{name}", f"billing{names}{name}", f"shipping{names}{name}"
    settings = Settings.model_validate(
        settings_dict(
            brokers={
                BROKER: {
                    "kind": "rocketmq",
                    "connection": "broker",
                    "retry_schedule": "10s",
                    "options": {"delivery_limit": 3, **options},
                }
            },
            producers={"shop_a": {"connection": "shop_a"}},
            consumers={"billing_db": {"connection": "billing_db"}},
            groups={
                one: {"store": "billing_db", "duplicates": duplicates, "progress": "acknowledged"}
                for one, duplicates in ((group, "guard"), (other, other_duplicates))
            },
            topics={topic: {"broker": BROKER, "groups": [group, other], "mode": "repair"}},
            policy={"claim_timeout": "3m"},
        )
    )
    connections = Connections(resolver=urls.get)
    broker = open_broker(settings, connections, BROKER)
    assert isinstance(broker, RocketMQ)
    broker.create_topic(topic, 2)
    for one in (group, other):
        broker.create_group(one, topic, "start")
    try:
        yield World(server, settings, connections, broker, urls, topic, group, other)
    finally:
        broker.close()
