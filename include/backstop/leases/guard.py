"""Hold one message for one worker: begin, renew, complete, fail, each a compare-and-set on the log row.

Only the database grants, on its own clock. No function commits: `begin` is committed before the handler
starts (the log at first receipt), `complete` with the handler's effects (exactly once in effect), `fail`
after their rollback. What the driver raises passes through: a database that does not answer has granted
nothing.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

from backstop.leases.lease import (
    ERROR_CHARACTERS,
    LEASE,
    RETRY_AFTER,
    SHORTEST_RETRY,
    Acquired,
    Arrival,
    Begun,
    Busy,
    Conflict,
    Done,
    Parked,
    Superseded,
    error_text,
    lost,
    payload_hash,
    refuse_repeated,
    retry_in,
)
from backstop.leases.log_table import log_table
from backstop.model.errors import ContractBroken
from backstop.model.records import Position
from backstop.sql.run import Connection, is_in_autocommit

__all__ = [
    "ERROR_CHARACTERS",
    "LEASE",
    "RETRY_AFTER",
    "SHORTEST_RETRY",
    "Acquired",
    "Arrival",
    "Begun",
    "Busy",
    "Conflict",
    "Done",
    "Parked",
    "Superseded",
    "begin",
    "begin_many",
    "close_work",
    "complete",
    "complete_many",
    "fail",
    "give_back",
    "grant_many",
    "open_work",
    "payload_hash",
    "renew",
    "renew_many",
]

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
"""Of a UUID's digit, what makes it one of RFC 9562's: two of its bits are fixed."""
_HARDLY_BEGUN = 0.9
"""The share of a lease that is left at most where its statement waited."""
_ENDS: dict[str, Begun] = {
    "DONE": Done(),
    "SUPERSEDED": Superseded(),
    "CONFLICT": Conflict(),
    "PARKED": Parked(),
}


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
    answers = grant_many(
        connection, group, arrivals, lease_seconds=lease_seconds, owner_host=owner_host
    )
    if len(answers) < len(arrivals):
        others = [arrival for arrival in arrivals if arrival.key not in answers]
        answers |= refused_many(connection, group, others, retry_after)
    # A row that was purged in between has no answer: the message comes again, nothing is assumed.
    unknown = Busy(retry_after)
    return [answers.get((arrival.topic, arrival.message_id), unknown) for arrival in arrivals]


def grant_many(
    connection: Connection,
    group: str,
    arrivals: Sequence[Arrival],
    *,
    lease_seconds: float = LEASE.total_seconds(),
    owner_host: str | None = None,
) -> dict[tuple[str, str], Begun]:
    """The leases that can be had now, by one statement; `refused_many` says what became of the others, and counts them.

    Raises ContractBroken when a key is there twice.
    """
    if not arrivals:
        return {}
    refuse_repeated(arrivals)
    granted = log_table(connection).begin(
        connection,
        group,
        arrivals,
        new_tokens(len(arrivals)),
        lease_seconds,
        owner_host or socket.gethostname(),
    )
    leases = [
        Acquired(group, r["topic"], r["message_id"], r["token"], r["fence"], r["attempts"])
        for r in granted
    ]
    # A lease counts from the start of its statement, which may have stood behind another transaction for longer than it lasts.
    late = [
        lease
        for lease, its in zip(leases, granted, strict=True)
        if its["seconds_left"] < lease_seconds * _HARDLY_BEGUN
    ]
    if late:  # another worker may have taken over what a batch was granted first
        lost = set(late) - renew_many(connection, group, late, lease_seconds=lease_seconds)
        leases = [lease for lease in leases if lease not in lost]
    return {(lease.topic, lease.message_id): lease for lease in leases}


def refused_many(
    connection: Connection, group: str, arrivals: Sequence[Arrival], retry_after: timedelta
) -> dict[tuple[str, str], Begun]:
    """Why these copies get no lease, each counted in its log; a message without a log has no answer."""
    answers: dict[tuple[str, str], Begun] = {}
    for row in log_table(connection).refused(connection, group, arrivals):
        busy = Busy(retry_in(row["seconds_left"], retry_after))
        answers[row["topic"], row["message_id"]] = _ENDS.get(row["outcome"], busy)
    return answers


def renew(
    connection: Connection, lease: Acquired, *, lease_seconds: float = LEASE.total_seconds()
) -> None:
    """Prolong the lease from now on; also brings back one that the sweep reclaimed while nobody took it.

    Raises LeaseLost when another worker has taken it or the work has ended.
    """
    if not renew_many(connection, lease.group, [lease], lease_seconds=lease_seconds):
        raise lost(lease, "renewed")


def renew_many(
    connection: Connection,
    group: str,
    leases: Sequence[Acquired],
    *,
    lease_seconds: float = LEASE.total_seconds(),
) -> set[Acquired]:
    """Prolong a group's leases in one statement; those that are still ours."""
    ours = log_table(connection).renew(connection, group, leases, lease_seconds)
    return {lease for lease in leases if lease.token in ours}


def complete(connection: Connection, lease: Acquired) -> None:
    """The work is done; in the transaction of its effects, as its last statement.

    Succeeds after a reclaim as long as nobody else has taken the lease. Raises LeaseLost when the row is not
    ours any more: the transaction must be rolled back.
    """
    if not complete_many(connection, lease.group, [lease]):
        raise lost(lease, "completed")


def complete_many(connection: Connection, group: str, leases: Sequence[Acquired]) -> set[Acquired]:
    """The work of many of a group's leases is done, in one statement; those that were still ours.

    One that is missing is work that must be rolled back, with all else of this transaction.
    """
    ours = log_table(connection).complete(connection, group, leases)
    return {lease for lease in leases if lease.token in ours}


def fail(connection: Connection, lease: Acquired, error: str) -> None:
    """The handler failed and its transaction was rolled back: keep the error, release the lease.

    The text is cut to ERROR_CHARACTERS. Raises LeaseLost when the row is not ours any more.
    """
    if not log_table(connection).fail(connection, lease, error_text(error, connection)):
        raise lost(lease, "failed")


def give_back(connection: Connection, lease: Acquired, *, was_entered: bool = False) -> bool:
    """A stopping worker releases a message it did not finish; false when the lease is no longer its own.

    `was_entered`: a handler had begun, so it stays an attempt: its effects elsewhere may be there.
    """
    return log_table(connection).give_back(connection, lease, was_entered=was_entered)


def open_work(connection: Connection) -> None:
    """Before the handler's first statement, in the transaction of its effects."""
    log_table(connection).open_work(connection)


def close_work(connection: Connection) -> None:
    """After its last one, before `complete`. Raises ContractBroken when the handler's transaction has ended in between, by a
    deadlock that was caught, a commit or a DDL statement, or when it turned autocommit on: `complete` would commit a part of its
    effects."""
    if is_in_autocommit(connection):
        raise ContractBroken(
            "The handler's transaction ended while it ran: the handler turned autocommit on.",
            unaffected="The message is not done; what the handler wrote in autocommit is there.",
            next_step="Leave autocommit, commit and rollback out of the handler.",
        )
    log_table(connection).close_work(connection)


def new_tokens(count: int) -> list[str]:
    """So many random UUIDs (version 4), written by hand: `uuid` takes two microseconds for each."""
    noise = os.urandom(16 * count).hex()
    digits = [noise[at : at + 32] for at in range(0, 32 * count, 32)]
    return [f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{_VARIANT[d[16]]}{d[17:20]}-{d[20:]}" for d in digits]
