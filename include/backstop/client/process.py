"""Do one message's work in its way, and say how that ended: every consumer loop goes through here."""

import logging
from datetime import timedelta
from enum import Enum

from backstop.client.keep_connection import KeptConnection
from backstop.client.lease_store import LeaseStore
from backstop.client.ways import Leased, Row, RowLock, Transactional, Work
from backstop.leases import guard, row_lock
from backstop.leases.lease import Acquired, Arrival, Begun, Busy, Done
from backstop.model.errors import BackstopError, LeaseLost, StoreUnavailable
from backstop.model.records import Message
from backstop.sql.run import is_lock_refused

log = logging.getLogger(__name__)

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""They end the consumer, which runs in the thread of its caller; whatever else a handler raises is the message's failure."""


class Ended(Enum):
    """How the work on a message ended."""

    PROCESSED = "processed"
    """Done and logged: acknowledge."""
    FAILED = "failed"
    """The handler raised: nothing applied in our database; its error is in the log: a delivery was spent."""
    LEASE_LOST = "lease_lost"
    """Another worker took the message over: what it does counts; do not acknowledge."""


def process(
    store: LeaseStore, way: Transactional | Leased, message: Message, lease: Acquired, work: Work
) -> tuple[Ended, str | None]:
    """The work of a lease that is held: how it ended, and the handler's error when it failed. StoreUnavailable: whether a commit
    that was cut off took place is the log's to say."""
    try:
        match way:
            case Transactional(handler):
                with store.completing(lease) as connection:
                    handler(connection, message, work)
            case Leased(handle):
                handle(message, work)
                store.complete(lease)
    except LeaseLost as error:
        log.warning("%s", error)
        return Ended.LEASE_LOST, None
    except (StoreUnavailable, *INTERRUPTS):
        raise
    except BaseException as error:  # also a cancelled task of its own
        log.warning(
            "The handler failed on %r in %r.", lease.message_id, lease.topic, exc_info=error
        )
        return failed(store, lease, error)
    return Ended.PROCESSED, None


def failed(store: LeaseStore, lease: Acquired, error: BaseException) -> tuple[Ended, str | None]:
    """The work of a lease failed: its error is kept, and the lease is free. Raises StoreUnavailable."""
    try:
        store.fail(lease, error_text(error))
    except LeaseLost as lost:
        log.warning("%s", lost)
        return Ended.LEASE_LOST, None
    return Ended.FAILED, error_text(error)


def process_under_row_lock(
    store: KeptConnection,
    way: RowLock,
    group: str,
    message: Message,
    arrival: Arrival,
    work: Work,
    retry_after: timedelta,
    owner_host: str | None,
) -> tuple[Ended | Begun, str | None]:
    """The work of a message whose business row decides, with the handler's error; what the log says of one that it did not
    let end."""
    try:
        with store.transaction() as connection:
            guard.open_work(connection)
            found = way.handler(connection, message, work)
            if not isinstance(found, Row):
                raise TypeError(
                    f"a row_lock handler returns Row.APPLIED or Row.ALREADY, not {found!r}"
                )
            guard.close_work(connection)
            if not row_lock.record_done(connection, group, arrival, owner_host):
                raise _NotLogged
    except _NotLogged:
        with store.short_transaction() as connection:
            return row_lock.why_not(connection, group, arrival), None
    except (StoreUnavailable, *INTERRUPTS):
        raise
    except BaseException as error:
        if is_lock_refused(error):
            return Busy(retry_after), None  # another worker has the row; nothing failed
        log.warning(
            "The handler failed on %r in %r.", arrival.message_id, arrival.topic, exc_info=error
        )
        return failed_under_row_lock(store, group, arrival, error, retry_after, owner_host)
    return Done() if found is Row.ALREADY else Ended.PROCESSED, None


def failed_under_row_lock(
    store: KeptConnection,
    group: str,
    arrival: Arrival,
    error: BaseException,
    retry_after: timedelta,
    owner_host: str | None,
) -> tuple[Ended | Begun, str | None]:
    """The same without a lease; what the log says of a copy whose failure it did not take. Raises StoreUnavailable."""
    with store.short_transaction() as connection:
        if row_lock.record_failure(connection, group, arrival, error_text(error), owner_host):
            return Ended.FAILED, error_text(error)
        begun = row_lock.why_not(connection, group, arrival)
    return Busy(retry_after) if isinstance(begun, Busy) else begun, None


class _NotLogged(BackstopError):
    """The log has another end of this message: the handler's effects are rolled back."""

    def __init__(self) -> None:
        super().__init__(
            "The log did not take this end.",
            unaffected="The effects were rolled back.",
            next_step="Ask the log.",
        )


def error_text(error: BaseException) -> str:
    """A handler's error as the log keeps it. An exception that cannot say its own text is a failure like any other."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - whatever its `__str__` does
        text = f"its text cannot be read ({type(broken).__name__})"
    return f"{type(error).__name__}: {text}"
