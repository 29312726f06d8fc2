"""A producer that lives through everything: an order and its stub in one transaction, a send after the commit, again.

It keeps no promise in its memory: what was not sent, or of which nobody knows how it ended, is Backstop's.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2

from backstop.client import KeptConnection, NewMessage, Recorded, SendPolicy, record_many, send_many
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.spark.watch_parent import watch_parent
from backstop.sql.named import load
from backstop_lab.shop.own_broker import own_broker
from backstop_lab.shop.traffic_producer import ODD, orders_placed

_SQL = load("backstop_lab.shop", "business.sql")
EVERY = 0.5
"""Seconds between two batches."""


class Producer:
    """One shard's. `places` is the JSON that its owner wrote for it (mode 0600)."""

    def __init__(self, places: dict[str, Any]) -> None:
        self._places = places
        self._business: Any = None
        self._settling = KeptConnection(self._connect, "producer database")
        self._broker = own_broker(places)
        policy = places["policy"]
        self._policy = SendPolicy(
            first_check=timedelta(seconds=policy["first_check"]),
            attempt_timeout=timedelta(seconds=policy["attempt_timeout"]),
            max_send_duration=timedelta(seconds=policy["max_send_duration"]),
        )
        self._chance = random.Random(places["seed"])
        self._number = 0

    def _connect(self) -> Any:
        return psycopg2.connect(self._places["database"], connect_timeout=10)

    def make(self, count: int) -> Counts:
        """One batch. A database or broker that is away costs the batch, or its send, and is counted."""
        counts = Counts()
        try:
            recorded = self._record(count)
        except psycopg2.Error as error:
            # Whether a commit that was cut off took place is the database's to say: the stub is there, or nothing is.
            counts.add(f"not recorded: {type(error).__name__}")
            if self._business is not None:
                self._business.close()
            self._business = None
            return counts
        counts.add("recorded", len(recorded))
        try:
            for end in send_many(
                recorded, self._broker, self._settling, broker_name=self._places["broker_name"]
            ):
                counts.add(str(end.state))
        except Unavailable:
            counts.add("not sent", len(recorded))
        return counts

    def _record(self, count: int) -> list[Recorded]:
        if self._business is None:
            self._business = self._connect()
            with self._business, self._business.cursor() as cursor:
                cursor.execute(_SQL["last_number"])
                [(last,)] = cursor.fetchall()
            self._number = int(last)
        numbers = list(range(self._number + 1, self._number + count + 1))
        topics = [self._chance.choice(self._places["topics"]) for _ in numbers]
        ids = [
            f"{self._places['shard']}-{number}{ODD if number % 50 == 7 else ''}"
            for number in numbers
        ]
        amounts = [self._chance.randint(1, 500) for _ in numbers]
        messages = [
            NewMessage(
                topic,
                message_id,
                json.dumps({"amount": amount}).encode(),
                content_type="application/json",
            )
            for topic, message_id, amount in zip(topics, ids, amounts, strict=True)
        ]
        with self._business, self._business.cursor() as cursor:
            cursor.execute(
                orders_placed(count), list(zip(numbers, topics, ids, amounts, strict=True))
            )
            recorded = record_many(self._business, messages, policy=self._policy)
        self._number += count
        return recorded


def main(arguments: list[str]) -> int:
    places = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    watch_parent(1)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    producer, counts = Producer(places), Counts()
    batch = max(1, round(places["rate"] * EVERY))
    while not stop.wait(EVERY):
        counts += producer.make(batch)
    print(counts, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
