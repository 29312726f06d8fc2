"""One producer of the demo: writes orders and stubs in one transaction, sends, dies where it is told to.

Orders come line by line on its standard input, answers go to standard output, so that a producer whose owner
is gone reads the end of its input and ends too. It goes on after a crash from what is in its database.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from backstop.brokers.protocol import Broker, Receipt
from backstop.client import (
    KeptConnection,
    NewMessage,
    Recorded,
    SendPolicy,
    SendState,
    record_many,
    send_many,
)
from backstop.model.records import Message, Outcome
from backstop.sql.named import load
from backstop.sql.run import is_deadlock
from backstop_lab.shop.databases import connect, transaction
from backstop_lab.shop.ledger import NOT_IN_TIME, Key, Ledger
from backstop_lab.shop.own_broker import own_broker

_SQL = load("backstop_lab.shop", "business.sql")
ODD = "£%:{}'\"é漢"
"""Some ids hold what breaks careless code."""
NOT_SENT = (SendState.LEFT, SendState.REFUSED)


@dataclass(frozen=True)
class Order:
    """One line of input: make `count` messages of a topic, and what shall go wrong with them."""

    topic: str
    count: int
    batch: int = 200
    first_check: float | None = None
    """Seconds until Backstop may look; None: the policy's."""
    message_ids: Sequence[str] | None = None
    """Made by the producer when None."""
    bodies: Sequence[str] | None = None
    """Their contents, one each; made by the producer when None."""
    ordering_keys: Sequence[str] | None = None
    """One each; of an order that is made in one batch."""
    headers: dict[str, str] = field(default_factory=dict)
    fault: str | None = None
    """The ledger that the messages are written to, after the commit and before the send."""
    consumer_group: str | None = None
    detail: str | None = None
    die: str | None = None
    """`before_send` or `in_send`: kill this process there, in the first batch."""
    send: bool = True
    tell: bool = False
    """Answer with the ids."""


class DyingBroker:
    """Publishes, writes down what is out, and kills its own process before anybody can note the answer."""

    def __init__(self, broker: Broker, ledger: Ledger, fault: str) -> None:
        self._broker, self._ledger, self._fault = broker, ledger, fault

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        receipts = self._broker.publish(messages, group=group)
        out = [
            message.key
            for message, receipt in zip(messages, receipts, strict=True)
            if receipt.outcome is Outcome.SENT
        ]
        self._ledger.append(self._fault, out)
        os.kill(os.getpid(), signal.SIGKILL)
        return receipts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class Producer:
    """One shard's producer. `places` is the JSON that its owner wrote for it (mode 0600)."""

    def __init__(self, places: dict[str, Any]) -> None:
        self._places = places
        self._shard: str = places["shard"]
        self._ledger = Ledger(Path(places["ledger"]))
        self._random = random.Random(f"{places['seed']} {self._shard}")
        self._business = self._connect()
        self._settling = KeptConnection(self._connect, "producer database")
        self._broker = own_broker(places)
        with transaction(self._business) as cursor:
            cursor.execute(_SQL["last_number"])
            [(last,)] = cursor.fetchall()
        self._number = int(last)

    def _connect(self) -> Any:
        return connect(self._places["database"])

    def make(self, order: Order) -> list[str]:
        """Writes and sends `order.count` messages in batches; returns their ids."""
        made: list[str] = []
        while len(made) < order.count:
            size = min(order.batch, order.count - len(made))
            given = order.message_ids[len(made) : len(made) + size] if order.message_ids else None
            bodies = order.bodies[len(made) : len(made) + size] if order.bodies else None
            recorded = self._record(order, size, given, bodies)
            keys: list[Key] = [one.message.key for one in recorded]
            made += [message_id for _, message_id in keys]
            if order.fault and order.die != "in_send":
                self._ledger.append(
                    order.fault, keys, consumer_group=order.consumer_group, detail=order.detail
                )
            if order.die == "before_send":
                os.kill(os.getpid(), signal.SIGKILL)
            if order.send:
                self._send(order, recorded)
        return made

    def _record(
        self, order: Order, size: int, given: Sequence[str] | None, bodies: Sequence[str] | None
    ) -> list[Recorded]:
        numbers = list(range(self._number + 1, self._number + size + 1))
        ids = list(given) if given else [self._id(number) for number in numbers]
        amounts = [self._random.randint(1, 500) for _ in numbers]
        contents = (
            list(bodies) if bodies else [json.dumps({"amount": amount}) for amount in amounts]
        )
        messages = [
            NewMessage(
                order.topic,
                message_id,
                content.encode(),
                headers=order.headers,
                content_type="application/json",
                ordering_key=key,
            )
            for message_id, content, key in zip(
                ids, contents, order.ordering_keys or itertools.repeat(None, size), strict=True
            )
        ]
        placed = [
            (number, order.topic, message_id, amount)
            for number, message_id, amount in zip(numbers, ids, amounts, strict=True)
        ]
        recorded = self._committed(order, placed, messages)
        self._number += size
        return recorded

    def _committed(
        self, order: Order, placed: Sequence[tuple[Any, ...]], messages: Sequence[NewMessage]
    ) -> list[Recorded]:
        """The business change and its stubs in one transaction, which is repeated when it was undone so that others could go on."""
        while True:
            try:
                with transaction(self._business) as cursor:
                    cursor.execute(orders_placed(len(placed)), placed)
                    return record_many(
                        self._business,
                        messages,
                        policy=self._policy(order.first_check),
                        send=order.send,
                    )
            except Exception as error:
                if not is_deadlock(error):
                    raise

    def _send(self, order: Order, recorded: Sequence[Recorded]) -> None:
        broker: Any = self._broker
        if order.die == "in_send" and order.fault:
            broker = DyingBroker(self._broker, self._ledger, order.fault)
        ends = send_many(recorded, broker, self._settling, broker_name=self._places["broker_name"])
        left = [end.key for end in ends if end.state in NOT_SENT]
        if order.fault not in ("refused", "crash_in_send"):
            self._ledger.append(NOT_IN_TIME, left)

    def _policy(self, first_check: float | None) -> SendPolicy:
        policy = self._places["policy"]
        return SendPolicy(
            first_check=timedelta(seconds=first_check or policy["first_check"]),
            attempt_timeout=timedelta(seconds=policy["attempt_timeout"]),
            max_send_duration=timedelta(seconds=policy["max_send_duration"]),
        )

    def _id(self, number: int) -> str:
        return f"{self._shard}-{number}{ODD if number % 50 == 7 else ''}"


def orders_placed(count: int) -> str:
    """One batch of business changes, each a tuple."""
    return _SQL["order_placed"].replace("{rows}", ", ".join(["%s"] * count))


def orders() -> Iterator[Order]:
    for line in sys.stdin:
        yield Order(**json.loads(line))


def main(arguments: list[str]) -> int:
    producer = Producer(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    print(json.dumps({"ready": True}), flush=True)
    for order in orders():
        made = producer.make(order)
        print(json.dumps({"made": len(made), "ids": made if order.tell else []}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
