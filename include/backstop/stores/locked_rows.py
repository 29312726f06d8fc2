"""Changes rows without waiting long for a lock, and finds out which of them another transaction holds.

Somebody's forgotten transaction, or a host that is gone, may hold a row for hours: it costs that row, and no other of its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TypeVar

from backstop.model.errors import RowsLocked, StoreUnavailable
from backstop.model.records import Key
from backstop.sql.run import is_lock_refused

T = TypeVar("T")
R = TypeVar("R")

LOCK_TIMEOUT = timedelta(seconds=5)
"""A batch holds its rows for milliseconds; a promotion for as long as 20,000 rows and the control database take."""
_TRIES = 3


def change_rows(
    subject: str, change: Callable[[timedelta], T], held: Callable[[], Collection[Key]]
) -> T:
    """What `change` returns, which takes the longest wait for a lock and commits everything or nothing. `held` reads which of its
    rows another transaction holds now.

    Raises RowsLocked with these, and StoreUnavailable when the locks are no rows', or different ones each time.
    """
    for _ in range(_TRIES):
        try:
            return change(LOCK_TIMEOUT)
        except Exception as error:
            if not is_lock_refused(error):
                raise
        if keys := held():
            raise RowsLocked.of(subject, keys)
    raise StoreUnavailable(
        f"{subject[:1].upper()}{subject[1:]} gave no lock within {LOCK_TIMEOUT.total_seconds():g} s, {_TRIES} times.",
        unaffected="Nothing of this batch was changed.",
        next_step="Look for long transactions there (pg_stat_activity, SHOW PROCESSLIST); the next run tries again.",
    )


def change_free(
    rows: Sequence[T], key: Callable[[T], Key], change: Callable[[Sequence[T]], R]
) -> R:
    """What `change` returns for all of the rows. Where another transaction holds some, the others are changed, and RowsLocked is raised."""
    try:
        return change(rows)
    except RowsLocked as error:
        if rest := [row for row in rows if key(row) not in error.keys]:
            change(rest)
        raise
