"""Own a queue: one row per group, topic and queue, with an owner, an expiry and a fence that only grows.

A handler's transaction compares the fence as one of its last statements (`compare`), so the effect of a worker that lost
the queue rolls back. A takeover waits for transactions that have compared it already, and they cannot last: the server
ends one whose client stands still. So it ends a beat: a frozen member's queues are free once their lease is over, and no other
member waits for it. Nothing here commits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from backstop.leases.log_table import log_table
from backstop.model.errors import LeaseLost
from backstop.sql.named import load
from backstop.sql.run import Connection, rows

LEASE = timedelta(seconds=60)
DRAIN_TIMEOUT = timedelta(seconds=30)
STANDS_STILL = timedelta(seconds=10)
"""The server ends a transaction that compared its fence, or is in its beat, and then sends nothing for this long."""
_SQL = load("backstop.leases", "queue_owner.sql")


@dataclass(frozen=True, slots=True)
class OwnedQueue:
    """A queue that this member owned when it was told so; `fence` proves it."""

    group: str
    topic: str
    queue_id: int
    fence: int


def join(
    connection: Connection,
    group: str,
    topic: str,
    member: str,
    queues: Collection[int],
    lease: timedelta = LEASE,
) -> dict[str, int]:
    """Says that the member lives; the living members, each with the number of `queues` that it owns and does not drain."""
    values = {
        "group": group,
        "topic": topic,
        "member": member,
        "queues": sorted(queues),
        "lease_seconds": lease.total_seconds(),
        "idle": idle_limit(),
    }
    return {row["member"]: row["owned"] for row in rows(connection, _SQL["join"], values)}


def leave(connection: Connection, group: str, member: str) -> None:
    """The member stops: the others share what it released."""
    rows(connection, _SQL["leave"], {"group": group, "member": member})


def has_members(connection: Connection) -> bool:
    """Whether the database is of a release in which consumers work in order."""
    return bool(rows(connection, _SQL["has_members"], {})[0]["found"])


def ordered_topics(connection: Connection, group: str, topics: Sequence[str]) -> list[str]:
    """Those of the topics whose queues living members of the group own."""
    values = {"group": group, "topics": list(topics)}
    return [str(row["topic"]) for row in rows(connection, _SQL["ordered_topics"], values)]


def declare(connection: Connection, group: str, topic: str, queues: Sequence[int]) -> None:
    """Makes the rows of queues that are new."""
    values = {"group": group, "topic": topic, "queues": list(queues), "idle": idle_limit()}
    rows(connection, _SQL["declare"], values)


def take(
    connection: Connection,
    group: str,
    topic: str,
    member: str,
    queues: Collection[int],
    limit: int,
    lease: timedelta = LEASE,
) -> list[OwnedQueue]:
    """Takes at most `limit` of these queues that are free, that their owner let expire, or that an earlier process of
    this member's name owned."""
    values = {
        "group": group,
        "topic": topic,
        "member": member,
        "queues": sorted(queues),
        "limit": limit,
        "lease_seconds": lease.total_seconds(),
    }
    return [
        OwnedQueue(group, topic, row["queue_id"], row["fence"])
        for row in rows(connection, _SQL["take"], values)
    ]


def take_left(
    connection: Connection,
    group: str,
    topics: Sequence[str],
    member: str,
    limit: int,
    lease: timedelta = LEASE,
) -> list[OwnedQueue]:
    """Takes at most `limit` queues of these topics that nobody has wanted for the time of a lease, although a person released
    a key of theirs, or a limit of parking stopped them: the broker may not have them any more."""
    values = {
        "group": group,
        "topics": list(topics),
        "member": member,
        "limit": limit,
        "lease_seconds": lease.total_seconds(),
        "idle": idle_limit(),
    }
    return [
        OwnedQueue(group, row["topic"], row["queue_id"], row["fence"])
        for row in rows(connection, _SQL["take_left"], values)
    ]


def renew(
    connection: Connection,
    group: str,
    member: str,
    owned: Sequence[OwnedQueue],
    lease: timedelta = LEASE,
) -> set[OwnedQueue]:
    """Prolongs them; those that are still this member's."""
    if not owned:
        return set()
    values = {
        "group": group,
        "member": member,
        "lease_seconds": lease.total_seconds(),
        "idle": idle_limit(),
        **_columns(owned),
    }
    return _found(owned, rows(connection, _SQL["renew"], values))


def drain(
    connection: Connection, member: str, queue: OwnedQueue, within: timedelta = DRAIN_TIMEOUT
) -> bool:
    """The member begins to hand the queue over; false when it is not its own any more."""
    values = {"member": member, "drain_seconds": within.total_seconds(), **_one(queue)}
    return bool(rows(connection, _SQL["drain"], values))


def release(
    connection: Connection, member: str, queue: OwnedQueue, finished: str | None = None
) -> bool:
    """Nothing of the queue is in work: anybody may take it. False when it is not the member's any more.

    `finished`: JSON of what the next owner need not ask the log about.
    """
    values = {"member": member, "finished": finished, "idle": idle_limit(), **_one(queue)}
    return bool(rows(connection, _SQL["release"], values))


def finished(connection: Connection, queue: OwnedQueue) -> str | None:
    """What the last owner that released the queue said that it had finished."""
    found = rows(connection, _SQL["finished"], _one(queue))
    return str(found[0]["finished"]) if found else None


def server_life(connection: Connection) -> str:
    """Which life of which server, database and table of logs this is: another answer, and rows that were committed before may
    be gone."""
    return log_table(connection).server_life(connection)


def held(
    connection: Connection, queues: Iterable[OwnedQueue], stands_still: timedelta = STANDS_STILL
) -> set[OwnedQueue]:
    """Those whose fence is still this one; nobody takes them over before the transaction ends."""
    asked = sorted(set(queues), key=lambda queue: (queue.topic, queue.queue_id))
    if not asked:
        return set()
    values = {"group": asked[0].group, "idle": idle_limit(stands_still), **_columns(asked)}
    return _found(asked, rows(connection, _SQL["holds"], values))


def compare(
    connection: Connection, queue: OwnedQueue, stands_still: timedelta = STANDS_STILL
) -> None:
    """Raises QueueLost when another member has taken the queue: the caller's transaction must roll back."""
    if not held(connection, [queue], stands_still):
        raise QueueLost(queue)


def idle_limit(stands_still: timedelta = STANDS_STILL) -> str:
    """As the server's setting has it: milliseconds."""
    return str(max(1, int(stands_still.total_seconds() * 1000)))


class QueueLost(LeaseLost):
    """Another member owns the queue: what this one did there rolls back."""

    def __init__(self, queue: OwnedQueue) -> None:
        super().__init__(
            f"Queue {queue.queue_id} of {queue.topic!r} is no longer owned under fence {queue.fence}.",
            unaffected="The transaction was rolled back; the present owner goes on with the queue.",
            next_step="Nothing: if it happens often, prolong the lease or look for workers that stand still.",
        )
        self.queue = queue

    def __reduce__(self) -> tuple[object, ...]:
        return QueueLost, (self.queue,)


def share_of(me: str, members: dict[str, int], queues: int) -> int:
    """How many of a topic's queues a member should own: all members compute the same from the same rows, and who
    owns more keeps more, so that a member that joins or leaves moves as few queues as possible."""
    ranked = sorted(members, key=lambda member: (-members[member], member))
    each, more = divmod(queues, len(ranked))
    return each + (ranked.index(me) < more)


def _columns(queues: Sequence[OwnedQueue]) -> dict[str, object]:
    return {
        "topics": [queue.topic for queue in queues],
        "queues": [queue.queue_id for queue in queues],
        "fences": [queue.fence for queue in queues],
    }


def _one(queue: OwnedQueue) -> dict[str, object]:
    return {
        "group": queue.group,
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "fence": queue.fence,
    }


def _found(asked: Sequence[OwnedQueue], found: list[dict[str, object]]) -> set[OwnedQueue]:
    places = {(row["topic"], row["queue_id"]) for row in found}
    return {queue for queue in asked if (queue.topic, queue.queue_id) in places}
