"""How many messages a channel gets, and what they say."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from backstop.alerts.due import AlertMessage, DueAlert
from backstop.alerts.plan import plan
from backstop.alerts.write import one_line, write
from backstop.config.alerts import AlertsSettings


def some(number: int, severity: str = "warning") -> list[DueAlert]:
    return [
        DueAlert(
            n,
            f"case/{n}",
            f"case/{n}",
            False,
            severity,
            f"Case {n}: overdue in orders",
            "lost",
            {},
            "overdue",
            "orders",
        )
        for n in range(number)
    ]


@pytest.mark.parametrize(
    ("due", "sent", "newest", "messages"),
    [
        (0, 0, None, []),
        (1, 0, None, [1]),
        (5, 0, None, [1] * 5),
        (6, 0, None, [6]),
        (5, 12, 1.0, [5]),  # the free half would not suffice for five
        (1, 15, 239.0, []),
        (1, 15, 240.0, [1]),
        (9, 20, 240.0, [9]),
        (9, 30, 3599.0, []),
    ],
)
def test_alerts_are_sent_singly_until_there_are_too_many_at_once_or_within_the_hour(
    due: int, sent: int, newest: float | None, messages: list[int]
) -> None:
    planned = plan(some(due), sent, newest, digest_above=5, an_hour=30)
    assert [len(message.alerts) for message in planned] == messages


@pytest.mark.parametrize("seed", range(20))
def test_no_storm_of_any_shape_exceeds_the_messages_of_an_hour_and_nothing_waits_longer_than_its_share(
    seed: int,
) -> None:
    chance, an_hour = random.Random(seed), random.Random(seed).randint(2, 60)
    sent: list[float] = []
    waiting, oldest = 0, 0.0
    for minute in range(600):
        now = 60.0 * minute
        arrived = chance.choice([0, 0, 1, 3, 50]) if minute % 120 < 90 else 0
        oldest = now if not waiting else oldest
        waiting += arrived
        lately = [at for at in sent if at > now - 3600]
        messages = plan(
            some(waiting),
            len(lately),
            now - lately[-1] if lately else None,
            digest_above=20,
            an_hour=an_hour,
        )
        if messages:
            assert sum(len(message.alerts) for message in messages) == waiting
            sent += [now] * len(messages)
            waiting = 0
        assert sum(at > now - 3600 for at in sent) <= an_hour
        assert not waiting or now - oldest <= 3600


def test_a_digest_names_the_gravest_and_counts_the_rest_by_kind_topic_and_severity() -> None:
    closing = DueAlert(99, "case/9/closed", "case/9", True, "info", "Case 9 is over", "b")
    watch = DueAlert(98, "watch/1/warning", "watch/1", False, "warning", "A backlog", "b")
    said = write(AlertMessage((*some(30, "critical"), *some(2), watch, closing)))
    assert said["title"] == "[critical] Backstop: 34 alerts: 30 critical, 3 warning, 1 over"
    lines = said["body"].splitlines()
    assert sum(line.startswith("critical: Case") for line in lines) == 20
    assert {
        "and 10 more critical ones",
        "30 critical overdue in orders",
        "2 warning overdue in orders",
        "1 warning watch",
        "Over: 1",
    } <= set(lines)


def test_one_line_has_no_character_that_steers_whoever_shows_it() -> None:
    assert one_line("a\r\nBcc: x\x1b[2J\u202e\u2028b", 100) == r"a\r\nBcc: x\x1b[2J\u202e\u2028b"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": {"notify": {"url": "env:X"}}},
        {"channels": {"a/b": {"url": "env:X"}}},
        {"channels": {"a@b": {"url": "env:X"}}},
        {"channels": {"a": {"url": "slack://secret/x/y"}}},
        {"escalate": {"warning": ["2h", "1h"]}},
        {"escalate": {"warning": [0]}},
        {"timeout": "2m"},
        {"messages_an_hour": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AlertsSettings.model_validate(wrong)


def test_a_digest_of_ends_does_not_end_the_story_of_what_earlier_digests_told() -> None:
    over = [
        DueAlert(n, f"case/{n}/closed", f"case/{n}", True, "info", "over", "b") for n in range(3)
    ]
    burst, ends = write(AlertMessage(tuple(some(30, "critical")))), write(AlertMessage(tuple(over)))
    assert not burst["closing"]
    assert not ends["closing"] or ends["thread"] != burst["thread"]
