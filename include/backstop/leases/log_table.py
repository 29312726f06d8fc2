"""The log that the guard works on, behind one protocol: what it asks of a database, in that database's own SQL.

The guard runs where the work is: on the connection of the handler's transaction, whose driver says which database that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from backstop.leases.lease import Acquired, Arrival
from backstop.leases.postgresql import POSTGRESQL
from backstop.sql.run import Connection, speaks_mysql


class LogTable(Protocol):
    """`consumer_log` and `consumer_books` in one kind of database. Clocks are the database's. Nothing here commits."""

    def begin(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[Arrival],
        tokens: Sequence[str],
        lease_seconds: float,
        owner_host: str,
    ) -> Sequence[Mapping[str, Any]]:
        """topic, message_id, token, fence, attempts and seconds_left of each lease that was granted. A message without a log
        gets one; a log that is FAILED, EXPIRED or whose lease ended is taken over, if the copy's content is not older, nor
        another of its version while it is CONSUMING. Each key is there once."""
        ...

    def refused(
        self, connection: Connection, group: str, arrivals: Sequence[Arrival]
    ) -> Sequence[Mapping[str, Any]]:
        """topic, message_id, outcome (PARKED, SUPERSEDED, CONFLICT, DONE or BUSY) and seconds_left of each that has a log; counted
        there."""
        ...

    def renew(
        self,
        connection: Connection,
        group: str,
        leases: Sequence[Acquired],
        lease_seconds: float,
    ) -> set[str]:
        """The tokens of those that were prolonged: state CONSUMING or EXPIRED, and the token still theirs."""
        ...

    def complete(self, connection: Connection, group: str, leases: Sequence[Acquired]) -> set[str]:
        """The tokens of those that are CONSUMED now, by the same comparison."""
        ...

    def fail(self, connection: Connection, lease: Acquired, error: str) -> bool:
        """Whether it is FAILED now, by the same comparison."""
        ...

    def give_back(self, connection: Connection, lease: Acquired, *, was_entered: bool) -> bool:
        """Whether it is EXPIRED now, by the same comparison; unless a handler was entered, it was no attempt."""
        ...

    def record_done(
        self, connection: Connection, group: str, arrival: Arrival, owner_host: str
    ) -> bool:
        """CONSUMED without a lease, by the rule of `begin`; false: the log has another end, or a worker."""
        ...

    def record_failure(
        self, connection: Connection, group: str, arrival: Arrival, error: str, owner_host: str
    ) -> bool:
        """FAILED without a lease, whatever the content; false: the log has an end, or a worker."""
        ...

    def write_books(self, connection: Connection, values: Mapping[str, object]) -> None:
        """Replaces a member's books; see books.write."""
        ...

    def server_life(self, connection: Connection) -> str:
        """Another text when rows that were committed before may be gone."""
        ...

    def open_work(self, connection: Connection) -> None:
        """The handler's transaction begins."""
        ...

    def close_work(self, connection: Connection) -> None:
        """Raises ContractBroken where it is not the same transaction any more, which only some databases leave unsaid."""
        ...


def log_table(connection: Connection) -> LogTable:
    """That of the connection's database."""
    if speaks_mysql(connection):
        from backstop.leases.mariadb import MARIADB

        return MARIADB
    return POSTGRESQL
