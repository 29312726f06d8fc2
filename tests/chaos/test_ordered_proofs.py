"""What ordered consumption promises, at size: poison among many keys, and many copies.

The small sizes are part of `make test`; the large ones (marker soak) print their figures.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import OrderedConsumer, Retries, Work
from backstop.client.finished import MOST_NOTED
from backstop.leases import parking
from backstop.model.records import Counts, Message
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, Database, broker, consumer, postgres, valkey  # noqa: F401
from ordered_world import OrderedWorld

TOPIC, QUEUES, KEYS = "proofs", 8, 1_000
SOON = timedelta(milliseconds=20)
SLOWEST = 20
"""Messages a second: what waits at the end is done no slower than this."""
MANY = int(os.environ.get("PROOF_MESSAGES") or 0)
"""Sizes of the large proofs, where somebody wants others."""
EFFECT = (
    "DROP TABLE IF EXISTS proof_effect; CREATE TABLE proof_effect (number bigint GENERATED ALWAYS AS IDENTITY,"
    " ordering_key text, message_id text, seconds float8)"
)


def until(what: str, holds: Callable[[], Any], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


class Proof:
    """One topic with a consumer in a thread; every effect says how long after its sending it was done."""

    def __init__(self, broker: RedisStreams, database: Database) -> None:
        self.ordered = OrderedWorld(broker, database)
        database.run(EFFECT)
        broker.create_topic(TOPIC, QUEUES)
        broker.create_group(GROUP, TOPIC, "start")
        self.broker, self.database, self.poison = broker, database, frozenset[str]()
        self.sent: list[str] = []

    def publish(self, size: int, *, again: int = 0) -> None:
        """So many new messages round the keys, and copies of every `again`th of them."""
        start = len(self.sent)
        ids = [f"{n % KEYS}-{n:07}" for n in range(start, start + size)]
        self.sent += ids
        now = str(time.time()).encode()
        copies = ids[::again] if again else []
        self.broker.publish(
            [Message(TOPIC, i, now, partition_key=i.partition("-")[0]) for i in [*ids, *copies]]
        )

    def handle(self, connection: Any, message: Message, work: Work) -> None:
        if message.message_id in self.poison:
            raise ValueError("poison")
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO proof_effect (ordering_key, message_id, seconds) VALUES (%s, %s, %s)",
                (message.partition_key, message.message_id, time.time() - float(message.content)),
            )

    def run(self, during: Callable[[OrderedConsumer], None]) -> Counts:
        """The consumer works until `during` returns and everything is passed."""
        subscription = self.broker.subscribe_owned(GROUP, [TOPIC], "one")
        made = OrderedConsumer(
            subscription,
            self.database.connect,
            GROUP,
            self.handle,
            member="one",
            workers=8,
            beat=timedelta(seconds=1),
            retries=Retries(3, SOON, SOON),
            retry_after=SOON,
        )
        counts, stop = Counts(), threading.Event()
        thread = threading.Thread(target=lambda: made.run(stop, counts=counts))
        thread.start()
        try:
            during(made)
            seconds = 60 + len(self.sent) / SLOWEST
            until("the end", lambda: not any(self.broker.lag(TOPIC, GROUP).values()), seconds)
        finally:
            stop.set()
            thread.join()
            made.close()
            subscription.close()
        assert made.books.difference(made.in_process()) == 0
        return counts

    def release(self, key: str) -> None:
        """The cause is repaired and a person answers: until everything of the key is done."""
        self.poison = frozenset()
        connection = self.database.connect()
        with connection:
            parking.answer_retry(connection, GROUP, TOPIC, key, "ann")
        connection.close()
        self.run(lambda _: until("the release", lambda: self.ordered.parked() == {}))

    def one(self, what: str, where: str = "") -> Any:
        return self.database.one(f"SELECT {what} AS found FROM proof_effect {where}")["found"]

    def out_of_order(self) -> int:
        return int(
            self.database.one(
                "SELECT count(*) AS found FROM (SELECT message_id < lag(message_id) OVER (PARTITION BY ordering_key ORDER BY number)"
                " AS odd FROM proof_effect) e WHERE odd"
            )["found"]
        )


@pytest.fixture
def proof(broker: RedisStreams, consumer: Database) -> Proof:
    return Proof(broker, consumer)


def steady(proof: Proof, messages: int, rate: float) -> Callable[[OrderedConsumer], None]:
    """Sends at this rate, whatever the consumer does."""

    def send(_: OrderedConsumer) -> None:
        begun = time.monotonic()
        while len(proof.sent) < messages:
            due = min(messages, int((time.monotonic() - begun) * rate) + 1)
            if due > len(proof.sent):
                proof.publish(due - len(proof.sent))
            time.sleep(0.02)

    return send


def test_all_other_keys_are_done_while_one_of_a_thousand_is_poisoned(proof: Proof) -> None:
    proof.poison = frozenset({"7-0001007"})
    counts = proof.run(lambda _: proof.publish(4 * KEYS))
    assert counts["parked_keys"] == 1
    assert proof.ordered.parked() == {"7": ("PARKED", ["7-0001007", "7-0002007", "7-0003007"])}
    assert proof.one("count(*)") == 4 * KEYS - 3
    proof.release("7")
    assert (proof.one("count(DISTINCT message_id)"), proof.out_of_order()) == (4 * KEYS, 0)


def test_of_many_messages_with_copies_none_is_done_twice_and_the_done_sets_stay_small(
    proof: Proof,
) -> None:
    _copies(proof, 5_000, 5_000)


@pytest.mark.soak
def test_of_a_million_messages_with_copies_none_is_done_twice_and_the_done_sets_stay_small(
    proof: Proof,
) -> None:
    _copies(proof, MANY or 1_000_000, 10_000)


def _copies(proof: Proof, messages: int, batch: int) -> None:
    """One in a hundred is sent once more."""
    gaps: list[int] = []
    kept: list[int] = []

    def send(made: OrderedConsumer) -> None:
        def left() -> int:
            gaps.append(max(made._finished.gaps((TOPIC, queue)) for queue in range(QUEUES)))
            kept.append(made._finished.size())
            return sum(proof.broker.lag(TOPIC, GROUP).values())

        while len(proof.sent) < messages:
            proof.publish(batch, again=100)
            until("room", lambda: left() < batch, seconds=600)
        until("the end", lambda: left() == 0, seconds=600)

    begun = time.monotonic()
    counts = proof.run(send)
    assert (
        proof.one("count(*)"),
        proof.one("count(DISTINCT message_id)"),
        proof.out_of_order(),
    ) == (messages, messages, 0)
    assert counts["done"] + counts.get("done_before", 0) == messages // 100
    assert 0 < max(gaps) < 2_000, "no more than what is in hand"
    assert max(kept) < QUEUES * (2_000 + MOST_NOTED), "whatever the number of messages"
    spent = time.monotonic() - begun
    print(
        f"\n{messages} messages in {spent:.0f} s; at most {max(gaps)} gaps in a done-set,"
        f" at most {max(kept)} offsets and ids kept, in {len(kept)} looks"
    )


def _downstream_away(proof: Proof, downstream: Valkey, seconds: float, messages: int) -> None:
    """The handlers' own server stands still, as for a machine that is paused, while traffic goes on."""
    client = redis.Redis.from_url(downstream.url(), socket_timeout=0.3)
    write = proof.handle

    def handle(connection: Any, message: Message, work: Work) -> None:
        client.incr(message.partition_key or "")
        write(connection, message, work)

    proof.handle = handle  # type: ignore[method-assign]
    behind: list[int] = []

    def during(_: OrderedConsumer) -> None:
        proof.publish(messages)
        until("work", lambda: proof.one("count(*)") > messages // 10)
        assert downstream.pid is not None
        os.kill(downstream.pid, signal.SIGSTOP)
        try:
            proof.publish(messages)
            until("a case", lambda: proof.database.run("SELECT 1 FROM downstream_away"))
            time.sleep(seconds)
            behind.append(2 * messages - proof.one("count(*)"))
            assert proof.ordered.parked() == {}
        finally:
            os.kill(downstream.pid, signal.SIGCONT)

    counts = proof.run(during)
    assert behind[0] > 0 and counts["downstream_away"] > 0, "nothing was away"
    assert (
        proof.one("count(DISTINCT message_id)"),
        proof.one("count(*)"),
        proof.out_of_order(),
    ) == (
        2 * messages,
        2 * messages,
        0,
    )
    assert (proof.ordered.parked(), counts.get("parked_keys", 0)) == ({}, 0)
    assert proof.database.run("SELECT 1 FROM downstream_away") == []
    print(
        f"\n{behind[0]} messages waited; {counts['downstream_away']} tries met the server that was away"
    )


@pytest.fixture
def downstream(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "downstream") as server:
        yield server


def test_a_downstream_that_stands_still_parks_nothing_and_its_queues_go_on(
    proof: Proof, downstream: Valkey
) -> None:
    _downstream_away(proof, downstream, seconds=2, messages=1_000)


@pytest.mark.soak
def test_a_downstream_that_is_away_for_a_minute_parks_nothing_and_its_queues_go_on(
    proof: Proof, downstream: Valkey
) -> None:
    _downstream_away(proof, downstream, seconds=60, messages=10_000)


TURNS = 4


@pytest.mark.soak
def test_poison_does_not_slow_the_other_keys(broker: RedisStreams, consumer: Database) -> None:
    """The same traffic without and with a poisoned key, in turn, at half of what the consumer can do: p99 of the other keys."""
    messages = (MANY or 100_000) // TURNS
    peak = Proof(broker, consumer)
    begun = time.monotonic()
    peak.run(lambda _: peak.publish(10_000))
    rate = 0.5 * 10_000 / (time.monotonic() - begun)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for is_poisoned in (False, True) * TURNS:
        broker.delete_topic(TOPIC)
        proof = Proof(broker, consumer)
        proof.poison = frozenset({"7-0001007"} if is_poisoned else ())
        counts = proof.run(steady(proof, messages, rate))
        assert set(proof.ordered.parked()) == ({"7"} if is_poisoned else set())
        seconds[is_poisoned] += [
            row["seconds"]
            for row in consumer.run("SELECT seconds FROM proof_effect WHERE ordering_key <> '7'")
        ]
        assert (
            counts.get("parked_keys", 0) == is_poisoned
            and counts.get("failed", 0) == 3 * is_poisoned
        )
        if is_poisoned:
            proof.release("7")
        assert (proof.one("count(DISTINCT message_id)"), proof.out_of_order()) == (messages, 0)
    assert {len(found) for found in seconds.values()} == {TURNS * (messages - messages // KEYS)}
    p99 = {which: statistics.quantiles(found, n=100)[98] for which, found in seconds.items()}
    print(
        f"\n{TURNS} x {messages} messages at {rate:.0f}/s: p99 {p99[False] * 1000:.0f} ms without poison,"
        f" {p99[True] * 1000:.0f} ms with"
    )
    assert p99[True] <= 1.2 * p99[False]
