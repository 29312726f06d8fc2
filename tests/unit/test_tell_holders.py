"""How `backstop check` says who holds which queue of a group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from backstop.brokers.protocol import Finding, Holder
from backstop.brokers.rocketmq import RocketMQ
from backstop.model.errors import BrokerUnavailable
from backstop.reports.check_system import _one
from backstop.reports.tell_holders import tell_holders

AT = datetime(2030, 1, 1, 12, 30, 5, tzinfo=UTC)


def locked(consumer: str, *queues: int) -> list[Holder]:
    return [Holder(consumer, queue, True, AT) for queue in queues]


def has(consumer: str, *queues: int) -> list[Holder]:
    return [Holder(consumer, queue) for queue in queues]


@pytest.mark.parametrize(
    ("holders", "good", "says"),
    [
        ([], True, "no consumer is connected now"),
        (has("a", 0, 1, 2, 3), True, "a has 0-3"),
        (
            locked("a", 0, 1) + locked("b", 2, 3),
            True,
            "a has locked 0-1, last renewed 12:30:05 UTC; b has locked 2-3, last renewed 12:30:05 UTC",
        ),
        (
            locked("a", 0, 2) + has("a", 1, 3),
            True,
            "a has locked 0, 2, last renewed 12:30:05 UTC, and without a lock 1, 3",
        ),
        (has("a", 0, 1), False, "a has 0-1; held by nobody: 2-3"),
        (
            [*has("a", 0, 1), Holder("b", None)],
            True,
            "a has 0-1; b does not say which queues it has",
        ),
        (locked("a", 0, 1, 2, 3) + locked("b", 3), False, "locked by two: 3"),
    ],
)
def test_every_queue_and_its_lock_are_told(holders: list[Holder], good: bool, says: str) -> None:
    finding = tell_holders("orders", "billing", [0, 1, 2, 3], holders)
    assert finding.subject == "topic orders, group billing: queues held"
    assert finding.good is good and says in finding.says
    assert bool(finding.do) is not good


def test_many_consumers_are_counted_and_not_all_named() -> None:
    holders = [holder for number in range(12) for holder in has(f"consumer-{number:02}", number)]
    says = tell_holders("orders", "billing", range(12), holders).says
    assert "consumer-09 has 9; and 2 more consumers" in says and "consumer-10" not in says


def test_a_topic_that_is_missing_hides_no_other_finding() -> None:
    class Broker:
        capabilities = RocketMQ("rocketmq://127.0.0.1:1").capabilities

        def clock(self) -> datetime:
            return datetime.now(UTC)

        def durability(self, topics: list[str]) -> list[Finding]:
            return [Finding("broker-a: flush", False, "flushDiskType ASYNC_FLUSH")]

        def queues(self, topic: str) -> list[Any]:
            if topic == "missing":
                raise BrokerUnavailable("There is no such topic.", unaffected="-", next_step="-")
            return []

        def holders(self, topic: str, group: str) -> list[Any]:
            return []

    found = _one("broker rmq", Broker, None, None, {"missing": ["billing"], "orders": ["billing"]})
    assert [one.subject for one in found][2:] == [
        "broker rmq: broker-a: flush",
        "broker rmq: topic missing: consumers",
        "broker rmq: topic orders, group billing: queues held",
    ]
