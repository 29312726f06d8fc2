"""Keep one database connection open for one thread, and open it again after a failure.

It is never somebody else's open transaction: to commit or roll back that would break its owner's promise.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from backstop.model.errors import ContractBroken, StoreUnavailable
from backstop.sql.prepared import prepare_no_more_on, prepare_on
from backstop.sql.run import (
    Connection,
    commits_by_itself,
    is_deadlock,
    is_in_autocommit,
    is_in_transaction,
    is_unavailable,
    rows,
)

Connect = Callable[[], Connection]
"""Opens a connection with autocommit off; whoever calls it closes it."""
_TRIES = 4
T = TypeVar("T")

log = logging.getLogger(__name__)


class KeptConnection:
    """A connection that is opened when it is needed. Not shared between threads.

    `name` is what errors call the database; they never show how it is reached.
    """

    def __init__(self, connect: Connect, name: str) -> None:
        self._connect = connect
        self._name = name
        self._open: Connection | None = None
        self._in_use = False
        self._process = os.getpid()
        self._parents: list[Connection] = []
        """Never used here; kept, because some drivers end the session of one that is collected."""

    @property
    def is_open(self) -> bool:
        """False before the first use, and after a connection that broke."""
        self._leave_parents()
        return self._open is not None

    def transaction(self) -> AbstractContextManager[Connection]:
        """One transaction: committed at the end, rolled back when the body raises.

        Raises StoreUnavailable when there is no connection or it broke, whatever the body raised; else that.
        """
        return self._in_transaction(is_short=False, is_one_statement=False)

    def short_transaction(self) -> AbstractContextManager[Connection]:
        """As `transaction`, for our own statements: also a lock or statement timeout is StoreUnavailable."""
        return self._in_transaction(is_short=True, is_one_statement=False)

    def one_statement(self) -> AbstractContextManager[Connection]:
        """As `short_transaction`, for a single statement: where the driver can, the server commits it by itself, in one round
        trip in place of three (begin, statement, commit)."""
        return self._in_transaction(is_short=True, is_one_statement=True)

    @contextmanager
    def _in_transaction(self, *, is_short: bool, is_one_statement: bool) -> Iterator[Connection]:
        connection: Any = self._get()
        by_itself = is_one_statement and commits_by_itself(connection)
        if by_itself:
            connection.autocommit = True
        self._in_use = True
        try:
            yield connection
            connection.commit()
        except BaseException as error:
            broken = not self._rolled_back(connection)
            if isinstance(error, Exception) and (broken or (is_short and is_unavailable(error))):
                raise self._unavailable(error) from error
            raise
        finally:
            self._in_use = False
            is_kept = self._open is connection  # else it broke, and was closed
            if by_itself and is_kept:
                connection.autocommit = False

    def retried(self, work: Callable[[Connection], T], *, is_one_statement: bool = False) -> T:
        """What `work` returns, in a short transaction; after a deadlock, which has undone all of it, again. `is_one_statement`: in
        PostgreSQL it is a single statement, which the server may commit by itself."""
        within = self.one_statement if is_one_statement else self.short_transaction
        for attempt in range(1, _TRIES + 1):
            try:
                with within() as connection:
                    return work(connection)
            except StoreUnavailable as error:
                if attempt == _TRIES or not is_deadlock(error.__cause__):
                    raise
        raise AssertionError("the last try returns or raises")

    def after_idling(self, work: Callable[[Connection], T], *, is_one_statement: bool = False) -> T:
        """As `retried`, for the end of work that was done elsewhere: the connection stood idle for as long as that took, and where it
        broke meanwhile `work` is done once more, on a new one. It may have been done already."""
        try:
            return self.retried(work, is_one_statement=is_one_statement)
        except StoreUnavailable:
            if self.is_open:
                raise
            return self.retried(work, is_one_statement=is_one_statement)

    def run(self, statement: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
        """One statement in a transaction of its own; its rows by column name. Raises StoreUnavailable."""
        with self.one_statement() as connection:
            return rows(connection, statement, values)

    def close(self) -> None:
        """Close the connection if one is open; what was not committed is rolled back by the database."""
        self._leave_parents()
        connection, self._open = self._open, None
        if connection is not None:
            prepare_no_more_on(connection)
            try:
                connection.close()
            except Exception as error:
                if not is_unavailable(error):
                    raise

    def _get(self) -> Connection:
        self._leave_parents()
        if self._in_use:
            raise self._refused("is in the middle of a transaction", "Wait until it is committed.")
        if self._open is not None and _commits_each_statement(self._open):
            log.warning(
                "A handler left its connection to the %s in autocommit: it is closed, and another is opened.",
                self._name,
            )
            self.close()
        if self._open is None:
            try:
                connection = self._connect()
            except Exception as error:
                if is_unavailable(error):
                    raise self._unavailable(error) from error
                raise
            if is_in_transaction(connection):
                raise self._refused(
                    "is in the middle of a transaction",
                    "Give a connection of its own, or wait for the commit.",
                )
            if is_in_autocommit(connection):
                connection.close()
                raise self._refused("is in autocommit", "Open it with autocommit off.")
            prepare_on(connection)
            self._open = connection
        return self._open

    def _leave_parents(self) -> None:
        """A forked child must not speak into its parent's connection, nor end it: it opens its own."""
        if self._process == os.getpid():
            return
        if self._open is not None:
            self._parents.append(self._open)
        self._process, self._open, self._in_use = os.getpid(), None, False

    def _refused(self, why: str, next_step: str) -> ContractBroken:
        return ContractBroken(
            f"The connection to the {self._name} {why}.",
            unaffected="Nothing was executed, committed or rolled back on it.",
            next_step=next_step,
        )

    def _rolled_back(self, connection: Connection) -> bool:
        try:
            connection.rollback()
        except Exception as error:
            self.close()
            if not is_unavailable(error):
                raise
            return False
        if getattr(connection, "closed", False):
            self.close()
            return False
        return True

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        return StoreUnavailable(
            f"The {self._name} did not answer ({type(error).__name__}).",
            unaffected="What it has committed is kept; nothing is assumed from its silence.",
            next_step="See that it runs and can be reached; the work is taken up again by itself.",
        )


def _commits_each_statement(connection: Connection) -> bool:
    """One that cannot say so is broken: the statement that follows will find that out."""
    try:
        return is_in_autocommit(connection)
    except Exception as error:
        if not is_unavailable(error):
            raise
        return False
