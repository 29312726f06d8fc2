"""What Backstop asks of a broker, and the flags by which brokers differ.

Two protocols, because two different programs hold them: `Broker` (publish and look; duties and producers) and
`Subscription` (receive; consumer loops). No caller may ask which kind of broker it is: only what it can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Protocol, Self

from backstop.model.records import Message, Outcome, Position


class ProgressMeans(StrEnum):
    """What the broker's own idea of a group's progress counts."""

    ACKNOWLEDGED = "acknowledged"
    RECEIVED = "received"
    LOGGED = "logged"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this broker can do; every difference between brokers that a caller may act on, or that the contract suite tests by.
    `backstop check` prints them."""

    has_offsets: bool
    knows_queue_of_send: bool
    has_first_and_next_offset: bool
    has_time_at_offset: bool
    has_epochs: bool
    progress_means: ProgressMeans
    has_retry_queues: bool
    """Redeliveries wait in a queue of their own, whose depth `retry_pending` gives."""
    has_retry_topic_per_group: bool
    """A copy can be sent to one group alone (`publish(..., group=...)`)."""
    redelivery_delay: timedelta | None
    """After how long an unacknowledged message comes back; null: not before a rebalance or a restart."""
    delivery_limit: int | None
    """Deliveries of one message to one group before it is dead-lettered; null: unlimited."""
    settles_dead_letters_atomically: bool
    gives_dead_letter_cause: bool
    can_delay_redelivery: bool
    """A message handed back can come again later without spending a delivery."""
    counts_deaths: bool = True
    """A delivery that ended with its consumer's death counts; else at most that there was one is told."""
    redelivers_to_any: bool = True
    """A message handed back may come to any consumer of the group; else to the same one, until that one ends."""
    marks_redelivered: bool = True
    """A message that a consumer's death brought back is told from a new one; else its count is as it was."""
    acknowledges_each: bool = True
    """A message that was acknowledged before an older one stays so when its consumer dies; else it comes again with it."""
    knows_pending: bool = True
    """It knows which messages are in consumers' hands; else `pending` is 0."""
    lists_retries: bool = False
    """`list_retries` tells which messages come again; else only `retry_pending` tells how many wait outside the topic."""
    lists_retries_together: bool = False
    """It lists the retries of many groups by one look; it is then a RetryLister, too."""
    delays_messages: bool = False
    """It can keep a message back until a time of its own; it is then a Delayer, too."""
    tells_holders: bool = False
    """It knows which consumers a group has now, and these tell which queues they hold and have locked."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """How one publish ended. SENT has a position where the broker tells one; the others have an error text."""

    outcome: Outcome
    position: Position | None = None
    broker_message_id: str | None = None
    error: str | None = None
    refused_for_good: bool = False
    """Asking again cannot help: too large, no such topic."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a topic: its life, the first offset still stored and the next one to be stored."""

    queue_id: int
    epoch: str
    first_offset: int | None
    next_offset: int
    read_at: datetime


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far a group has got in one queue, by what the broker knows.

    `next_offset`: the first offset not yet passed (lowest unacknowledged, else next to deliver).
    `passed_until`: every message stored before this instant has been passed in this queue: the time of the message at
    `next_offset`, or an instant before the look, by a second at most, if there is none.
    """

    queue_id: int
    epoch: str
    next_offset: int
    passed_until: datetime
    pending: int
    """Messages delivered and not yet acknowledged."""


Places = Mapping[str, int]
"""How far a group was in queues of its own outside the topic, in the broker's words: recorded, and given back later."""


@dataclass(frozen=True, slots=True)
class Retries:
    """What the broker will deliver to a group again: failed messages on their way there, or in the group's hands."""

    count: int
    """At most so many wait outside the topic's own queues."""
    ids: frozenset[str] | None
    """The ids of all messages of the topic among them, and of those that the broker delays by a level; perhaps some more. Null:
    there are too many, or one could not be read."""
    places: Places
    but_for_them: Sequence[GroupPosition] | None = None
    """Where they lie in the topic's own queues: how far the group is in each but for them; null: `progress` says it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue in the hands of one consumer of a group, by the consumer's own word."""

    consumer: str
    queue_id: int | None
    """Null: a consumer that is connected and does not tell what it holds."""
    locked: bool = False
    """It holds the queue's lock, so that its messages go to nobody else (ordered groups)."""
    locked_at: datetime | None = None
    """When it last renewed the lock, by its own clock."""


@dataclass(frozen=True, slots=True)
class DeadLetterRef:
    """One entry of a dead-letter queue, as evidence: ids only. `message_id` is null when the entry carries none."""

    group: str | None
    topic: str | None
    message_id: str | None
    broker_id: str
    died_at: datetime | None = None
    """When it was put there, by the broker's clock; null: the broker does not tell."""
    place: tuple[str, str] | None = None
    """The queue and the entry, where entries only ever come behind the others: `dead_letters` can then read from there on."""


class DeadLetter(NamedTuple):
    """One entry of a dead-letter queue, whole, as the broker has it: nothing is guessed, cut or decoded away.

    A tuple, because a drain makes one for each entry: a frozen dataclass of as many fields takes three times as long.
    """

    queue: str
    """The dead-letter queue; (queue, broker_id) names the entry in this broker."""
    broker_id: str
    group: str | None
    topic: str | None
    message_id: str | None
    """The business key; null when the entry carries none that can be read."""
    content: bytes
    headers: bytes
    """A JSON object of text to text: byte for byte as the broker had it, where it had one."""
    properties: Mapping[str, str] = MappingProxyType({})
    """What the broker itself wrote to the entry, by the broker's own names."""
    cause: str = ""
    """Why, in the broker's words."""
    error: str = ""
    """Why, in the consumer's words."""
    deliveries: int | None = None
    position: Position | None = None
    """Where the message was in its topic."""
    tag: str | None = None
    partition_key: str | None = None
    died_at: datetime | None = None
    invalid: str | None = None
    """Why it cannot be read as a message, as the end of a sentence; null: it can."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `backstop check`: is what the policy relies on really so?"""

    subject: str
    good: bool
    says: str
    do: str = ""


class Broker(Protocol):
    """Publishing, and looking. Every look raises BrokerUnavailable rather than answer with less than everything."""

    @property
    def capabilities(self) -> Capabilities: ...

    def clock(self) -> datetime:
        """The broker's own time, by which `passed_until` is told."""
        ...

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        """Sends a batch and returns one receipt a message, in order; never raises for the fate of a message.

        The client's own retries are off. After a lost connection every message without an answer is UNKNOWN.
        `group` sends to that group's own retry topic (capability has_retry_topic_per_group).
        """
        ...

    def servers(self, topic: str) -> frozenset[str]:
        """The names of all servers known now of which each may have a part of the topic, of its retries or of its dead letters,
        and of those that are stated to be removed for good; empty: the broker is one server. A broker that can forget a server
        cannot tell that one is missing: the caller remembers the names."""
        ...

    def queues(self, topic: str) -> list[QueueState]:
        """Every queue of the topic itself; retry, delay and dead-letter queues never count."""
        ...

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        """One row for every queue of the topic; a queue that never stored anything counts as passed."""
        ...

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        """For each queue: every message stored before this instant lies below the given offset: the time of the first
        message at or above it, or the instant just before the look if there is none (capability has_time_at_offset)."""
        ...

    def retry_pending(self, topic: str, group: str) -> int:
        """Messages that wait for this group outside the topic's own queues."""
        ...

    def list_retries(self, topic: str, group: str, since: Places | None = None) -> Retries:
        """What comes to the group again, by id (capability lists_retries; else BrokerUnavailable).

        `since`: the `places` of an earlier look, from which on it is listed; null: from what the group has committed. Where a
        commit does not say that the message was processed, only a look as old as the redeliveries take is early enough.
        """
        ...

    def holders(self, topic: str, group: str) -> list[Holder]:
        """Which consumer of the group has which queue now (capability tells_holders; else empty). A look at others: nothing is
        decided by it, and a consumer that does not answer soon is one that does not tell."""
        ...

    def dead_letters(
        self, group: str, *, since: Mapping[str, str] | None = None
    ) -> Iterator[DeadLetterRef]:
        """The group's dead-letter queue, from its beginning to the end it has at the call, nothing removed.

        `since`: for each queue the place of the last entry that was read before: only those behind it. A queue that is not
        named, that begins again, or whose entries have no place is read whole.
        """
        ...

    def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
        """The dead-letter queues in which letters of these groups may lie, each once; one that is empty may be left out.

        A queue that several groups share is listed when one of them is asked for.
        """
        ...

    def open_dead_letters(self, queue: str) -> DeadLetterReader:
        """Reads a dead-letter queue for draining; two readers of one queue at once may get the same letters."""
        ...

    def durability(self, topics: Sequence[str]) -> list[Finding]:
        """What the broker promises to keep across a crash, measured against what Backstop relies on."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Delayer(Protocol):
    """A broker that can keep a message back until a time of its own (capability delays_messages)."""

    def delivered_until(self, topic: str) -> datetime:
        """By the broker's clock: whatever was due in the topic before this instant lies in its queues by now. Long ago where that
        is not known. Raises BrokerUnavailable."""
        ...


class RetryLister(Protocol):
    """A broker that lists the retries of many groups by one look (capability lists_retries_together)."""

    def list_retries_together(
        self, wanted: Mapping[tuple[str, str], Places | None]
    ) -> dict[tuple[str, str], Retries]:
        """As `list_retries`, for each (topic, group) with its `since`. Raises BrokerUnavailable when it cannot tell of one of them:
        then each can be asked for by itself."""
        ...


LETTERS_IN_HAND = 5_000
"""So many letters at least a reader hands out without any of them acknowledged."""
LETTER_PAGE_BYTES = 8 * 1024 * 1024
"""What the letters of one page hold at most, unless it is a single larger one."""


class Trimmer(Protocol):
    """A broker that keeps messages until it is asked to remove them: one with the option `retention`."""

    def trim(self, topic: str, passed: Mapping[int, tuple[str, int]]) -> int:
        """Removes messages that are as old as it was set to keep them, and that every group has acknowledged; how many.

        `passed`: for each queue its epoch and the first offset to stay; a queue that is not named, or in another epoch, stays.
        """
        ...


class DeadLetterReader(Protocol):
    """One reader of one dead-letter queue. Not shared between threads. Raises BrokerUnavailable, and loses nothing by it."""

    def read(self, limit: int) -> list[DeadLetter]:
        """The next letters that this reader has not handed out, oldest first; empty: it met the end of the queue.

        Bounded by LETTER_PAGE_BYTES too; goes on while LETTERS_IN_HAND are not acknowledged. What is not acknowledged stays
        in the broker, and another reader gets it again. The end may be the one that the queue had when this was opened.
        """
        ...

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        """Removes letters that were handed out; idempotent. Call it only after they are stored and committed."""
        ...

    def close(self) -> None:
        """What was handed out and not acknowledged is there for the next reader."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Received:
    """One message in a consumer's hands. `position` is the original one, also for a redelivery."""

    message: Message
    position: Position | None
    broker_id: str
    deliveries: int
    """How often the broker has handed this message to the group, this time included (1 for the first)."""
    sequence: tuple[str, int] | None = None
    """Its producer's id and that one's number of it, where the broker has no offsets and tells them; the same at a redelivery."""


class Subscription(Protocol):
    """One consumer of a group. Not shared between threads."""

    @property
    def topics(self) -> Sequence[str]:
        """What it subscribes to."""
        ...

    def fetch(self, limit: int, wait: timedelta) -> list[Received]:
        """Up to `limit` messages, redeliveries first; waits at most `wait` for the first one."""
        ...

    def acknowledge(self, received: Sequence[Received]) -> None:
        """The group is done with these; idempotent."""
        ...

    def hand_back(
        self, received: Received, *, after: timedelta, counts: bool, error: str | None = None
    ) -> None:
        """Comes again no sooner than `after`. `counts=False` does not spend a delivery (capability
        can_delay_redelivery); `counts=True` is a failure, which the delivery limit counts: the last one makes it a
        dead letter, with `error` where the broker keeps one. Nothing happens when it was delivered again meanwhile."""
        ...

    def close(self) -> None:
        """Leaves the group's unacknowledged messages to the broker's redelivery."""
        ...
