"""Applies many rows at once, and apart from those that their database refuses: one row at fault never stops the others.

Another program's trigger, policy or damaged content may refuse a change of one row. Its database answers, and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from backstop.model.errors import RowsLocked, StoreFailed

T = TypeVar("T")
R = TypeVar("R")
MOST = 20
"""A store that refuses more rows than this refuses all of them."""


def apply_apart(
    rows: Sequence[T], apply: Callable[[Sequence[T]], R], refused: list[tuple[T, StoreFailed]]
) -> list[R]:
    """What `apply` answers, which commits what it is given or nothing of it. Halves what is refused until the rows at fault stand
    alone; these are added to `refused`, each with its error. So are rows that another transaction holds, of any number: a store
    names them (RowsLocked).

    Raises StoreUnavailable when the store does not answer, and StoreFailed once it refused more than MOST rows: what had been
    applied is committed.
    """
    try:
        return [apply(rows)]
    except RowsLocked as error:
        held = [row for row in rows if _key(row) in error.keys]
        if not held:
            raise
        refused += [(row, error) for row in held]
        rest = [row for row in rows if _key(row) not in error.keys]
        return apply_apart(rest, apply, refused) if rest else []
    except StoreFailed as error:
        if sum(not isinstance(other, RowsLocked) for _, other in refused) >= MOST:
            raise
        if len(rows) == 1:
            refused.append((rows[0], error))
            return []
    middle = len(rows) // 2
    return [
        *apply_apart(rows[:middle], apply, refused),
        *apply_apart(rows[middle:], apply, refused),
    ]


def _key(row: object) -> object:
    """A row is a message's key, or has one."""
    return getattr(row, "key", row)
