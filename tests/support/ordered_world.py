"""Ordered consumers on a real broker and database: keys, effects in the order of their commits, what is parked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import OrderedConsumer, Retries, Work
from backstop.leases import parking
from backstop.leases.guard import begin
from backstop.leases.lease import Begun, payload_hash
from backstop.model.records import Counts, Message
from client_world import GROUP, TOPIC, Database
from committed import empty

SOON = timedelta(milliseconds=20)
ORDERED_EFFECT = (
    "CREATE TABLE IF NOT EXISTS ordered_effect (number bigint GENERATED ALWAYS AS IDENTITY, ordering_key text,"
    " message_id text, member text, content bytea)"
)


def make_empty(database: Database) -> None:
    database.run(ORDERED_EFFECT)
    empty(database.dsn)


def write_effect(connection: Any, message: Message, member: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ordered_effect (ordering_key, message_id, member, content) VALUES (%s, %s, %s, %s)",
            (message.partition_key, message.message_id, member, message.content),
        )


class Handler:
    """Writes an effect; messages named in `failing` raise."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.tried: list[str] = []

    def by(self, member: str) -> Callable[[Any, Message, Work], None]:
        def handle(connection: Any, message: Message, work: Work) -> None:
            self.tried.append(message.message_id)
            write_effect(connection, message, member)
            if message.message_id in self.failing:
                raise ValueError(f"cannot read {message.message_id}")

        return handle


class OrderedWorld:
    valkey: Any = None
    """The broker's server, where a test needs it."""

    def __init__(self, broker: RedisStreams, database: Database) -> None:
        make_empty(database)
        self.broker, self.database, self.handler = broker, database, Handler()

    def publish(self, *ids: str, content: bytes = b"{}") -> None:
        """`key-number`: the key is what stands before the last hyphen."""
        messages = [Message(TOPIC, i, content, partition_key=i.rpartition("-")[0]) for i in ids]
        for receipt in self.broker.publish(messages):
            assert receipt.position is not None, receipt.error

    @contextmanager
    def worker(
        self,
        member: str = "w1",
        handler: Any = None,
        topics: Sequence[str] = (TOPIC,),
        through: Callable[[Any], Any] = lambda subscription: subscription,
        **values: Any,
    ) -> Iterator[OrderedConsumer]:
        """`through`: what stands between it and its subscription."""
        subscription = through(self.broker.subscribe_owned(GROUP, topics, member))
        values = {
            "retry_after": SOON,
            "beat": SOON,
            "retries": Retries(3, SOON, SOON),
            "workers": 4,
            "lease": timedelta(seconds=30),
            "queue_lease": timedelta(seconds=30),
            **values,
        }
        consumer = OrderedConsumer(
            subscription,
            self.database.connect,
            GROUP,
            handler or self.handler.by(member),
            member=member,
            **values,
        )
        try:
            yield consumer
            assert consumer.books.difference(consumer.in_process()) == 0, consumer.books.counts
        finally:
            consumer.close()
            subscription.close()

    def step(
        self, *consumers: OrderedConsumer, until: Callable[[], Any], seconds: float = 240.0
    ) -> Counts:
        """Rounds of these consumers until the condition holds."""
        counts, deadline = Counts(), time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"not reached: {counts}"
            for consumer in consumers:
                consumer._looked_at = float("-inf")
                consumer.step(counts)
                consumer._wait_for_result(0.002)
        return counts

    def effects(self, key: str | None = None) -> list[str]:
        rows = self.database.run(
            "SELECT ordering_key, message_id FROM ordered_effect ORDER BY number"
        )
        return [row["message_id"] for row in rows if key is None or row["ordering_key"] == key]

    def states(self, key: str = "") -> dict[str, str]:
        rows = self.database.run("SELECT message_id, state FROM consumer_log ORDER BY 1")
        return {
            row["message_id"]: row["state"] for row in rows if row["message_id"].startswith(key)
        }

    def parked(self) -> dict[str, tuple[str, list[str]]]:
        """The parked keys: state, and the ids kept, in order."""
        rows = self.database.run(
            "SELECT k.ordering_key, k.state, k.messages, k.bytes, m.ids, m.size FROM parked_key k,"
            " LATERAL (SELECT coalesce(array_agg(message_id ORDER BY number), '{}') AS ids,"
            " coalesce(sum(octet_length(content) + octet_length(headers)), 0) AS size FROM parked_message m"
            " WHERE (m.consumer_group, m.topic, m.ordering_key) = (k.consumer_group, k.topic, k.ordering_key)) m"
        )
        for row in rows:
            assert (row["messages"], row["bytes"]) == (len(row["ids"]), row["size"]), (
                "the key's counts are its list's"
            )
        return {row["ordering_key"]: (row["state"], row["ids"]) for row in rows}

    def stopped(self) -> list[tuple[str, str]]:
        return [
            (r["ordering_key"], r["reached"])
            for r in self.database.run("SELECT * FROM parking_full")
        ]

    def begin(self, message_id: str, content: bytes = b"{}", **values: Any) -> Begun:
        """Asked for by a consumer that keeps no order."""
        with closing(self.database.connect()) as connection:
            begun = begin(
                connection, GROUP, TOPIC, message_id, payload_hash=payload_hash(content), **values
            )
            connection.commit()
        return begun

    def stopped_copies(self, message_id: str) -> int:
        (log,) = self.database.log_of(GROUP, TOPIC, message_id)
        return int(log["duplicates_stopped"])

    def lag(self) -> int:
        return sum(self.broker.lag(TOPIC, GROUP).values())

    def owners(self) -> dict[int, str | None]:
        return {
            r["queue_id"]: r["owner"]
            for r in self.database.run("SELECT * FROM queue_owner ORDER BY queue_id")
        }

    def expire_queues(self) -> None:
        self.database.run(
            "UPDATE queue_owner SET expires_at = clock_timestamp() - interval '1 second'"
        )
        self.database.run(
            "UPDATE group_member SET expires_at = clock_timestamp() - interval '1 second'"
        )

    def expire_leases(self) -> None:
        self.database.run(
            "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE state = 'CONSUMING'"
        )

    def answer(self, what: str, key: str, content: bytes | None = None) -> None:
        connection = self.database.connect()
        try:
            if what in ("retry", "edit"):
                parking.answer_retry(connection, GROUP, TOPIC, key, "ann", content)
            else:
                parking.answer_discard(
                    connection, GROUP, TOPIC, key, "ann", whole_key=what == "discard key"
                )
            connection.commit()
        finally:
            connection.close()
