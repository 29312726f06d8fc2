"""Hold one message for one worker: begin, renew, complete, fail, each a compare-and-set on the log row.

Only the database grants, on its own clock. No function commits: `begin` is committed before the handler
starts (the log at first receipt), `complete` with the handler's effects (exactly once in effect), `fail`
after their rollback. What the driver raises passes through: a database that does not answer has granted
nothing.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from uuid import uuid4

from backstop.errors import ContractBroken, LeaseLost
from backstop.named_sql import load
from backstop.records import Key, Position
from backstop.run_sql import Connection, rows

_SQL = load("backstop.leases", "queries.sql")

LEASE = timedelta(seconds=60)
RETRY_AFTER = timedelta(seconds=10)
SHORTEST_RETRY = timedelta(milliseconds=50)
"""A lease that ends this instant is not asked for in a tight loop."""
ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One copy in a worker's hands: what `begin` needs to know of it."""

    topic: str
    message_id: str
    payload_hash: bytes | None = None
    content_version: int = 1
    position: Position | None = None
    """The original one, in a queue of the topic itself."""

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lease is ours: process the message, then `complete` or `fail`. `fence` grows with every grant."""

    group: str
    topic: str
    message_id: str
    token: str
    fence: int

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker holds it: never acknowledge; let it come again after this long."""

    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """The group has done this work: acknowledge."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer version of the content is known: acknowledge."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The same id came with another content: stored, nothing applied; do not acknowledge."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Its ordering key waits for a person: neither process nor acknowledge."""


Begun = Acquired | Busy | Done | Superseded | Conflict | Parked
_ENDS: dict[str, Begun] = {
    "DONE": Done(), "SUPERSEDED": Superseded(), "CONFLICT": Conflict(), "PARKED": Parked(),
}  # fmt: skip


def payload_hash(content: bytes) -> bytes:
    """By which two copies of one id are told apart: SHA-256 of the content, 32 bytes."""
    return sha256(content).digest()


def begin(
    connection: Connection,
    group: str,
    topic: str,
    message_id: str,
    *,
    lease_seconds: float = LEASE.total_seconds(),
    payload_hash: bytes | None = None,
    content_version: int = 1,
    position: Position | None = None,
    owner_host: str | None = None,
    retry_after: timedelta = RETRY_AFTER,
) -> Begun:
    """Ask for the lease of one message; the caller commits before it starts the work."""
    arrival = Arrival(topic, message_id, payload_hash, content_version, position)
    (begun,) = begin_many(
        connection,
        group,
        [arrival],
        lease_seconds=lease_seconds,
        owner_host=owner_host,
        retry_after=retry_after,
    )
    return begun


def begin_many(
    connection: Connection,
    group: str,
    arrivals: Sequence[Arrival],
    *,
    lease_seconds: float = LEASE.total_seconds(),
    owner_host: str | None = None,
    retry_after: timedelta = RETRY_AFTER,
) -> list[Begun]:
    """Ask for many leases in one statement (a second one counts what was not granted); answers in order.

    Raises ContractBroken when a key is there twice: begin the second copy after the first has ended.
    """
    if not arrivals:
        return []
    _refuse_repeated(arrivals)
    tokens = {arrival.key: str(uuid4()) for arrival in arrivals}
    granted = rows(
        connection,
        _SQL["begin"],
        {
            **_columns(group, arrivals),
            "queue_ids": [a.position.queue_id if a.position else None for a in arrivals],
            "queue_offsets": [a.position.offset if a.position else None for a in arrivals],
            "queue_epochs": [a.position.epoch if a.position else None for a in arrivals],
            "tokens": [tokens[a.key] for a in arrivals],
            "lease_seconds": lease_seconds,
            "owner_host": owner_host or socket.gethostname(),
        },
    )
    answers: dict[Key, Begun] = {
        Key(r["topic"], r["message_id"]): Acquired(group, r["topic"], r["message_id"], r["token"], r["fence"])
        for r in granted
    }
    others = [arrival for arrival in arrivals if arrival.key not in answers]
    if others:
        for row in rows(connection, _SQL["refused"], _columns(group, others)):
            busy = Busy(_retry(row["seconds_left"], retry_after))
            answers[Key(row["topic"], row["message_id"])] = _ENDS.get(row["outcome"], busy)
    # A row that was purged in between has no answer: the message comes again, nothing is assumed.
    return [answers.get(arrival.key, Busy(retry_after)) for arrival in arrivals]


def renew(connection: Connection, lease: Acquired, *, lease_seconds: float = LEASE.total_seconds()) -> None:
    """Prolong the lease from now on; also brings back one that the sweep reclaimed while nobody took it.

    Raises LeaseLost when another worker has taken it or the work has ended.
    """
    if not renew_many(connection, lease.group, [lease], lease_seconds=lease_seconds):
        raise _lost(lease, "renewed")


def renew_many(
    connection: Connection,
    group: str,
    leases: Sequence[Acquired],
    *,
    lease_seconds: float = LEASE.total_seconds(),
) -> set[str]:
    """Prolong a group's leases in one statement; the tokens of those that are still held."""
    values = {
        "group": group,
        "topics": [lease.topic for lease in leases],
        "message_ids": [lease.message_id for lease in leases],
        "tokens": [lease.token for lease in leases],
        "lease_seconds": lease_seconds,
    }
    return {row["token"] for row in rows(connection, _SQL["renew"], values)}


def complete(connection: Connection, lease: Acquired) -> None:
    """The work is done; in the transaction of its effects, as its last statement.

    Succeeds after a reclaim as long as nobody else has taken the lease. Raises LeaseLost when the row is not
    ours any more: the transaction must be rolled back.
    """
    if not rows(connection, _SQL["complete"], _fenced(lease)):
        raise _lost(lease, "completed")


def fail(connection: Connection, lease: Acquired, error: str) -> None:
    """The handler failed and its transaction was rolled back: keep the error, release the lease.

    The text is cut to ERROR_CHARACTERS. Raises LeaseLost when the row is not ours any more.
    """
    text = error.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARACTERS]
    if not rows(connection, _SQL["fail"], {**_fenced(lease), "error": text}):
        raise _lost(lease, "failed")


def give_back(connection: Connection, lease: Acquired) -> bool:
    """A stopping worker releases a message it did not finish; false when the lease is no longer its own."""
    return bool(rows(connection, _SQL["give_back"], _fenced(lease)))


def _columns(group: str, arrivals: Sequence[Arrival]) -> dict[str, object]:
    return {
        "group": group,
        "topics": [arrival.topic for arrival in arrivals],
        "message_ids": [arrival.message_id for arrival in arrivals],
        "payload_hashes": [arrival.payload_hash for arrival in arrivals],
        "content_versions": [arrival.content_version for arrival in arrivals],
    }


def _fenced(lease: Acquired) -> dict[str, object]:
    return {
        "group": lease.group, "topic": lease.topic, "message_id": lease.message_id, "token": lease.token,
    }  # fmt: skip


def _retry(seconds_left: float | None, longest: timedelta) -> timedelta:
    """When the lease ends, but within the policy's retry_after: its holder may finish sooner."""
    if seconds_left is None:
        return longest
    return max(SHORTEST_RETRY, min(longest, timedelta(seconds=seconds_left)))


def _refuse_repeated(arrivals: Sequence[Arrival]) -> None:
    if len({arrival.key for arrival in arrivals}) < len(arrivals):
        raise ContractBroken(
            "One batch holds two copies of a message.",
            kept="No lease was asked for.",
            next_step="Begin the second copy when the first has ended.",
        )


def _lost(lease: Acquired, verb: str) -> LeaseLost:
    return LeaseLost(
        f"The lease of {lease.message_id!r} in {lease.topic!r} for {lease.group!r} (fence {lease.fence}) "
        f"could not be {verb}: another worker took it over, or the work has ended.",
        kept="The log row is as its present owner left it.",
        next_step="Roll back, do not acknowledge: the broker delivers it again.",
    )
