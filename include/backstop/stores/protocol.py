"""What Backstop asks of other programs' databases: sources, which it reads to judge, and stores, which it also changes.

Nothing here belongs to one kind of database: tables of other names, MySQL, MongoDB and lake tables implement the same.
Every write is a compare-and-set on the row itself, so that a late or doubled caller changes nothing.
Every method raises StoreUnavailable when the store does not answer: silence is never "no row".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar, overload

from backstop.brokers.protocol import Finding
from backstop.model.errors import ContractBroken, StoreFailed
from backstop.model.records import Attempt, Key, LogRow, Message, Outcome, Position, Stub

LAST_NUMBER: Final = 2**31 - 1
"""The largest send number that a column can hold."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A bulk read in parts that executors do beside one another, each with a store of its own (`read_part`).

    A part is what this kind of store makes of it; it holds no secret. `rows`: how many were counted or estimated; `read_at`: the
    instant, by the store's own clock, as of which the parts hold (null: it cannot say). `estimates`: for a scan of logs, the rows
    expected of each group that was considered, also of those that have no part because that was too many.
    """

    parts: Sequence[Any]
    rows: int
    read_at: datetime | None = None
    estimates: Mapping[str, int] = field(default_factory=dict)
    frame: Any = None
    """In place of parts: the rows as a DataFrame of PART_COLUMNS["stubs"], where Spark itself reads the store."""


class Part(NamedTuple):
    """One range of a bulk read of an SQL database: whole statements by the name of what they give ("stubs", "attempts",
    "logs"), and the snapshot that all parts of the scan share (null: each reads what is there now)."""

    statements: Mapping[str, str]
    snapshot: str | None = None


STUB_COLUMNS: Mapping[str, str] = {
    "shard": "string",
    "topic": "string",
    "message_id": "string",
    "tag": "string",
    "status": "string",
    "send_count": "int",
    "refusals": "int",
    "max_sends": "int",
    "next_check_at": "bigint",
    "created_at": "bigint",
    "first_seen_at": "bigint",
    "judged_at": "bigint",
    "deliver_at": "bigint",
    "attempted_at": "bigint",
    "sent_at": "bigint",
    "attempt_deadline": "bigint",
    "settled": "boolean",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "queue_epoch": "string",
    "first_broker": "string",
    "first_queue_id": "int",
    "first_queue_offset": "bigint",
    "first_queue_epoch": "string",
    "first_to_all": "boolean",
    "created_latest": "bigint",
}
"""What a verdict needs of a stub, in Spark's type names; also the order of the columns. `settled`: no attempt is under way, so
that `attempted_at` says when the newest send began at the latest; `first_*`: the place of number 1, and whether it was addressed
to every group, at one broker that is known (else its attempts tell); `created_latest`: where `created_at` is only the earliest
instant at which it may have been created."""

ATTEMPT_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "message_id": "string",
    "send_number": "int",
    "consumer_group": "string",
    "outcome": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "queue_epoch": "string",
    "started_at": "bigint",
    "finished_at": "bigint",
}
"""One row for each group an attempt was addressed to; `consumer_group` null: all of them."""


LOG_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "message_id": "string",
    "log_state": "string",
    "log_broken": "string",
    "lease_expires_at": "bigint",
    "log_updated_at": "bigint",
    "log_consumed_at": "bigint",
}
"""What a verdict needs of a log row; `log_broken` says how it breaks its contract, null when it keeps it."""

PART_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "stubs": STUB_COLUMNS,
    "attempts": ATTEMPT_COLUMNS,
    "logs": {"consumer_group": "string", **LOG_COLUMNS},
}
"""What a part of a scan gives, by name. Instants are microseconds since 1970 (bigint)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which stubs a run looks at: null means all topics; `created_from` <= created_at < `created_to`."""

    topics: Sequence[str] | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None


class Claim(NamedTuple):
    """Hands out one send number: send_count becomes `send_number` only where it is one less, the stub is pending and not
    erased, no attempt is under way, the budget is not used and, if `only_when_due`, next_check_at has come."""

    key: Key
    send_number: int
    token: str
    groups: Sequence[str] | None
    requested_by: str
    attempt_seconds: float
    """The attempt's deadline, from now on the store's clock."""
    next_check_seconds: float
    """Backoff and expected queue delay: the next look, from now on the store's clock."""
    max_sends: int
    """The policy's budget, used where the stub has none of its own."""
    max_refusals: int
    only_when_due: bool
    broker: str | None = None
    """Where it will be sent, recorded before it is; null: not known."""


def refuse_two_numbers(claims: Sequence[Claim]) -> None:
    """Raises ContractBroken where a batch claims two numbers of one message."""
    if len({claim.key for claim in claims}) != len(claims):
        raise ContractBroken(
            "One batch claims two numbers of one message.",
            unaffected="No number was handed out.",
            next_step="Claim one number of a message at a time: the later one is not free yet.",
        )


class Settlement(NamedTuple):
    """How the attempt with this token ended. Applied only where the token is still the stub's."""

    key: Key
    send_number: int
    token: str
    outcome: Outcome
    position: Position | None = None
    broker: str | None = None
    broker_message_id: str | None = None
    error: str | None = None
    max_send_seconds: float | None = None
    """attempted_at moves to so long before now where the send began later than it: a copy without a trusted offset counts
    as stored by attempted_at + max_send_duration. Null: it began at once."""


class Life(NamedTuple):
    """Where a copy was stored, as far as it was recorded."""

    broker: str | None
    queue_id: int | None
    epoch: str | None


class StubOutcome(NamedTuple):
    """What a run decided of a stub: applied only where status and send_count are as judged."""

    key: Key
    old_status: str
    new_status: str
    send_count: int
    next_look_at: datetime | None
    """next_check_at becomes max(old, this); null leaves it (an eligible stub, whose next look only the claim moves)."""


class StubOutcomes(Sequence[StubOutcome]):
    """Many of them, by column: to make an object for each of millions takes a third as long as to change their rows."""

    NAMES: Final = (
        "topics",
        "message_ids",
        "old_statuses",
        "new_statuses",
        "send_counts",
        "next_looks",
    )
    """Of the columns, as statements take them."""

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        """Topics, message ids, and then as StubOutcome; all of one length."""
        self.columns = columns

    @classmethod
    def of(cls, outcomes: Sequence[StubOutcome]) -> Self:
        """The same by column."""
        if isinstance(outcomes, cls):
            return outcomes
        rows = [
            (*one.key, str(one.old_status), str(one.new_status), one.send_count, one.next_look_at)
            for one in outcomes
        ]
        return cls.of_rows(rows)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[Any]]) -> Self:
        """Rows of topic, message id, and then as StubOutcome."""
        return cls(list(zip(*rows, strict=True)) or [()] * 6)

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, which: int) -> StubOutcome: ...

    @overload
    def __getitem__(self, which: slice) -> Self: ...

    def __getitem__(self, which: int | slice) -> StubOutcome | Self:
        if isinstance(which, slice):
            return type(self)([column[which] for column in self.columns])
        topic, message_id, *rest = (column[which] for column in self.columns)
        return StubOutcome(Key(topic, message_id), *rest)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What producers recorded of one topic between two instants: stubs, those sent and not refused, those of them whose offset
    is known, and those with a delivery time of their own (which the two before leave out)."""

    stubs: int
    attempted: int
    positioned: int
    delayed: int


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What stands around a message among those of its ordering key: by sequence, else by created_at and message_id."""

    ordering_key: str
    open_before: str | None
    """The first message of the key that comes before it and is neither confirmed nor voided."""
    sent_after: str | None
    """The first message of the key that comes after it and may have been sent."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A send number that was, or may have been, handed out, and that a restored stub does not know of."""

    key: Key
    send_number: int
    groups: Sequence[str] | None
    requested_by: str
    at: datetime
    """No later than this its copy was stored, if it was."""
    outcome: Outcome = Outcome.UNKNOWN
    """REFUSED when the broker certainly does not have it; else UNKNOWN: where it went is not known any more."""


class Source(Protocol):
    """What reconcile and prove read of a store, of whatever kind: a scan in parts, which executors read beside one another, and
    an answer by key, on the primary. A store of another kind has these methods to be judged, and those of StubStore or LogStore
    below to be changed as well."""

    def clock(self) -> datetime:
        """The store's own time."""
        ...

    def read_part(self, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        """Reads a part of a scan, perhaps in another process; what `keep` makes of each name and Arrow table of
        PART_COLUMNS, stubs first. `keep` may be called again for all of them, when the first try was lost."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StubSource(Source, Protocol):
    """The promises of one producer (a shard): what is due of them, or was created in a window, and any of them by key."""

    @property
    def shard(self) -> str: ...

    def count_due(self, as_of: datetime, scope: Scope, limit: int) -> int:
        """How many pending stubs have next_check_at <= as_of, counted up to `limit`."""
        ...

    def scan_due(
        self, as_of: datetime, scope: Scope, partitions: int
    ) -> AbstractContextManager[Scan]:
        """The due stubs, and the attempts of those that were sent more than once or first to some groups alone, all of one
        instant: parts can be read until the context ends. `partitions`: ranges of equal size at least, where rows are many."""
        ...

    def scan_window(
        self, topic: str, start: datetime, end: datetime, partitions: int
    ) -> AbstractContextManager[Scan]:
        """The same of a topic's stubs created in [start, end), whatever their status."""
        ...

    def proves(self, topic: str) -> bool:
        """Whether the ids of its messages are known to be those that logs have: else that a log lacks one proves nothing."""
        ...

    def stub_table(self, keys: Sequence[Key]) -> Any:
        """By key, on the primary: an Arrow table of STUB_COLUMNS; a key without a row is absent."""
        ...

    def attempt_table(self, keys: Sequence[Key]) -> Any:
        """By key: an Arrow table of ATTEMPT_COLUMNS, of those stubs that were sent more than once."""
        ...


class StubStore(StubSource, Protocol):
    """One producer database (a shard), with what Backstop changes there."""

    def tables(self) -> str | None:
        """Names the tables in which this store changes stubs, with the server's present life: the same text means the same rows,
        whatever address leads there. Null: it changes none there, or they are not made yet."""
        ...

    def stubs(self, keys: Iterable[Key]) -> dict[Key, Stub]:
        """By key, on the primary."""
        ...

    def oldest_due(self) -> datetime | None:
        """The next_check_at of the oldest pending stub, if it has come; null: nothing is due."""
        ...

    def known_until(self, topic: str, as_of: datetime) -> datetime | None:
        """Up to when `recorded_between` knows each stub of the topic that was committed: `as_of`, which is now, where it counts the rows
        themselves. Null: it cannot say."""
        ...

    def recorded_between(self, start: datetime, end: datetime) -> dict[str, Recorded]:
        """By topic, of the stubs created in [start, end); a topic without any is absent. Costs what the window holds."""
        ...

    def attempts(self, keys: Iterable[Key]) -> dict[Key, list[Attempt]]:
        """By key, every number, ascending."""
        ...

    def lives(self, topics: Sequence[str]) -> dict[str, set[Life]]:
        """By topic, where copies of its pending stubs were stored, as recorded; reads everything that is open, once."""
        ...

    def neighbours(self, keys: Iterable[Key]) -> dict[Key, Neighbours]:
        """By key, on the primary; a message without an ordering key is absent. Costs next to nothing where no message has
        one."""
        ...

    def open_in_line(
        self, topic: str, ordering_key: str, after: str | None, limit: int
    ) -> list[str]:
        """Ids of the messages of an ordering key that are neither confirmed nor voided, in sequence, after `after` (null: from
        the first)."""
        ...

    def named(self, topics: Sequence[str], text: str, limit: int) -> list[tuple[Key, str]]:
        """Messages of these topics whose id, message key or ordering key is `text`, the newest first, each with which of them ("id",
        "message key", "ordering key"); at most `limit` by each. By index; a store without such keys has none. Raises StoreUnavailable
        where that takes too long."""
        ...

    def sent_as(
        self, topics: Sequence[str], broker_message_id: str, created_from: datetime, limit: int
    ) -> list[tuple[Key, str]]:
        """The same for the broker's id of the newest copy, of messages created since then: it reads all of these. Raises
        StoreUnavailable where that takes too long."""
        ...

    def contents(self, keys: Iterable[Key]) -> dict[Key, Message]:
        """What to publish. The header backstop-content-version tells an edit's number."""
        ...

    def contents_beside(self, key: Key, limit: int, most_bytes: int) -> list[bytes]:
        """Contents of other messages of the same topic and tag, to compare one with: those whose ids are next to this one's,
        at most `limit`, none of them empty or of more than `most_bytes` bytes."""
        ...

    def sizes(self, keys: Iterable[Key], above: int = -1) -> dict[Key, int]:
        """By key, the bytes of content and headers where they are more than `above`, without reading the content; a key without
        a row is absent."""
        ...

    def claim(self, claims: Sequence[Claim]) -> dict[Key, Message]:
        """One commit; returns what to publish for the keys whose number was handed out to this caller.

        An attempt whose deadline is over does not stand in the way of a claim, a promotion or a withdrawal: it is recorded as
        unknown first, in the same transaction.
        """
        ...

    def unsendable(self, keys: Iterable[Key]) -> dict[Key, StoreFailed]:
        """Of messages that `claim` handed no number out of, those whose row holds nothing that can be sent, and why: somebody must
        correct the row, or (ContentErased) its content was erased on request and nothing of it is ever sent."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        """One commit: the stub and its send_attempt row; returns the keys that were still this caller's."""
        ...

    def recover(self, limit: int, max_send_seconds: float | None = None) -> list[Key]:
        """Attempts whose deadline is over lose their token and are recorded as unknown; at most `limit`.

        Their attempted_at moves to `max_send_seconds` (the shortest of the shard's topics) before the deadline, the latest
        instant at which they may have begun; null: they began at once.
        """
        ...

    def late(self, after: Key, limit: int) -> list[Key]:
        """The messages of such attempts behind `after`, in the order of their keys; at most `limit`."""
        ...

    def recover_of(self, keys: Sequence[Key], max_send_seconds: float) -> list[Key]:
        """`recover` for such attempts of these messages alone; one commit."""
        ...

    def promote(
        self,
        outcomes: Sequence[StubOutcome],
        as_of: datetime,
        own_as_of: datetime | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        """Sets status, next_check_at, judged_at and first_seen_at; returns how many rows still were as judged.

        A later judgement than `as_of` stays, unless this one confirms. `own_as_of`: `as_of` by this store's clock, or a little
        earlier; what changed later is not called exhausted. None: the clocks are the same. `before_commit`: what it raises leaves
        the rows as they are.
        """
        ...

    def raise_numbers(self, handed: Sequence[Handed]) -> set[Key]:
        """After a restore: send_count becomes at least the highest of a key's numbers, and each of them that is above it now
        is recorded as an attempt; returns the keys raised. Keys under way are left alone."""
        ...

    def closed_since(self, topics: Sequence[str], since: datetime) -> Iterator[list[Key]]:
        """In pages, the messages of these topics that a run closed since then (confirmed or exhausted)."""
        ...

    def reopen(self, keys: Sequence[Key]) -> int:
        """After a restore of somebody else: these messages are pending and due, where a run closed them. One commit; returns how many.

        Raises StoreFailed, and changes nothing, when its database keeps one closed, with an error or without."""
        ...

    def void(self, key: Key) -> bool:
        """Withdraws a pending or exhausted stub; false when an attempt is under way or it is final."""
        ...

    def replace_content(self, key: Key, version: int, content: bytes) -> bool:
        """A person's edit: the content becomes this one and the version `version` + 1, only where it is still `version`, the
        message is neither final nor erased and no attempt is under way."""
        ...

    def raise_max_sends(self, key: Key, max_sends: int) -> bool:
        """A person allows more sends: pending again, due now; false when it is final, erased or not above what was sent,
        refusals not counted."""
        ...

    def check(self) -> list[Finding]:
        """Schema version, privileges and durability, for `backstop check`."""
        ...


class LogSource(Source, Protocol):
    """What groups did. The scan proves: it gives rows that are final. The key denies: only its answer says that there is none."""

    def floor(self, group: str, topic: str | None = None) -> datetime:
        """The largest updated_at ever purged; the year 1 when nothing was. `topic`: of its messages alone, where a store knows
        more of them; the end of time while an absent row proves nothing of them."""
        ...

    def log_table(self, group: str, keys: Sequence[Key]) -> Any:
        """By key, on the primary: an Arrow table of LOG_COLUMNS; a key that is absent from it has no row."""
        ...

    def scan_done(
        self, groups: Mapping[str, datetime], worth: Mapping[str, float], partitions: int
    ) -> Scan | None:
        """The groups' valid CONSUMED rows first received at or after an instant of each, for those groups with fewer rows
        since then than `worth`; null: the table does not hold one row for one key, so that a row found by scan is not all
        that is known of its key."""
        ...

    def lineage(self) -> str:
        """Names this server and its history so far."""
        ...

    def continues(self, lineage: str) -> bool:
        """Whether this server has that history behind it: false after a failover or a restore."""
        ...


class LogStore(LogSource, Protocol):
    """One consumer database, with the logs of one or more groups, and what people and audits ask of it."""

    def logs(self, group: str, keys: Sequence[Key]) -> dict[Key, LogRow]:
        """By key, on the primary; a key that is absent from the answer has no row. Rows that break their contract have
        `invalid` set."""
        ...

    def received_between(
        self, group: str, start: datetime, end: datetime, limit: int
    ) -> list[LogRow]:
        """Logs first received in [start, end), oldest first, for orphans and conflicts."""
        ...

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        """By topic, how many logs were first received in [start, end); a topic without any is absent."""
        ...

    def highest_logged(
        self, group: str, topic: str, ends: Mapping[tuple[int, str], int]
    ) -> dict[tuple[int, str], int]:
        """(queue, epoch) -> highest logged offset below its end, of original positions only; one without any is absent.

        `ends`: the next offset of each queue and epoch asked for. A row that names an offset which was never stored there, as
        another program may write it, says nothing about how far the group got.
        """
        ...

    def check(self) -> list[Finding]: ...
