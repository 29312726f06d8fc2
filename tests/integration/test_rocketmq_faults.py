"""What the demo does to a real RocketMQ is what it writes down, no more and no less."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from backstop.brokers.protocol import DeadLetter, Received
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.model.records import ID_HEADER, Message, Outcome
from backstop_lab.broker_kinds import DEMO_DELAY_LEVELS, DEMO_DELIVERIES, DEMO_ROCKETMQ
from backstop_lab.faults.brokers.protocol import (
    CUT_OFF,
    FILES_REMOVED,
    GIVEN_UP_DONE,
    GIVEN_UP_UNDONE,
    LOST,
    OFFSET_MOVED,
    FaultTools,
)
from backstop_lab.faults.brokers.rocketmq import CUT, RocketMQFaults
from backstop_lab.servers.rocketmq import RocketMQServer
from backstop_lab.shop.ledger import Key, Ledger
from backstop_lab.shop.wait_for import wait_for

pytestmark = pytest.mark.other_broker

_numbers = count(1)
sending: dict[str, float] = {}
"""Since when a producer is in the middle of a send."""
GROUPS = ("billing", "shipping")


def message(topic: str, message_id: str) -> Message:
    return Message(topic, message_id, b'{"amount": 1}', {ID_HEADER: message_id, "channel": "web"})


class Tools(FaultTools):
    """Nothing is in a database here."""

    def messages(self, keys: Sequence[Key]) -> list[Message]:
        return [message(*key) for key in keys]

    def copies(self) -> set[tuple[str, str, int]]:
        return set()

    def under_way(self, topic: str) -> int:
        return CUT if time.monotonic() - sending.get("since", math.inf) > 0.5 else 0


done: set[tuple[str, Key]] = set()
"""(group, message) whose work is there."""


def not_done(group: str, keys: Sequence[Key]) -> set[Key]:
    return {key for key in keys if (group, key) not in done}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQServer]:
    with RocketMQServer(tmp_path_factory.mktemp("rocketmq"), settings=DEMO_ROCKETMQ) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"orders-{next(_numbers)}"


@pytest.fixture
def broker(server: RocketMQServer, topic: str) -> Iterator[RocketMQ]:
    with RocketMQ(
        server.url(), delivery_limit=DEMO_DELIVERIES, delay_levels=DEMO_DELAY_LEVELS
    ) as opened:
        opened.create_topic(topic, 2)
        for group in GROUPS:
            opened.create_group(group, topic, at="start")
        yield opened


@pytest.fixture
def faults(
    server: RocketMQServer, broker: RocketMQ, topic: str, tmp_path: Path
) -> Iterator[RocketMQFaults]:
    made = RocketMQFaults(
        server,
        Tools(Ledger(tmp_path / "ledger"), {}, {topic: GROUPS}, not_done),
        delivery_limit=DEMO_DELIVERIES,
    )
    yield made
    made.close()


def make(broker: RocketMQ, topic: str, number: int) -> list[str]:
    ids = [f"one £{next(_numbers)}" for _ in range(number)]
    sending["since"] = time.monotonic()
    receipts = broker.publish([message(topic, one) for one in ids])
    sending.clear()
    outcomes.update((one, receipt.outcome) for one, receipt in zip(ids, receipts, strict=True))
    return ids


outcomes: dict[str, Outcome] = {}
"""message id -> how its send ended"""


class Maker:
    """Makes messages of a topic, and remembers their ids."""

    def __init__(self, broker: RocketMQ, topic: str) -> None:
        self.broker, self.topic, self.made = broker, topic, list[str]()

    def __call__(self, number: int) -> list[str]:
        made = make(self.broker, self.topic, number)
        self.made += made
        return made


def received(broker: RocketMQ, topic: str, group: str, number: int) -> list[str]:
    """So many messages, acknowledged, and nothing else."""
    found: list[Received] = []
    subscription = broker.subscribe(group, [topic], "test")
    try:
        wait_for(
            f"{number} messages for {group}",
            lambda: len(take(subscription, found)) >= number,
            60.0,
            lambda: f"{len(found)} came",
        )
        take(subscription, found, seconds=0.5)
    finally:
        subscription.close()
    return [one.message.message_id for one in found]


def take(subscription: object, found: list[Received], seconds: float = 0.2) -> list[Received]:
    some = subscription.fetch(100, timedelta(seconds=seconds))  # type: ignore[attr-defined]
    subscription.acknowledge(some)  # type: ignore[attr-defined]
    found += some
    return found


def letters(broker: RocketMQ, group: str) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for queue in broker.dead_letter_queues([group]):
        with broker.open_dead_letters(queue) as reader:
            while page := reader.read(100):
                found += page
                reader.acknowledge(page)
    return found


def lines(tmp_path: Path, fault: str) -> list[tuple[str, str | None]]:
    return sorted(
        (line["message_id"], line["consumer_group"])
        for line in Ledger(tmp_path / "ledger").lines(fault)
    )


def test_what_a_killed_broker_had_acknowledged_and_not_written_is_lost_and_nothing_else(
    faults: RocketMQFaults, broker: RocketMQ, topic: str, tmp_path: Path
) -> None:
    maker = Maker(broker, topic)
    lost = [message_id for _, message_id in faults.lose(topic, maker, 11, 3)]
    assert sorted(lost) == sorted(maker.made[5:8]), (
        "acknowledged last, and none of them was written"
    )
    assert {outcomes[one] for one in maker.made[:8]} == {Outcome.SENT}
    assert lines(tmp_path, LOST) == sorted((one, None) for one in lost)
    assert lines(tmp_path, CUT_OFF) == sorted((one, None) for one in maker.made[8:])
    assert {outcomes[one] for one in maker.made[8:]} == {Outcome.UNKNOWN}, (
        "the broker was killed in the middle of the send"
    )
    for group in GROUPS:
        assert sorted(received(broker, topic, group, 5)) == sorted(maker.made[:5])


def test_a_group_is_set_past_messages_that_the_other_one_gets(
    faults: RocketMQFaults, broker: RocketMQ, topic: str, tmp_path: Path
) -> None:
    maker = Maker(broker, topic)
    skipped = [message_id for _, message_id in faults.skip(topic, "shipping", maker, 10, 2)]
    assert len(skipped) in (1, 2) and lines(tmp_path, OFFSET_MOVED) == sorted(
        (one, "shipping") for one in skipped
    )
    assert set(received(broker, topic, "shipping", 10 - len(skipped))) == set(maker.made) - set(
        skipped
    )
    assert sorted(received(broker, topic, "billing", 10)) == sorted(maker.made)


def test_retention_removes_what_no_group_was_given(
    faults: RocketMQFaults, broker: RocketMQ, topic: str, tmp_path: Path
) -> None:
    maker = Maker(broker, topic)
    gone = faults.remove_by_retention(topic, maker, 4)
    assert sorted(set(gone)) == sorted((topic, one) for one in maker.made) and len(gone) == 8
    assert lines(tmp_path, FILES_REMOVED) == sorted(
        (one, group) for one in maker.made for group in GROUPS
    )
    for state in broker.queues(topic):
        assert state.first_offset == state.next_offset
    again = make(broker, topic, 3)
    for group in GROUPS:
        assert sorted(received(broker, topic, group, 3)) == sorted(again)


def test_what_a_group_has_done_and_not_acknowledged_is_nothing_that_retention_takes_from_it(
    faults: RocketMQFaults, broker: RocketMQ, topic: str, tmp_path: Path
) -> None:
    made = make(broker, topic, 1)
    done.add(("shipping", (topic, made[0])))
    gone = faults.remove_by_retention(topic, lambda number: made, 1)
    assert gone == [(topic, made[0])]
    assert lines(tmp_path, FILES_REMOVED) == [(made[0], "billing")]


def test_done_messages_come_again_to_a_group_that_goes_on_working(
    faults: RocketMQFaults, broker: RocketMQ, topic: str
) -> None:
    ids = make(broker, topic, 6)
    found: list[Received] = []
    with broker.subscribe("billing", [topic], "test") as subscription:
        wait_for("All", lambda: len(take(subscription, found)) == 6, 60.0, str)
        assert faults.backlog(topic, "billing") == 0
        faults.deliver_again(topic, "billing", [(topic, one) for one in ids[:2]])
        found.clear()

        def back() -> bool:
            return set(ids[:2]) <= {one.message.message_id for one in take(subscription, found)}

        wait_for("Both of them", back, 60.0, lambda: f"{len(found)} came")
    assert faults.backlog(topic, "shipping") == 6


def test_given_up_messages_are_dead_letters_with_their_origin(
    faults: RocketMQFaults, broker: RocketMQ, topic: str, tmp_path: Path
) -> None:
    done = make(broker, topic, 1)
    for group in GROUPS:
        assert received(broker, topic, group, 1) == done
    ids = make(broker, topic, 4)
    faults.bury_done(topic, "billing", [(topic, one) for one in done])
    faults.bury(topic, "shipping", dict.fromkeys(ids[:2], GIVEN_UP_UNDONE))
    assert lines(tmp_path, GIVEN_UP_DONE) == [(done[0], "billing")]
    assert lines(tmp_path, GIVEN_UP_UNDONE) == sorted((one, "shipping") for one in ids[:2])
    pairs = [(topic, group) for group in GROUPS]
    wait_for(
        "The letters",
        lambda: faults.letters_waiting(pairs) == 3,
        30.0,
        lambda: str(faults.letters_waiting(pairs)),
    )
    told = {
        (letter.group, letter.message_id): letter
        for group in GROUPS
        for letter in letters(broker, group)
    }
    assert set(told) == {("billing", done[0]), ("shipping", ids[0]), ("shipping", ids[1])}
    assert all(letter.topic == topic and letter.position is not None for letter in told.values())
    assert faults.letters_waiting(pairs) == 0
    # What was not given up comes to the group again, by way of its retries.
    assert sorted(received(broker, topic, "shipping", 2)) == sorted(ids[2:])
    assert sorted(received(broker, topic, "billing", 4)) == sorted(ids)


def test_a_read_only_topic_refuses_and_can_be_looked_at(
    faults: RocketMQFaults, broker: RocketMQ, topic: str
) -> None:
    ids = make(broker, topic, 1)
    faults.refuse(topic, [topic])
    [receipt] = broker.publish([message(topic, "late")])
    assert receipt.outcome is Outcome.REFUSED
    assert received(broker, topic, "billing", 1) == ids
    assert faults.backlog(topic, "billing") == 0 and faults.backlog(topic, "shipping") == 1
