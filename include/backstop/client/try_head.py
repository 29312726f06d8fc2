"""Try the head of a lane: its handler, the comparison of its queue's fence and the end of its work, in one transaction."""

import logging
from dataclasses import dataclass
from enum import Enum

from backstop.client.keep_connection import KeptConnection
from backstop.client.lanes import Lane
from backstop.client.ways import Leased, Transactional, Work
from backstop.leases import guard, parking
from backstop.leases.lease import Acquired
from backstop.leases.parking import InOrder
from backstop.leases.queue_owner import QueueLost
from backstop.model.errors import LeaseLost, StoreUnavailable
from backstop.sql.run import Connection

log = logging.getLogger(__name__)


class Tried(Enum):
    """How one try of a head ended."""

    PROCESSED = "processed"
    FAILED = "failed"
    LEASE_LOST = "lease_lost"
    FENCED = "fenced"
    """Another member owns the queue: the effects were rolled back."""
    UNAVAILABLE = "unavailable"
    NOT_TRIED = "not_tried"
    """It waited for a thread until its consumer was to stop, or its lease or its queue was perhaps another's."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the pool says of one head."""

    lane: Lane
    head: InOrder
    lease: Acquired
    tried: Tried
    error: BaseException | None = None
    database: int = 0
    """Which life of the consumer database it was begun in, as this consumer counts them."""
    was_cut_off: bool = False
    """UNAVAILABLE: the connection of its handler's transaction ended in it, so the message may be to blame."""


def try_head(
    store: KeptConnection,
    way: Transactional | Leased,
    lane: Lane,
    head: InOrder,
    lease: Acquired,
    work: Work,
    database: int,
) -> Result:
    """In a thread of the pool. Never raises."""
    tried, error, was_cut_off = _try(store, way, lane, head, lease, work)
    if tried in (Tried.FENCED, Tried.LEASE_LOST):
        log.warning("%s", error)
    elif tried is Tried.FAILED:
        log.warning(
            "The handler failed on %r in %r.", lease.message_id, lease.topic, exc_info=error
        )
    return Result(lane, head, lease, tried, error, database, was_cut_off)


def _try(
    store: KeptConnection,
    way: Transactional | Leased,
    lane: Lane,
    head: InOrder,
    lease: Acquired,
    work: Work,
) -> tuple[Tried, BaseException | None, bool]:
    is_entered = False
    try:
        if isinstance(way, Leased):
            way.handler(head.message, work)
            store.after_idling(lambda connection: _complete(connection, lane, head, lease))
        else:
            with store.transaction() as connection:
                guard.open_work(connection)
                is_entered = True
                way.handler(connection, head.message, work)
                guard.close_work(connection)
                _complete(connection, lane, head, lease)
    except QueueLost as error:
        return Tried.FENCED, error, False
    except LeaseLost as error:
        return Tried.LEASE_LOST, error, False
    except StoreUnavailable as error:
        return Tried.UNAVAILABLE, error, is_entered and not store.is_open
    # As in an executor of the standard library: a thread of a pool has nobody else to end for a cancelled task or sys.exit.
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is the message's failure
        return Tried.FAILED, error, False
    return Tried.PROCESSED, None, False


def _complete(connection: Connection, lane: Lane, head: InOrder, lease: Acquired) -> None:
    if lane.releases:
        parking.complete_released(connection, head, lease)
    else:
        parking.complete(connection, head, lease)
