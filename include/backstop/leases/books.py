"""The books of one consumer: everything that came in is somewhere, each message in one place.

    received + released = done + duplicates + filtered + parked + failed + conflicts + superseded + fenced_off + handed_back
                          + not_for_us + in process

The consumer counts both sides where each happens, and says every minute what it has; the watch compares.
"""

import json
from collections.abc import Mapping
from datetime import timedelta

from backstop.leases.log_table import log_table
from backstop.model.records import Counts
from backstop.sql.run import Connection

IN = ("received", "released")
"""Fetched from the broker; taken from the kept content of a released key."""
OUT = (
    "done",
    "duplicates",
    "filtered",
    "parked",
    "failed",
    "conflicts",
    "superseded",
    "fenced_off",
    "handed_back",
    "not_for_us",
)
EVERY = timedelta(minutes=1)
MOST = 2**53
"""No consumer counts further."""
KEPT_FOR = timedelta(days=1)
"""The last books of a consumer that is gone."""


class Books:
    """What one consumer took in and what became of it, since it started. Not shared between threads."""

    def __init__(self) -> None:
        self.counts = Counts(dict.fromkeys((*IN, *OUT), 0))

    def add(self, name: str, number: int = 1) -> None:
        """`name` is one of IN or OUT."""
        self.counts[name] += number

    def difference(self, in_process: int) -> int:
        """How many messages are unaccounted for; below zero: accounted for twice."""
        return difference(self.counts, in_process)


def read_counts(counts: object) -> dict[str, int]:
    """What a row of books says, which any program of the group's login may have written: what is no number of messages counts as
    none, so that the books do not balance, and stops nothing."""
    given = counts if isinstance(counts, Mapping) else {}
    return {
        name: number
        for name in (*IN, *OUT)
        if type(number := given.get(name)) is int and abs(number) <= MOST
    }


def difference(counts: Mapping[str, int], in_process: int) -> int:
    """What came in and is neither out nor in process."""
    return (
        sum(counts.get(name, 0) for name in IN)
        - sum(counts.get(name, 0) for name in OUT)
        - in_process
    )


def write(
    connection: Connection,
    group: str,
    member: str,
    life: str,
    counts: Mapping[str, int],
    in_process: int,
    *,
    has_ended: bool = False,
) -> None:
    """Replaces this member's books; `life` tells one process of that name from the next. Forgets those of members long gone."""
    values = {
        "group": group,
        "member": member,
        "life": life,
        "counts": json.dumps(counts),
        "in_process": in_process,
        "has_ended": has_ended,
        "kept_seconds": KEPT_FOR.total_seconds(),
    }
    log_table(connection).write_books(connection, values)
