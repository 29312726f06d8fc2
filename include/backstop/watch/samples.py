"""What the watch samples of a topic and of a group, and what a rule answers: values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class TopicSample:
    """One sample of a topic. The counts cover stubs created since the sample before and until `counted_until`; None: a store did
    not answer, and the next sample covers them, too. `resent`: copies that Backstop itself published meanwhile, of any topic."""

    taken_at: datetime
    life: str
    """The epochs of its queues: numbers of two lives are never compared."""
    stored: int
    """Everything the broker ever stored in it: the sum of the queues' next offsets."""
    counted_until: datetime
    recorded: int | None = None
    attempted: int | None = None
    positioned: int | None = None
    delayed: int | None = None
    resent: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One sample of a group in a topic; `logged` counts as in TopicSample."""

    taken_at: datetime
    life: str
    passed: int
    """The sum of the offsets that it has passed in each queue."""
    waiting: int
    """Messages that the broker has stored and the group has not passed."""
    expired: int
    """Messages that the broker removed before the group came to them."""
    backlog_seconds: float
    """How long the oldest message that waits has been stored; 0 when none waits."""
    counted_until: datetime
    logged: int | None = None


@dataclass(frozen=True, slots=True)
class QueueSample:
    """One queue of a group: since when the group has been at one place in it, and what came meanwhile."""

    queue_id: int
    epoch: str
    passed: int
    """The first offset that the group has not passed."""
    stored: int
    """The next offset that the broker gives."""
    since: datetime
    """The first sample that found the group here."""
    came: int
    """Messages stored since that sample."""
    moved: bool
    """It came here from another place; else that sample was the first one at all."""
    backlog_seconds: float
    """How long the message at this place has been stored; 0 when none waits."""
    logged: int | None = None
    """The highest offset that the group had logged when it was last asked since then (-1: none); null: not asked yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules compare with; from the policy of the topic and group."""

    retention: timedelta
    retention_warn: float
    window: timedelta
    floor: int
    lag: timedelta
    """What was recorded or logged is counted this long afterwards, when its transaction has committed and its send has ended."""
    consume_timeout: timedelta


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, for a person: `body` says what will be lost, when, and what to do."""

    severity: str
    title: str
    body: str
    yardstick: float | None = None
    """What was usual when it began, kept while it lasts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A rule's answer about one subject: a finding, or that all is well. No answer at all: not enough was seen to tell."""

    rule: str
    topic: str
    group: str
    finding: Finding | None
    over: str = "What was seen before is seen no more."
    """Without a finding: why one that is open now ends."""
