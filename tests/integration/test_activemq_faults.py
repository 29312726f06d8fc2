"""What the demo does to a real ActiveMQ is what it writes down, no more and no less."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from backstop.brokers.activemq import ActiveMQ, Names
from backstop.brokers.protocol import DeadLetter, Received
from backstop.model.records import ID_HEADER, Message, Outcome
from backstop_lab.faults.brokers.activemq import ActiveMQFaults
from backstop_lab.faults.brokers.protocol import (
    EXPIRED,
    LOST,
    SUPPRESSED_DONE,
    SUPPRESSED_UNDONE,
    TAKEN_OUT,
    FaultTools,
)
from backstop_lab.servers.activemq import ActiveMQServer
from backstop_lab.servers.share_classes import archive
from backstop_lab.shop.ledger import Key, Ledger
from backstop_lab.shop.wait_for import wait_for
from stand_still import stand_still

GROUPS = {"orders": ["billing", "shipping"], "refunds": ["billing", "shipping"]}
_numbers = count(1)


def message(topic: str, message_id: str) -> Message:
    return Message(topic, message_id, b'{"amount": 1}', {ID_HEADER: message_id, "channel": "web"})


class Tools(FaultTools):
    """Nothing is in a database here: a message is made from its id."""

    def messages(self, keys: Sequence[Key]) -> list[Message]:
        return [message(*key) for key in keys]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMQServer]:
    with ActiveMQServer(tmp_path_factory.mktemp("activemq")) as started:
        yield started


@pytest.fixture
def broker(server: ActiveMQServer) -> Iterator[ActiveMQ]:
    with ActiveMQ(server.url()) as opened:
        for topic, groups in GROUPS.items():
            opened.create_topic(topic)
            for group in groups:
                opened.create_group(group, topic)
                received(opened, group, topic, acknowledge=True)
        yield opened


@pytest.fixture
def faults(server: ActiveMQServer, broker: ActiveMQ, tmp_path: Path) -> Iterator[ActiveMQFaults]:
    made = ActiveMQFaults(
        server, Tools(Ledger(tmp_path / "ledger"), {}, GROUPS, lambda _, keys: set(keys))
    )
    yield made
    made.close()


def make(broker: ActiveMQ, number: int, topic: str = "orders") -> list[str]:
    ids = [f"one £{next(_numbers)}" for _ in range(number)]
    assert all(
        receipt.outcome is Outcome.SENT
        for receipt in broker.publish([message(topic, one) for one in ids])
    )
    return ids


def received(
    broker: ActiveMQ,
    group: str,
    topic: str = "orders",
    *,
    acknowledge: bool = False,
    wait: float = 30.0,
) -> list[str]:
    """Everything in the group's queue; `wait`: seconds for messages that the broker does not hand out."""
    there = len(broker._reader._browse(Names().queue(topic, group), None, "")[0])
    subscription = broker.subscribe(group, [topic], "test")
    found: list[Received] = []
    while len(found) < there and (some := subscription.fetch(100, timedelta(seconds=wait))):
        found += some
    if acknowledge:
        subscription.acknowledge(found)
    subscription.close()
    return [one.message.message_id for one in found]


def letters(broker: ActiveMQ, group: str) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for queue in broker.dead_letter_queues([group]):
        with broker.open_dead_letters(queue) as reader:
            while page := reader.read(100):
                found += page
                reader.acknowledge(page)
    return found


def lines(tmp_path: Path, fault: str) -> set[tuple[str, str | None]]:
    return {
        (line["message_id"], line["consumer_group"])
        for line in Ledger(tmp_path / "ledger").lines(fault)
    }


def test_a_lost_message_is_in_no_groups_queue_and_every_other_one_is(
    faults: ActiveMQFaults, broker: ActiveMQ, tmp_path: Path
) -> None:
    made: list[str] = []
    lost = faults.lose("orders", lambda number: made.extend(make(broker, number)) or made, 6, 2)
    assert len(lost) == 2
    assert lines(tmp_path, LOST) == {(message_id, None) for _, message_id in lost}
    left = set(made) - {message_id for _, message_id in lost}
    for group in GROUPS["orders"]:
        assert set(received(broker, group, acknowledge=True)) == left


def test_what_is_taken_out_of_one_groups_queue_comes_to_the_other(
    faults: ActiveMQFaults, broker: ActiveMQ, tmp_path: Path
) -> None:
    made: list[str] = []
    taken = {
        one
        for _, one in faults.skip(
            "orders", "shipping", lambda number: made.extend(make(broker, number)) or made, 6, 2
        )
    }
    assert len(taken) == 2 and lines(tmp_path, TAKEN_OUT) == {(one, "shipping") for one in taken}
    assert set(received(broker, "shipping", acknowledge=True)) == set(made) - taken
    assert set(received(broker, "billing", acknowledge=True)) == set(made)


def test_done_messages_come_again_to_the_one_group(
    faults: ActiveMQFaults, broker: ActiveMQ
) -> None:
    ids = make(broker, 2)
    for group in GROUPS["orders"]:
        received(broker, group, acknowledge=True)
    assert faults.backlog("orders", "billing") == 0
    faults.deliver_again("orders", "billing", [("orders", one) for one in ids])
    assert faults.backlog("orders", "billing") == 2 and faults.backlog("orders", "shipping") == 0
    assert set(received(broker, "billing")) == set(ids)


def test_letters_that_no_handler_refused_name_their_cause(
    faults: ActiveMQFaults, broker: ActiveMQ, tmp_path: Path
) -> None:
    done = make(broker, 1)
    for group in GROUPS["orders"]:
        received(broker, group, acknowledge=True)
    ids = make(broker, 4)
    faults.bury_done("orders", "billing", [("orders", one) for one in done])
    died = dict(zip(ids, (SUPPRESSED_UNDONE, SUPPRESSED_UNDONE, EXPIRED), strict=False))
    faults.bury("orders", "shipping", died)
    assert (
        faults.letters_waiting(
            (topic, group) for topic, groups in GROUPS.items() for group in groups
        )
        == 4
    )
    [of_billing] = letters(broker, "billing")
    assert (of_billing.message_id, of_billing.topic, of_billing.group) == (
        done[0],
        "orders",
        "billing",
    )
    assert of_billing.cause.startswith(
        "java.lang.Throwable: Suppressing duplicate delivery on connection"
    )
    causes = {letter.message_id: letter.cause for letter in letters(broker, "shipping")}
    assert {one: cause.partition(":")[2].split()[0] for one, cause in causes.items()} == {
        one: "Message" if fault == EXPIRED else "Suppressing" for one, fault in died.items()
    }
    assert causes[ids[2]].startswith("java.lang.Throwable: Message Expired. Expiration:"), (
        "the broker's own words"
    )
    assert received(broker, "shipping", acknowledge=True) == ids[3:], "nothing else left the queue"
    assert set(received(broker, "billing", acknowledge=True)) == set(ids)
    told = (
        (SUPPRESSED_DONE, "billing", done),
        (SUPPRESSED_UNDONE, "shipping", ids[:2]),
        (EXPIRED, "shipping", ids[2:3]),
    )
    for fault, group, keys in told:
        assert lines(tmp_path, fault) == {(one, group) for one in keys}


HOLD = """
import sys, time
from datetime import timedelta
from backstop.brokers.activemq import ActiveMQ
subscription = ActiveMQ(sys.stdin.readline().strip()).subscribe("billing", ["orders"], "frozen")
while not subscription.fetch(1, timedelta(seconds=1)): pass
print("held", flush=True)
time.sleep(600)
"""


def test_what_a_process_holds_that_stands_still_goes_to_others(
    server: ActiveMQServer, faults: ActiveMQFaults, broker: ActiveMQ
) -> None:
    ids = make(broker, 1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdin and holder.stdout
            holder.stdin.write(server.url() + "\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "held\n"
            stand_still(holder.pid)
            assert received(broker, "billing", wait=0.5) == []
            faults.drop_connections([holder.pid])
            deadline = time.monotonic() + 120
            while not (got := received(broker, "billing", acknowledge=True)):
                assert time.monotonic() < deadline
            assert got == ids
        finally:
            holder.kill()
    received(broker, "shipping", acknowledge=True)


def test_producers_and_backstop_are_refused_one_topic_and_whoever_runs_it_nothing(
    server: ActiveMQServer, faults: ActiveMQFaults
) -> None:
    with ActiveMQ(server.for_duties()) as duty, ActiveMQ(server.url()) as admin:
        assert [one.outcome for one in duty.publish([message("refunds", "before")])] == [
            Outcome.SENT
        ]
        faults.refuse("refunds", GROUPS)
        for group in (None, "billing"):
            [refused] = duty.publish([message("refunds", "after")], group=group)
            assert refused.outcome is Outcome.REFUSED and "not authorized" in str(refused.error)
            [sent] = duty.publish([message("orders", f"after {group}")], group=group)
            assert sent.outcome is Outcome.SENT
        assert (
            duty.progress("refunds", "billing")
            and admin.publish([message("refunds", "x")])[0].outcome is Outcome.SENT
        )
        wait_for("The messages", lambda: faults.backlog("orders", "billing") == 2, 60, str)
        assert set(received(admin, "refunds" and "billing", "refunds")) == {"before", "x"}


def test_the_server_runs_on_the_classes_that_make_activemq_kept(server: ActiveMQServer) -> None:
    assert archive("activemq").name in Path(f"/proc/{server.pid}/maps").read_text()
