"""The error about stubs that stay closed although the statement that reopens them was answered."""

from __future__ import annotations

from backstop.model.errors import StoreFailed


def kept_closed(number: int) -> StoreFailed:
    """Of a trigger, for example, that keeps the old row: the database answers as if it had changed it."""
    rows = "1 stub stays" if number == 1 else f"{number} stubs stay"
    return StoreFailed(
        f"{rows} closed although the database answered without an error (a trigger?).",
        unaffected="No stub of this batch was reopened.",
        next_step="Find out what keeps the row as it is, and run this again.",
    )
