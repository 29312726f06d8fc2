"""What Backstop speaks of: frozen records, and every state with the sentence that defines it.

Times are timezone-aware datetimes (UTC). A message is known by (topic, message_id) everywhere: its `Key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Self

GROUPS_HEADER = "backstop-groups"
"""Names the groups that a resent copy is for, as a JSON array of text; absent: for every group."""
ID_HEADER = "backstop-message-id"
"""Carries the business key with every copy."""
SEND_HEADER = "backstop-send-number"
"""Which send of the message this copy is: 1 for the application's own."""
VERSION_HEADER = "backstop-content-version"
"""Which edit of the content this is, 1 for the original (also when absent)."""

EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Stores report every instant within these two, `infinity` and the year 9999 included: adding a policy's duration to the later
one still gives an instant that a datetime can hold."""

TOPIC_BYTES = GROUP_BYTES = 255
ID_BYTES = ORDERING_KEY_BYTES = EPOCH_BYTES = 1024
"""The contract's longest names and keys, in bytes of UTF-8: those that share an index fit one of its entries (2,704 bytes)."""


def id_in(headers: Mapping[str, str]) -> str | None:
    """The id that a copy carries; null: none, or one with half of a surrogate pair, which no text can hold and no stub has."""
    found = headers.get(ID_HEADER) or None
    return None if found is not None and _HALF_A_PAIR.search(found) else found


_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


class Key(NamedTuple):
    """A message's identity. Ids may contain any Unicode, ':', '%' and quotes: never join the two as text."""

    topic: str
    message_id: str


class State(StrEnum):
    """A state as it is stored, with the sentence that defines it."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class Verdict(State):
    """The one state of a delivery at an instant."""

    VOIDED = "VOIDED", "the stub was voided, or a person discarded this delivery"
    CONFIRMED = "CONFIRMED", "the group's work is done"
    DEAD_LETTERED = (
        "DEAD_LETTERED",
        "an undecided dead letter of this group is there: triage owns it",
    )
    PARKED = "PARKED", "its ordering key waits for a person"
    IN_PROGRESS = "IN_PROGRESS", "a consumer holds the lease, or touched the log a moment ago"
    WAITING = "WAITING", "it is too early to look"
    BACKLOGGED = "BACKLOGGED", "a copy is still ahead of the group"
    UNKNOWN = "UNKNOWN", "the evidence is incomplete: nothing is decided"
    STALLED = "STALLED", "received, not finished, and the broker has nothing left to redeliver"
    UNSENT = "UNSENT", "no copy was ever acknowledged, and none can still arrive"
    LOST = "LOST", "acknowledged by the broker, passed by the group, and never received"
    EXHAUSTED = "EXHAUSTED", "the budget of sends, refusals or time is used up: a person decides"


class StubStatus(State):
    """What is known of a stub over all its deliveries."""

    PENDING = "pending", "at least one delivery is still open"
    CONFIRMED = "confirmed", "every delivery is CONFIRMED or VOIDED; final"
    EXHAUSTED = "exhausted", "the open deliveries are EXHAUSTED; a case asks a person"
    VOIDED = "voided", "a person withdrew the message; final"
    NO_TAKER = "no_taker", "no group owed it within the overdue horizon"


class LogState(State):
    """How far a consumer group got with a message."""

    CONSUMING = "CONSUMING", "a worker holds the lease, or died holding it"
    CONSUMED = "CONSUMED", "the work is done; final"
    FAILED = "FAILED", "the handler raised; the broker will deliver again"
    EXPIRED = "EXPIRED", "the sweep took an expired lease back; the next begin takes it over"
    PARKED = "PARKED", "its ordering key waits for a person"


class Outcome(State):
    """How one send number ended."""

    SENT = "sent", "acknowledged by the broker"
    REFUSED = "refused", "the broker certainly does not have it"
    UNKNOWN = "unknown", "a timeout, a lost connection or a crash: it may be there"


class RequestState(State):
    """Where a resend request stands."""

    OPEN = "open", "waits to be claimed"
    CLAIMED = "claimed", "a worker holds it until claim_deadline"
    SENT = "sent", "its number was published and acknowledged"
    REFUSED = "refused", "its number was handed out and the broker refused it"
    UNKNOWN = "unknown", "its number was handed out; the outcome is not known"
    NOT_NEEDED = (
        "not_needed",
        "judged again at the claim: nothing to send, or its stub is gone; the number is free",
    )
    SUPERSEDED = (
        "superseded",
        "the stub moved on before the claim; the number was not taken by this request",
    )


WAITS_FOR_RELAY = "its number waits for its own relay; no worker holds it"
"""`error` of a claimed request whose claim was over while the producer's own relay had not sent yet."""


class DeadLetterState(State):
    """Where a dead letter stands."""

    OPEN = "open", "undecided, or waiting: its delivery is DEAD_LETTERED"
    REPLAYING = "replaying", "a resend request was made for it, and has not ended"
    REPLAYED = (
        "replayed",
        "its request's number was published: a copy is, or may be, with the broker; final",
    )
    DISCARDED = "discarded", "nothing is left to do: the log, or a person, proves it; final"


class Category(State):
    """What kind of death it was."""

    DUPLICATE_SUPPRESSED = (
        "duplicate_suppressed",
        "the client took a redelivery for a duplicate and did not process it",
    )
    ALREADY_CONFIRMED = (
        "already_confirmed",
        "the group's log proves the work done: a false dead letter",
    )
    BUSY_EXHAUSTED = (
        "busy_exhausted",
        "the broker gave up while the message was busy; the log shows no failure",
    )
    EXPIRED = "expired", "it was not taken before its time to live was over"
    TRANSIENT = "transient", "what the handler needs was away: trying again can help"
    POISON = "poison", "the handler cannot process this content, however often it is tried"
    CONFLICT = "conflict", "its id came with another content than before"
    UNKNOWN = "unknown", "no rule knows the text"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a broker stored a copy. `epoch` is the life of the queue; offsets are never compared across epochs."""

    queue_id: int
    offset: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Message:
    """What is published: content as bytes, headers as text to text."""

    topic: str
    message_id: str
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    tag: str | None = None
    partition_key: str | None = None
    """Decides the queue; null: the message id does."""

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)

    def with_headers(self, headers: Mapping[str, str]) -> Message:
        """The same message with other headers."""
        return Message(
            self.topic, self.message_id, self.content, headers, self.tag, self.partition_key
        )


@dataclass(frozen=True, slots=True)
class Stub:
    """A producer's promise, without its payload (which only a send reads)."""

    shard: str
    topic: str
    message_id: str
    status: str
    send_count: int
    refusals: int
    max_sends: int | None
    next_check_at: datetime
    created_at: datetime
    tag: str | None = None
    ordering_key: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    queue_epoch: str | None = None
    deliver_at: datetime | None = None
    first_seen_at: datetime | None = None
    attempted_at: datetime | None = None
    sent_at: datetime | None = None
    attempt_token: str | None = None
    attempt_deadline: datetime | None = None
    judged_at: datetime | None = None
    first_queue_id: int | None = None
    first_queue_offset: int | None = None
    first_queue_epoch: str | None = None
    """Where number 1 was stored, whatever was sent later; null: not known."""
    first_groups: tuple[str, ...] | None = None
    """The groups that number 1 was addressed to; null: all."""
    first_broker: str | None = None
    created_latest: datetime | None = None
    """Where `created_at` is only the earliest instant at which it may have been created."""

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)

    @property
    def replay_from(self) -> datetime:
        """The instant from which replay_horizon counts."""
        return self.created_at if self.deliver_at is None else max(self.created_at, self.deliver_at)

    @property
    def first_to_all(self) -> bool:
        """Whether number 1 was addressed to every group."""
        return self.first_groups is None

    @property
    def settled(self) -> bool:
        """Whether no attempt is under way."""
        return self.attempt_token is None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One send number that has ended."""

    topic: str
    message_id: str
    send_number: int
    groups: tuple[str, ...] | None
    """The groups it was addressed to; null: all."""
    requested_by: str
    started_at: datetime
    finished_at: datetime | None
    outcome: str
    queue_id: int | None = None
    queue_offset: int | None = None
    queue_epoch: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogRow:
    """A consumer group's record of one message."""

    consumer_group: str
    topic: str
    message_id: str
    state: str
    owner_token: str | None
    lease_expires_at: datetime | None
    attempts: int
    duplicates_stopped: int
    first_received_at: datetime | None
    updated_at: datetime | None
    consumed_at: datetime | None
    conflicts: int = 0
    last_error: str | None = None
    owner_host: str | None = None
    payload_hash: str | None = None
    """Of the content it worked on, in hex."""
    invalid: str | None = None
    """Why the row breaks its contract, or null."""


class Counts(dict[str, int]):
    """What a duty did, by name. Adding two adds every name; `str()` is its one line."""

    def add(self, name: str, number: int = 1) -> None:
        """Add `number` to the count `name`, which starts at 0."""
        self[name] = self.get(name, 0) + number

    def __add__(self, other: Mapping[str, int]) -> Counts:
        total = Counts(self)
        for name, number in other.items():
            total.add(name, number)
        return total

    def __str__(self) -> str:
        return (
            ", ".join(f"{name} {number}" for name, number in sorted(self.items()))
            or "nothing to do"
        )
