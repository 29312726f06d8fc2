"""What a consumer database says of ordered consumption: parked keys, queues that stopped, downstreams that are away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from backstop.model.records import Key
from backstop.sql.connection import STATEMENT_TIMEOUT, PostgresConnection, columns
from backstop.sql.named import load

_SQL = load("backstop.stores.postgresql", "parking.sql")
SAID_LATELY = timedelta(minutes=5)
"""A consumer that waits says so at least every half minute."""
STANDS_AFTER = timedelta(minutes=5)
"""A released key of a queue that no living consumer owns: any consumer of the group takes it after a queue's lease."""
T = TypeVar("T")


class ParkedKey(NamedTuple):
    """An ordering key that waits for a person (PARKED), or whose messages are being released (RELEASING)."""

    group: str
    topic: str
    key: str
    queue_id: int
    state: str
    messages: int
    bytes: int
    times_parked: int
    error: str | None
    parked_at: datetime
    answered_by: str | None
    answer: str | None
    head: str | None
    last_number: int | None
    """The number of its last message: what comes later has a higher one."""
    stands: bool
    """It was released, and no living consumer owns its queue."""


class ParkedMessage(NamedTuple):
    """One kept message of a parked key, without its content."""

    message_id: str
    bytes: int
    content_version: int
    queue_id: int
    queue_offset: int | None
    parked_at: datetime


class FullQueue(NamedTuple):
    """A queue that stands still, because a limit of parking is reached."""

    group: str
    topic: str
    queue_id: int
    key: str
    reached: str
    since: datetime


class Away(NamedTuple):
    """A consumer that parks nothing and waits."""

    group: str
    topic: str
    member: str
    error: str
    since: datetime


class Discard(NamedTuple):
    """A parked message that a person discarded."""

    group: str
    topic: str
    message_id: str
    by: str
    why: str
    case_id: int | None
    moment: str
    """As the database writes it: this discard, and no later one of the same message."""
    key: str
    was_parked: bool
    """The message was parked, and its key keeps it no more."""


class ConsumerBooks(NamedTuple):
    """What one consumer took in since it started, and what became of it."""

    group: str
    member: str
    counts: Mapping[str, int]
    in_process: int
    has_ended: bool
    started_at: datetime
    written_at: datetime


class QueueOwner(NamedTuple):
    """Who owns a queue."""

    group: str
    topic: str
    queue_id: int
    owner: str | None
    state: str
    since: datetime
    is_expired: bool

    @property
    def state_now(self) -> str:
        """FREE, OWNED, DRAINING, or EXPIRED: anybody may take it."""
        return "EXPIRED" if self.is_expired else self.state


class PostgresParking:
    """Ordered consumption in one consumer database. Every method raises StoreUnavailable when it does not answer."""

    def __init__(self, store: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        self._connection = PostgresConnection(f"store {store}", url, statement_timeout=patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def close(self) -> None:
        self._connection.close()

    def change(self, work: Callable[[Any], T]) -> T:
        """What `work(connection)` returns, in a transaction that is committed afterwards; it may be called again."""
        return self._connection.run(lambda cursor: work(cursor.connection))

    def parked_keys(self, groups: Sequence[str], limit: int) -> list[ParkedKey]:
        """The keys of these groups, the longest waiting first."""
        values = {
            "groups": list(groups),
            "topic": None,
            "key": None,
            "limit": limit,
            "stands": STANDS_AFTER,
        }
        return [ParkedKey(*row) for row in self._connection.rows(_SQL["parked_keys"], values)]

    def parked_key(self, group: str, topic: str, key: str) -> ParkedKey | None:
        """One key; null: it is not parked any more."""
        values = {
            "groups": [group],
            "topic": topic,
            "key": key,
            "limit": 1,
            "stands": STANDS_AFTER,
        }
        found = self._connection.rows(_SQL["parked_keys"], values)
        return ParkedKey(*found[0]) if found else None

    def messages(self, group: str, topic: str, key: str, limit: int) -> list[ParkedMessage]:
        """The first messages of a key in the order of their release."""
        values = {"group": group, "topic": topic, "key": key, "limit": limit}
        return [
            ParkedMessage(*row) for row in self._connection.rows(_SQL["parked_messages"], values)
        ]

    def head_content(self, group: str, topic: str, key: str) -> tuple[str, bytes] | None:
        """(message id, content) of a key's head; null: nothing is parked."""
        found = self._connection.rows(
            _SQL["head_content"], {"group": group, "topic": topic, "key": key}
        )
        return (found[0][0], bytes(found[0][1])) if found else None

    def kept(self, group: str, keys: Sequence[Key]) -> list[Key]:
        """Those of these messages whose content a parked key keeps."""
        values = {"group": group, **columns(keys, ("topics", "message_ids"))}
        return [Key(*row) for row in self._connection.rows(_SQL["kept"], values)]

    def full_queues(self, groups: Sequence[str]) -> list[FullQueue]:
        return [
            FullQueue(*row)
            for row in self._connection.rows(_SQL["full_queues"], {"groups": list(groups)})
        ]

    def away(self, groups: Sequence[str]) -> list[Away]:
        values = {"groups": list(groups), "lately": SAID_LATELY}
        return [Away(*row) for row in self._connection.rows(_SQL["away"], values)]

    def books(self, groups: Sequence[str]) -> list[ConsumerBooks]:
        return [
            ConsumerBooks(*row)
            for row in self._connection.rows(_SQL["books"], {"groups": list(groups)})
        ]

    def owners(self, groups: Sequence[str], topic: str | None = None) -> list[QueueOwner]:
        """Who owns the queues of these groups (of this topic; null: of each)."""
        values = {"groups": list(groups), "topic": topic}
        return [QueueOwner(*row) for row in self._connection.rows(_SQL["owners"], values)]

    def discards(self, groups: Sequence[str], limit: int, skip: int = 0) -> list[Discard]:
        """The oldest first, without the first `skip`. People write here by SQL, too: who discarded what is for
        cases.parked_discards to believe."""
        values = {"groups": list(groups), "limit": limit, "skip": skip}
        return [Discard(*row) for row in self._connection.rows(_SQL["discards"], values)]

    def forget_discards(self, discards: Sequence[Discard]) -> None:
        """The control database has them."""
        given = [(d.group, d.topic, d.message_id, d.moment) for d in discards]
        values = columns(given, ("of_groups", "topics", "message_ids", "moments"))
        if given:
            self._connection.run(lambda cursor: cursor.execute(_SQL["forget_discards"], values))
