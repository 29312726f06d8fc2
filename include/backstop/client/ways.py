"""The three ways of doing a message's work once, as marks on the handler: transactional, leased, row_lock.

docs/how-to/process-once.md says which to take and what each promises.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from backstop.model.records import Message
from backstop.sql.run import Connection


@dataclass(frozen=True, slots=True)
class Work:
    """What a handler may know of its lease."""

    fence: int
    """Grows with every grant: a downstream system can refuse a smaller one. 0 without a lease (row_lock)."""
    deliveries: int
    """How often the broker has delivered this message to the group."""
    lost: threading.Event
    """Set when the lease was lost: the result will be rolled back, so a long handler may give up."""
    stopping: threading.Event
    """Set when the consumer is to stop."""
    attempts: int = 1
    """How often the group has begun this message, this time included."""


class Row(Enum):
    """What a row_lock handler found in its business row."""

    APPLIED = "applied"
    """The effect was not there; it is now."""
    ALREADY = "already"
    """The effect was there: this copy changes nothing."""


Handler = Callable[[Connection, Message, Work], None]
"""Does the work through the connection it is given, without commit or rollback; an exception is a failure."""
LeasedHandler = Callable[[Message, Work], None]
"""Does the work wherever it likes: its effects must survive being done twice, or refuse an older fence."""
RowHandler = Callable[[Connection, Message, Work], Row]
"""Locks its business row (SELECT ... FOR UPDATE, or an UPDATE that compares its version) and looks whether the effect is
there, in the transaction of its effects."""


@dataclass(frozen=True, slots=True)
class Transactional:
    """The end of the work commits with its effects: exactly once in effect, in one database."""

    handler: Handler


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease is held around the work: never two at once, at least once in effect."""

    handler: LeasedHandler


@dataclass(frozen=True, slots=True)
class RowLock:
    """The business row decides: no lease, no BUSY; the log is written with the effects."""

    handler: RowHandler


Way = Transactional | Leased | RowLock


def transactional(handler: Handler) -> Transactional:
    """Decorates a handler `(connection, message, work)`; what a Consumer takes a bare function for."""
    return Transactional(handler)


def leased(handler: LeasedHandler) -> Leased:
    """Decorates a handler `(message, work)` with effects anywhere."""
    return Leased(handler)


def row_lock(handler: RowHandler) -> RowLock:
    """Decorates a handler `(connection, message, work) -> Row`."""
    return RowLock(handler)


def way_of(handler: Handler | Way) -> Way:
    return (
        handler if isinstance(handler, Transactional | Leased | RowLock) else Transactional(handler)
    )
