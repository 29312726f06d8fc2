"""The rules of predicted loss: looks in, answers out, nothing else.

A rule that has not seen enough answers nothing (None): what it said before stays as it was. Few messages never tell anything,
so that a quiet night is not an alarm; a topic's own past is the yardstick for what is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

from backstop.watch.samples import Answer, Finding, GroupSample, Limits, QueueSample, TopicSample

L = TypeVar("L", TopicSample, GroupSample)
USUAL_WINDOWS = 8
"""The past that says what is usual: so many windows before the present one."""
_OVER_AT = 0.8
"""A backlog's alert is over below this share of the age that raised it, so that it does not flutter."""


def backlog_age(
    topic: str, group: str, looks: Sequence[GroupSample], limits: Limits
) -> Answer | None:
    """Warns at a share of the broker's retention, critical half-way from there to its end, and when it has begun to lose."""
    now = looks[-1]
    age, retention = now.backlog_seconds, limits.retention.total_seconds()
    warn = retention * limits.retention_warn
    critical = (warn + retention) / 2
    if now.expired:
        return _found(
            "backlog_age",
            topic,
            group,
            "critical",
            f"{group} has lost messages of {topic} to the broker's retention",
            f"The broker has removed {now.expired} messages before {group} came to them; {now.waiting} more wait, the oldest for"
            f" {_length(age)} of {_length(retention)}. reconcile will call them LOST (expired_in_broker) and resend what it may."
            f" Now: bring {group}'s consumers back, or add some, and raise the retention of {topic}.",
        )
    if age < warn:
        return Answer("backlog_age", topic, group, None) if age < warn * _OVER_AT else None
    return _found(
        "backlog_age",
        topic,
        group,
        "critical" if age >= critical else "warning",
        f"{group}'s backlog of {topic} nears the broker's retention",
        f"The oldest of {now.waiting} messages that wait for {group} was stored {_length(age)} ago, and the broker keeps messages"
        f" for {_length(retention)}. {_forecast(looks, age, retention, limits.window)} What expires is lost to {group} until"
        f" it is resent. Do: bring its consumers back, or add some; else raise the retention before that.",
    )


def offsets_stopped(
    topic: str, looks: Sequence[TopicSample], limits: Limits, yardstick: float | None = None
) -> Answer | None:
    """Of the sends lately, far more than is usual for the topic have no offset recorded.

    `yardstick`: what was usual when the finding that is open now began, so that what lasts does not become the usual.
    """
    now, past = _split(looks, limits.window)
    if not now or not past:
        return None
    attempted, positioned = _sum(now, "attempted"), _sum(now, "positioned")
    usual_attempted, usual_positioned = _known(past, "attempted"), _known(past, "positioned")
    if attempted is None or positioned is None or attempted < limits.floor:
        return None
    if yardstick is None and usual_attempted < limits.floor:
        return None
    missing = 1 - positioned / attempted
    usual = 1 - usual_positioned / usual_attempted if yardstick is None else yardstick
    # Half of what usually has an offset is gone.
    if missing <= usual + (1 - usual) / 2:
        return Answer("offsets_stopped", topic, "*", None)
    return _found(
        "offsets_stopped",
        topic,
        "*",
        "warning",
        f"Producers of {topic} stopped recording offsets",
        f"{attempted - positioned} of the last {attempted} messages sent have no offset ({missing:.0%}; usual: {usual:.0%})."
        f" Without it a message that the broker loses is found late, by time alone, and one that expires or is skipped may be"
        f" resent late. Do: look for a producer that does not settle its sends (a new release, another client).",
        yardstick=usual,
    )


def stubs_stopped(topic: str, looks: Sequence[TopicSample], limits: Limits) -> Answer | None:
    """The broker stores messages, and nobody has recorded a stub: they are sent around Backstop."""
    if len(looks) < 2:
        return None
    # A message is stored after its stub was recorded, and stubs are counted late: so the storing is looked at as of earlier.
    settled = [look for look in looks if look.taken_at <= looks[-1].counted_until]
    now, past = _split(settled, limits.window)
    if not now or not past:
        return None
    began = now[0].taken_at - limits.window
    around = [look for look in looks if look.counted_until > began]
    recorded, delayed = (_sum(around, name) for name in ("recorded", "delayed"))
    # What Backstop published is known at once, however late the stubs are counted.
    resent = _sum([look for look in looks if look.taken_at > began], "resent")
    if recorded is None or resent is None or delayed is None or now[0].life != now[-1].life:
        return None
    if any(look.delayed for look in looks):
        return None  # what is stored now may have been recorded long ago
    grown = (
        now[-1].stored - past[-1].stored
        if past[-1].life == now[-1].life
        else now[-1].stored - now[0].stored
    )
    if grown - resent < limits.floor:
        return Answer("stubs_stopped", topic, "*", None) if recorded else None
    if recorded:
        return Answer("stubs_stopped", topic, "*", None)
    if not _known(past, "recorded"):
        return None  # never seen to record: a topic that is only now taken in
    return _found(
        "stubs_stopped",
        topic,
        "*",
        "critical",
        f"Messages of {topic} are sent without stubs",
        f"The broker stored {grown - resent} messages within {_length(limits.window.total_seconds())}, and no producer recorded"
        f" one. Backstop cannot see nor resend any of them: what is lost from now on stays lost. Do: find the producer that"
        f" sends around Backstop (a new release, another service), or bring its stub writer back.",
    )


def logging_stopped(
    topic: str,
    group: str,
    looks: Sequence[GroupSample],
    resent: int | None,
    filtered: bool,
    limits: Limits,
    yardstick: float | None = None,
) -> Answer | None:
    """The group goes on in the broker and logs nothing, or much less than usual: to Backstop that is a mass loss to come.

    `yardstick` as in offsets_stopped.
    """
    if len(looks) < 2 or resent is None:
        return None
    settled = [look for look in looks if look.taken_at <= looks[-1].counted_until]
    now, past = _split(settled, limits.window)
    if not now or not past or past[-1].life != now[-1].life:
        return None
    began = past[-1].taken_at
    # A log is written at receipt, before the message is passed: those of messages still at work then count as well.
    logged = _sum(
        [look for look in looks if look.counted_until > began - limits.consume_timeout], "logged"
    )
    passed = now[-1].passed - past[-1].passed - resent
    if logged is None or passed < limits.floor:
        return None
    usual = _usual_share(past) if yardstick is None else yardstick
    if usual is None and filtered:
        return None  # what its filter leaves out is passed without a log, and nobody knows how much that is
    if logged >= passed * (1.0 if usual is None else min(usual, 1.0)) / 2:
        return Answer("logging_stopped", topic, group, None)
    kind = "stopped logging" if logged == 0 else "logs far less than usual"
    return _found(
        "logging_stopped",
        topic,
        group,
        "critical",
        f"{group} {kind} for {topic}",
        f"{group} passed {passed} messages in the broker within {_length(limits.window.total_seconds())} and wrote {logged} logs."
        f" Soon reconcile finds them LOST: the blast radius then holds back the resends, but {topic} can no longer be proven."
        f" Do: look at {group}'s last release (is it still run by Backstop's consumer? does it reach its own database?)."
        f" Until that is known: backstop pause {topic} --why ...",
        yardstick=1.0 if usual is None else usual,
    )


def group_stands(
    topic: str,
    group: str,
    stored: Sequence[TopicSample],
    looks: Sequence[GroupSample],
    limits: Limits,
) -> Answer | None:
    """Messages come and the group passes none."""
    now, past = _split(looks, limits.window)
    if looks and looks[-1].waiting == 0:
        return Answer("group_stands", topic, group, None)
    if not now or not past or past[-1].life != now[-1].life:
        return None
    if now[-1].passed > past[-1].passed:
        return Answer("group_stands", topic, group, None)
    before = [
        look for look in stored if look.taken_at <= past[-1].taken_at and look.life == now[-1].life
    ]
    if (
        not before
        or stored[-1].life != now[-1].life
        or stored[-1].stored - before[-1].stored < limits.floor
    ):
        return None
    came, age = stored[-1].stored - before[-1].stored, now[-1].backlog_seconds
    left = max(limits.retention.total_seconds() - age, 0.0)
    return _found(
        "group_stands",
        topic,
        group,
        "warning",
        f"{group} stands still in {topic}",
        f"{came} messages came within {_length(limits.window.total_seconds())} and {group} passed none; {now[-1].waiting} wait,"
        f" the oldest for {_length(age)}. If it stays so, the broker removes the first in {_length(left)}. Do: check that"
        f" {group}'s consumers run, and read their last error. A group that is meant to end gets active_until.",
    )


def suspects(looks: Sequence[QueueSample], now: datetime, limits: Limits) -> list[QueueSample]:
    """Queues in which the group has passed nothing for longer than a message may take, while messages came to them."""
    patience = max(limits.window, limits.consume_timeout)
    return [
        look
        for look in looks
        if look.stored > look.passed and look.came > 0 and now - look.since >= patience
    ]


def blocked(suspect: QueueSample, logged: int) -> bool | None:
    """Whether one message holds up those behind it; null: too early to tell.

    `logged`: the highest offset that the group has logged now (-1: none). Behind a message that is merely late, the others go
    on: they are logged. An ordered group takes none of them.
    """
    if logged >= suspect.stored - 1:
        return False
    if suspect.logged is None:
        return None
    return logged <= suspect.logged


def alive(
    looks: Sequence[QueueSample], groups: Sequence[GroupSample], consumers: int, limits: Limits
) -> bool:
    """The group's consumers run: the broker knows some, or other queues moved lately, or something was logged lately."""
    if consumers:
        return True
    now = groups[-1].taken_at
    if any(look.moved and now - look.since < limits.window for look in looks):
        return True
    return any(look.logged for look in groups if look.taken_at > now - limits.window)


def _forecast(looks: Sequence[GroupSample], age: float, retention: float, window: timedelta) -> str:
    """Whether it catches up, and when it ends: from the age's own change over a window."""
    now, past = _split(looks, window)
    before = past[-1] if past else looks[0]
    seconds = (looks[-1].taken_at - before.taken_at).total_seconds()
    if seconds <= 0 or not now or before.life != looks[-1].life:
        return f"At the latest in {_length(max(retention - age, 0))} they begin to expire, if nothing moves."
    change = (age - before.backlog_seconds) / seconds
    rate = (looks[-1].passed - before.passed) / seconds
    if change <= 0:
        ends = f", and is done in about {_length(age / -change)} at this pace" if change < 0 else ""
        return f"It passes {rate:.1f} messages/s and is catching up{ends}."
    left = _length(max(retention - age, 0.0) / change)
    return (
        f"It passes {rate:.1f} messages/s and falls behind: they begin to expire in about {left}."
    )


def _usual_share(past: Sequence[GroupSample]) -> float | None:
    """Logs for each message passed, before; null: too little was seen."""
    passed, logged = 0, 0
    for before, after in pairwise(past):
        if after.logged is not None and after.life == before.life and after.passed > before.passed:
            passed, logged = passed + after.passed - before.passed, logged + after.logged
    return logged / passed if passed and logged else None


def _split(looks: Sequence[L], window: timedelta) -> tuple[list[L], list[L]]:
    """The looks within the window, and those before it; the last of those is what the window is measured from."""
    if not looks:
        return [], []
    began = looks[-1].taken_at - window
    return [look for look in looks if look.taken_at > began], [
        look for look in looks if look.taken_at <= began
    ]


def _sum(looks: Sequence[TopicSample] | Sequence[GroupSample], name: str) -> int | None:
    """The count over these looks; null when one of them could not count."""
    total = 0
    for look in looks:
        count = getattr(look, name)
        if count is None:
            return None
        total += count
    return total


def _known(looks: Sequence[TopicSample], name: str) -> int:
    """The count over those looks that could count."""
    return sum(getattr(look, name) or 0 for look in looks if getattr(look, name) is not None)


def _found(
    rule: str,
    topic: str,
    group: str,
    severity: str,
    title: str,
    body: str,
    yardstick: float | None = None,
) -> Answer:
    return Answer(rule, topic, group, Finding(severity, title, body, yardstick))


def _length(seconds: float) -> str:
    """A length of time as a person says it."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
