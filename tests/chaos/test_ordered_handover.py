"""Queues handed over between processes: restarts in turn, kill -9, and one that stood still past its lease."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.model.records import Message
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, Database, broker, consumer, postgres, valkey  # noqa: F401
from ordered_world import make_empty

TOPIC, QUEUES, KEYS = "handover", 10, 40
HANDLER_SECONDS = 0.035
"""So five consumers with two threads each are at 70 % of what they can do while `traffic` sends."""
MOST_BEHIND = 10.0
"""Seconds of traffic that may wait."""
CHILD = Path(__file__).with_name("ordered_worker_child.py")
TESTS = Path(__file__).resolve().parents[1]


class World:
    def __init__(self, broker: RedisStreams, database: Database, valkey: Valkey) -> None:
        make_empty(database)
        broker.create_topic(TOPIC, QUEUES)
        broker.create_group(GROUP, TOPIC, "start")
        self.broker, self.database, self.valkey = broker, database, valkey
        self.published, self.sent_rate, self.was_full = 0, 0.0, False

    def publish(self, size: int) -> None:
        numbers = range(self.published, self.published + size)
        self.broker.publish(
            [
                Message(TOPIC, f"{n % KEYS}-{n:06}", b"{}", partition_key=str(n % KEYS))
                for n in numbers
            ]
        )
        self.published += size

    @contextmanager
    def traffic(self, rate: float = 200.0) -> Iterator[None]:
        """So many messages a second round all keys, all the while, by the clock; fewer while the consumers are `MOST_BEHIND`, as on
        a machine that became slower: they are at their limit then."""
        stop, before, begun = threading.Event(), self.published, time.monotonic()

        def send() -> None:
            room = rate * MOST_BEHIND
            while not stop.wait(0.02):
                due = int((time.monotonic() - begun) * rate) - (self.published - before)
                size = min(due, int(room - self.behind()))
                self.was_full |= size < due
                if size > 0:
                    self.publish(size)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.sent_rate = (self.published - before) / (time.monotonic() - begun)

    def peak(self, size: int = 2_000) -> float:
        """Messages a second that the consumers can do: of a burst, between its first and its last tenth."""
        self.publish(size)
        until("the peak", self.is_done, seconds=120)
        row = self.database.one(
            "SELECT extract(epoch FROM max(at) FILTER (WHERE place <= 0.9) - min(at) FILTER (WHERE place > 0.1))::float8 AS spent"
            " FROM (SELECT at, percent_rank() OVER (ORDER BY number) AS place FROM ordered_effect) e"
        )
        return float(0.8 * size / row["spent"])

    @contextmanager
    def child(
        self, member: str, waits: str | None = None, lease: float = 20.0, takes: float = 0.0
    ) -> Iterator[subprocess.Popen[str]]:
        given = {
            "broker": self.valkey.url(),
            "consumer": self.database.dsn,
            "member": member,
            "waits": waits,
            "topic": TOPIC,
            "lease": lease,
            "takes": takes,
        }
        process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PYTHONPATH": f"{TESTS / 'support'}:{TESTS.parent / 'include'}",
                "PATH": "/usr/bin:/bin",
            },
        )
        try:
            assert line(process) == ["started"]
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def owners(self) -> set[str | None]:
        return {row["owner"] for row in self.database.run("SELECT owner FROM queue_owner")}

    def behind(self) -> int:
        """How many messages are not acknowledged."""
        return sum(self.broker.lag(TOPIC, GROUP).values())

    def is_done(self) -> bool:
        return self.behind() == 0

    def assert_in_order_and_once(self) -> None:
        rows = self.database.run(
            "SELECT ordering_key, message_id FROM ordered_effect ORDER BY number"
        )
        assert len(rows) == self.published
        for key in map(str, range(KEYS)):
            mine = [row["message_id"] for row in rows if row["ordering_key"] == key]
            assert mine == sorted(set(mine)), "out of order, or twice"


@pytest.fixture
def world(broker: RedisStreams, consumer: Database, valkey: Valkey) -> World:
    return World(broker, consumer, valkey)


def until(what: str, holds: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


def line(process: subprocess.Popen[str]) -> list[Any]:
    assert process.stdout is not None
    return list(json.loads(process.stdout.readline()))


def ended(process: subprocess.Popen[str]) -> dict[str, int]:
    """Its counts, after the signal."""
    while (said := line(process))[0] != "ended":
        pass
    assert process.wait(120) == 0
    return dict(said[1])


def test_a_rolling_restart_of_five_does_nothing_twice_and_asks_the_log_for_no_duplicate(
    world: World,
) -> None:
    counts: list[dict[str, int]] = []
    with ExitStack() as stack:
        old = [
            stack.enter_context(world.child(f"old-{n}", takes=HANDLER_SECONDS)) for n in range(5)
        ]
        with world.traffic():
            until("five owners", lambda: len(world.owners()) == 5)
            new = []
            for n, process in enumerate(old):
                process.send_signal(signal.SIGTERM)
                counts.append(ended(process))
                new.append(stack.enter_context(world.child(f"new-{n}", takes=HANDLER_SECONDS)))
                until("its share", lambda n=n: f"new-{n}" in world.owners())
        until("the end", world.is_done)
        for process in new:
            process.send_signal(signal.SIGTERM)
            counts.append(ended(process))
    world.assert_in_order_and_once()
    total = {name: sum(one.get(name, 0) for one in counts) for one in counts for name in one}
    assert total["processed"] == world.published
    # What waited for a thread when its consumer was stopped is handed over untried.
    assert total.keys() <= {"processed", "queues_taken", "not_tried"}, "something was tried twice"
    assert (
        world.database.one("SELECT sum(duplicates_stopped) AS stopped FROM consumer_log")["stopped"]
        == 0
    )
    assert world.owners() == {None}, "every queue was released"


def test_the_work_of_one_that_is_killed_is_done_once_and_in_order_by_the_others(
    world: World,
) -> None:
    with ExitStack() as stack:
        # A short lease could end for those that live, too, on a busy machine; one of 1 s for the first before it is killed.
        children = [
            stack.enter_context(world.child(f"w-{n}", lease=20.0 if n else 5.0)) for n in range(5)
        ]
        with world.traffic():
            until("five owners", lambda: len(world.owners()) == 5)
            until(
                "work",
                lambda: world.database.run("SELECT 1 FROM ordered_effect WHERE member = 'w-0'"),
            )
            children[0].kill()
            until("its queues", lambda: "w-0" not in world.owners() and len(world.owners()) == 4)
        until("the end", world.is_done)
    world.assert_in_order_and_once()
    again = world.database.run("SELECT 1 FROM consumer_log WHERE attempts > 1")
    assert len(again) <= 4, "at most what was in its handlers comes again"


def test_the_effect_of_one_that_stood_still_past_its_lease_is_refused(world: World) -> None:
    world.publish(2 * KEYS)
    with ExitStack() as stack:
        late = stack.enter_context(world.child("late", waits=f"7-{7:06}", lease=1.0))
        assert line(late)[0] == "waits"
        late.send_signal(signal.SIGSTOP)
        stack.enter_context(world.child("next", lease=1.0))
        until("the takeover", lambda: world.owners() == {"next"})
        until("the end", world.is_done)
        late.send_signal(signal.SIGCONT)
        assert late.stdin is not None
        late.stdin.write("\n")
        late.stdin.flush()
        until("it takes part again", lambda: "late" in world.owners())
        late.send_signal(signal.SIGTERM)
        counts = ended(late)
    assert counts["fenced"] >= 1 and counts["queues_lost"] >= 1
    world.assert_in_order_and_once()
    assert (
        world.database.one(f"SELECT member FROM ordered_effect WHERE message_id = '7-{7:06}'")[
            "member"
        ]
        == "next"
    )


@pytest.mark.soak
def test_three_rolling_restarts_at_most_of_the_peak_do_nothing_twice(
    broker: RedisStreams, consumer: Database, valkey: Valkey
) -> None:
    """The pause of a queue: between its last effect by one member and its first by the next."""
    world = World(broker, consumer, valkey)
    consumer.run(
        "ALTER TABLE ordered_effect ADD COLUMN IF NOT EXISTS at timestamptz DEFAULT clock_timestamp()"
    )
    counts: list[dict[str, int]] = []
    with ExitStack() as stack:
        running = [
            stack.enter_context(world.child(f"0-{n}", lease=60.0, takes=HANDLER_SECONDS))
            for n in range(5)
        ]
        until("five owners", lambda: len(world.owners() - {None}) == 5, seconds=60)
        peak = world.peak()
        with world.traffic(rate=0.7 * peak):
            for turn in range(1, 4):
                for n in range(5):
                    running[n].send_signal(signal.SIGTERM)
                    counts.append(ended(running[n]))
                    running[n] = stack.enter_context(
                        world.child(f"{turn}-{n}", lease=60.0, takes=HANDLER_SECONDS)
                    )
                    name = f"{turn}-{n}"
                    until("its share", lambda name=name: name in world.owners(), seconds=60)
        until("the end", world.is_done, seconds=120)
        for process in running:
            process.send_signal(signal.SIGTERM)
            counts.append(ended(process))
    world.assert_in_order_and_once()
    total = {name: sum(one.get(name, 0) for one in counts) for one in counts for name in one}
    assert total["processed"] == world.published
    # What waited for a thread when its consumer was stopped is handed over untried.
    assert total.keys() <= {"processed", "queues_taken", "not_tried"}, "something was tried twice"
    assert world.was_full or world.sent_rate > 0.65 * peak, "it was not at most of the peak"
    stopped = consumer.one("SELECT sum(duplicates_stopped) AS stopped FROM consumer_log")["stopped"]
    assert stopped == 0, "a duplicate reached the guard"
    pauses = [
        row["pause"]
        for row in consumer.run(
            "SELECT extract(epoch FROM at - before)::float8 AS pause FROM (SELECT e.at, lag(e.at) OVER w AS before,"
            " e.member <> lag(e.member) OVER w AS moved FROM ordered_effect e JOIN consumer_log l USING (message_id)"
            " WINDOW w AS (PARTITION BY l.queue_id ORDER BY e.number)) p WHERE moved"
        )
    ]
    p99 = statistics.quantiles(pauses, n=100)[98]
    middle = statistics.median(pauses)
    slower = ", at times as many as were done" if world.was_full else ""
    print(
        f"\npeak {peak:.0f}/s, sent at {world.sent_rate:.0f}/s{slower}, {world.published} messages, {len(pauses)} changes of owner"
    )
    print(f"pause of a queue: p50 {middle:.2f} s, p99 {p99:.2f} s")
