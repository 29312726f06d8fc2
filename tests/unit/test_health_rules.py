"""The truth table of predicted loss: what each rule answers to what was seen.

True: a finding; False: all well; None: cannot tell.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from backstop.watch import judge as judge_module
from backstop.watch import rules
from backstop.watch.sample_groups import History
from backstop.watch.samples import Answer, GroupSample, Limits, QueueSample, TopicSample

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LIMITS = Limits(
    retention=timedelta(hours=100),
    retention_warn=0.5,
    window=5 * MINUTE,
    floor=20,
    lag=MINUTE,
    consume_timeout=2 * MINUTE,
)
HOUR = 3600.0


def answer_of(answer: Answer | None) -> bool | None:
    return None if answer is None else answer.finding is not None


def topics(*minutes: dict[str, Any], now: datetime = NOW) -> list[TopicSample]:
    """One look a minute, the last one now; each says how many were stored and counted since the look before."""
    looks, stored = [], 1000
    for age, given in zip(range(len(minutes) - 1, -1, -1), minutes, strict=True):
        values = {
            "recorded": 0,
            "attempted": 0,
            "positioned": 0,
            "delayed": 0,
            "resent": 0,
            "life": "0:a",
            **given,
        }
        stored += values.pop("stored", 0)
        at = now - age * MINUTE
        looks.append(
            TopicSample(taken_at=at, counted_until=at - LIMITS.lag, stored=stored, **values)
        )
    return looks


def groups(*minutes: dict[str, Any]) -> list[GroupSample]:
    looks, passed = [], 1000
    for age, given in zip(range(len(minutes) - 1, -1, -1), minutes, strict=True):
        values = {
            "logged": 0,
            "waiting": 0,
            "expired": 0,
            "backlog_seconds": 0.0,
            "life": "0:a",
            **given,
        }
        passed += values.pop("passed", 0)
        at = NOW - age * MINUTE
        looks.append(
            GroupSample(taken_at=at, counted_until=at - LIMITS.lag, passed=passed, **values)
        )
    return looks


WELL = {"stored": 30, "recorded": 30, "attempted": 30, "positioned": 30}
QUIET: dict[str, Any] = {}
NO_OFFSET = {**WELL, "positioned": 0}
NO_STUB = {"stored": 30}
AWAY = {"stored": 30, "recorded": None, "attempted": None, "positioned": None, "delayed": None}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([WELL] * 15, False),
        ([WELL] * 8 + [NO_OFFSET] * 8, True),
        ([WELL] * 8 + [{**WELL, "positioned": 14}] * 5, True),
        ([WELL] * 8 + [{**WELL, "positioned": 16}] * 8, False),
        ([{**WELL, "positioned": 3}] * 8 + [{**WELL, "positioned": 2}] * 8, False),
        ([NO_OFFSET] * 16, False),
        ([WELL] * 8 + [QUIET] * 8, None),
        ([QUIET] * 8 + [NO_OFFSET] * 5, None),
        ([WELL] * 8 + [{**NO_OFFSET, "attempted": 3}] * 8, None),
        ([WELL] * 8 + [NO_OFFSET] * 6 + [AWAY], None),
        ([NO_OFFSET] * 3, None),
        ([WELL] * 8 + [{"stored": 30, "recorded": 30}] * 8, None),
    ],
    ids=[
        "every send has one",
        "none has one any more",
        "just over half of what is usual is gone",
        "just under half is",
        "a topic where few ever had one",
        "a topic where none ever had one",
        "a quiet night",
        "a topic that never sent before",
        "too few to tell",
        "a store is away",
        "a new topic",
        "only sends that a delivery time keeps back",
    ],
)
def test_offsets_stopped(looks: list[dict[str, Any]], expected: bool | None) -> None:
    assert answer_of(rules.offsets_stopped("orders", topics(*looks), LIMITS)) is expected


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([WELL] * 16, False),
        ([WELL] * 8 + [NO_STUB] * 16, True),
        ([WELL] * 8 + [NO_STUB] * 7, False),
        ([WELL] * 8 + [NO_STUB] * 15 + [{"stored": 30, "recorded": 1}], False),
        ([WELL] * 8 + [{**NO_STUB, "resent": 30}] * 16, None),
        ([NO_STUB] * 24, None),
        ([WELL] * 8 + [QUIET] * 16, None),
        ([WELL] * 8 + [QUIET] * 12 + [NO_STUB], None),
        ([WELL] * 8 + [{**NO_STUB, "resent": None}] * 16, None),
        ([WELL] * 8 + [AWAY] * 16, None),
        ([WELL] * 7 + [{**WELL, "delayed": 1}] + [NO_STUB] * 16, None),
        ([{**WELL, "life": "0:a"}] * 8 + [{"stored": 30, "life": "0:b"}] * 4, None),
    ],
    ids=[
        "every message is recorded",
        "none is recorded any more",
        "some were recorded in the window",
        "one producer still records",
        "only what Backstop sends again",
        "a topic that never recorded",
        "a quiet night",
        "a burst whose stubs are not counted yet",
        "a resend is under way",
        "a store is away",
        "a topic with delivery times",
        "another life of the queues",
    ],
)
def test_stubs_stopped(looks: list[dict[str, Any]], expected: bool | None) -> None:
    assert answer_of(rules.stubs_stopped("orders", topics(*looks), LIMITS)) is expected


def test_resends_count_while_a_reconcile_that_stands_still_counts_no_stub() -> None:
    """A mapped table's stubs are counted up to its last reconcile, which may be longer ago than the window."""
    resent = {"stored": 30, "resent": 30}
    looks = topics(*[WELL] * 8, *[QUIET] * 12, resent, *[QUIET] * 3)
    looks = [
        *looks[:10],
        *(replace(look, counted_until=looks[9].counted_until) for look in looks[10:-1]),
        looks[-1],
    ]
    assert answer_of(rules.stubs_stopped("orders", looks, LIMITS)) is None
    around = [replace(look, resent=0) for look in looks]
    assert answer_of(rules.stubs_stopped("orders", around, LIMITS)) is True


LOGS = {"passed": 30, "logged": 30}
SILENT = {"passed": 30}
HALF = {"passed": 30, "logged": 14}


@pytest.mark.parametrize(
    ("looks", "resent", "filtered", "expected"),
    [
        ([LOGS] * 16, 0, False, False),
        ([LOGS] * 8 + [SILENT] * 12, 0, False, True),
        ([LOGS] * 8 + [SILENT] * 12, 0, True, True),
        ([SILENT] * 16, 0, False, True),
        ([SILENT] * 16, 0, True, None),
        ([LOGS] * 8 + [HALF] * 16, 0, False, False),
        ([LOGS] * 8 + [{"passed": 30, "logged": 5}] * 16, 0, False, True),
        ([{"passed": 30, "logged": 3}] * 24, 0, True, False),
        ([LOGS] * 8 + [SILENT] * 12, 150, False, None),
        ([LOGS] * 8 + [SILENT] * 12, None, False, None),
        ([LOGS] * 8 + [QUIET] * 12, 0, False, None),
        ([LOGS] * 8 + [{"passed": 30, "logged": None}] * 12, 0, False, None),
        ([LOGS] * 8 + [{"passed": 30, "life": "0:b"}] * 4, 0, False, None),
        ([SILENT] * 3, 0, False, None),
    ],
    ids=[
        "every message is logged",
        "none is any more",
        "nor of a filter that usually takes some",
        "a group that never logged",
        "a filter that may take none",
        "half, counted over the longer time that work may take",
        "a sixth",
        "a filter that takes few",
        "only copies that Backstop sent again",
        "a resend is under way",
        "a quiet night",
        "its store is away",
        "another life",
        "a new group",
    ],
)
def test_logging_stopped(
    looks: list[dict[str, Any]], resent: int | None, filtered: bool, expected: bool | None
) -> None:
    assert (
        answer_of(
            rules.logging_stopped("orders", "billing", groups(*looks), resent, filtered, LIMITS)
        )
        is expected
    )


STANDS = {"waiting": 200, "backlog_seconds": 60.0}


@pytest.mark.parametrize(
    ("stored", "looks", "expected"),
    [
        ([WELL] * 12, [STANDS] * 12, True),
        ([WELL] * 12, [STANDS] * 11 + [{**STANDS, "passed": 1}], False),
        ([WELL] * 12, [QUIET] * 12, False),
        ([QUIET] * 12, [STANDS] * 12, None),
        ([WELL] * 3, [STANDS] * 3, None),
        ([WELL] * 12, [STANDS] * 6 + [{**STANDS, "life": "0:b"}] * 6, None),
    ],
    ids=[
        "messages come and none is passed",
        "it moves",
        "nothing waits",
        "nothing comes",
        "too new to tell",
        "another life",
    ],
)
def test_group_stands(
    stored: list[dict[str, Any]], looks: list[dict[str, Any]], expected: bool | None
) -> None:
    assert (
        answer_of(rules.group_stands("orders", "billing", topics(*stored), groups(*looks), LIMITS))
        is expected
    )


@pytest.mark.parametrize(
    ("hours", "expired", "expected"),
    [
        (0, 0, "well"),
        (39.9, 0, "well"),
        (40.1, 0, None),
        (49.9, 0, None),
        (50, 0, "warning"),
        (74.9, 0, "warning"),
        (75, 0, "critical"),
        (200, 0, "critical"),
        (1, 1, "critical"),
    ],
)
def test_backlog_age(hours: float, expired: int, expected: str | None) -> None:
    seen = groups({"backlog_seconds": hours * HOUR, "expired": expired, "waiting": 9})
    answer = rules.backlog_age("orders", "billing", seen, LIMITS)
    assert (
        None if answer is None else answer.finding.severity if answer.finding else "well"
    ) == expected


@pytest.mark.parametrize(
    ("ages", "passed", "says"),
    [
        (
            [60.0, 60.0 + 1 / 6],
            0,
            "passes 0.0 messages/s and falls behind: they begin to expire in about 39.8 hours",
        ),
        (
            [60.0, 59.5],
            600,
            "passes 1.0 messages/s and is catching up, and is done in about 19.8 hours",
        ),
        ([60.0], 0, "At the latest in 40.0 hours they begin to expire"),
    ],
)
def test_a_backlogs_alert_says_when_it_ends(ages: list[float], passed: int, says: str) -> None:
    looks = [
        GroupSample(
            NOW - (len(ages) - 1 - n) * 10 * MINUTE, "0:a", passed * n, 9, 0, age * HOUR, NOW, 0
        )
        for n, age in enumerate(ages)
    ]
    answer = rules.backlog_age("orders", "billing", looks, LIMITS)
    assert answer is not None and answer.finding is not None
    assert says in answer.finding.body


def test_what_lasts_does_not_become_the_usual() -> None:
    no_offsets, few_logs = topics(*[NO_OFFSET] * 40), groups(*[{"passed": 30, "logged": 5}] * 40)
    assert answer_of(rules.offsets_stopped("orders", no_offsets, LIMITS)) is False
    assert answer_of(rules.offsets_stopped("orders", no_offsets, LIMITS, yardstick=0.0)) is True
    assert (
        answer_of(rules.logging_stopped("orders", "billing", few_logs, 0, False, LIMITS)) is False
    )
    assert (
        answer_of(
            rules.logging_stopped("orders", "billing", few_logs, 0, False, LIMITS, yardstick=1.0)
        )
        is True
    )


def test_a_broker_without_offsets_is_not_asked_about_them() -> None:
    from backstop.config.load import from_mapping
    from system import settings_dict

    settings = from_mapping(settings_dict(policy={"watch_window": "5m"}))
    history = History(topics={"orders": topics(*[WELL] * 8, *[NO_OFFSET] * 8)})
    asked = {}
    for able in (True, False):
        capabilities = SimpleNamespace(has_offsets=able, knows_queue_of_send=able)
        sources: Any = SimpleNamespace(
            settings=settings, broker=lambda _, c=capabilities: SimpleNamespace(capabilities=c)
        )
        asked[able] = [
            answer.rule for answer in judge_module.judge(sources, history, {}) if answer.finding
        ]
    assert asked == {True: ["offsets_stopped"], False: []}


def queue(number: int = 0, *, minutes: float = 10.0, **given: Any) -> QueueSample:
    """One that stands at offset 5 since so many minutes; ten are stored, of which four came meanwhile."""
    values = {
        "passed": 5,
        "stored": 10,
        "came": 4,
        "moved": True,
        "backlog_seconds": 600.0,
        "epoch": "a",
        **given,
    }
    return QueueSample(queue_id=number, since=NOW - minutes * MINUTE, **values)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (queue(), True),
        (queue(minutes=4.9), False),
        (queue(minutes=5), True),
        (queue(came=0), False),
        (queue(passed=10), False),
        (queue(passed=9, came=1), True),
    ],
    ids=[
        "messages came while it stood",
        "not for long yet",
        "exactly as long as a window",
        "nothing came",
        "nothing waits",
        "one waits",
    ],
)
def test_a_queue_is_suspected_when_messages_come_to_it_and_the_group_passes_none(
    look: QueueSample, expected: bool
) -> None:
    assert (rules.suspects([look], NOW, LIMITS) == [look]) is expected


def test_a_queue_is_not_suspected_while_one_message_may_take_longer_than_the_window() -> None:
    patient = replace(LIMITS, consume_timeout=15 * MINUTE)
    assert rules.suspects([queue(minutes=14)], NOW, patient) == []
    assert rules.suspects([queue(minutes=15)], NOW, patient) != []


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, -1, None),
        (None, 5, None),
        (-1, -1, True),
        (5, 5, True),
        (5, 6, False),
        (None, 9, False),
        (9, 9, False),
        (5, 3, True),
    ],
    ids=[
        "never asked before",
        "never asked before, and the first is at work",
        "its group logs no offsets",
        "nothing behind the first was logged",
        "the next one was logged",
        "all were logged",
        "all were logged before",
        "logs were purged",
    ],
)
def test_a_queue_is_blocked_when_nothing_behind_its_first_message_is_logged(
    before: int | None, now: int, expected: bool | None
) -> None:
    assert rules.blocked(queue(logged=before), now) is expected


@pytest.mark.parametrize(
    ("looks", "logged", "consumers", "expected"),
    [
        ([queue()], 0, 1, True),
        ([queue()], 0, 0, False),
        ([queue(), queue(1, minutes=1)], 0, 0, True),
        ([queue(), queue(1, minutes=1, moved=False)], 0, 0, False),
        ([queue(), queue(1, minutes=6)], 0, 0, False),
        ([queue()], 3, 0, True),
    ],
    ids=[
        "the broker knows a consumer",
        "nothing tells of one",
        "another queue moved",
        "another queue was only seen for the first time",
        "another queue moved long ago",
        "it logged something",
    ],
)
def test_a_groups_consumers_run_when_anything_of_it_moves(
    looks: list[QueueSample], logged: int, consumers: int, expected: bool
) -> None:
    assert rules.alive(looks, groups(QUIET, {"logged": logged}), consumers, LIMITS) is expected
