"""The hours in which retention works. Pure."""

from __future__ import annotations

from datetime import datetime, time, timedelta

DAY = timedelta(days=1)


def time_left(window: str, now: datetime) -> timedelta | None:
    """How long the window ("01:00-05:00", UTC; it may go over midnight) stays open at `now`; null: it is shut.

    Both ends equal: it is always open, and a day is left.
    """
    opens, shuts = (time.fromisoformat(text) for text in window.split("-"))
    since_midnight = timedelta(
        hours=now.hour, minutes=now.minute, seconds=now.second, microseconds=now.microsecond
    )
    start, end = (timedelta(hours=one.hour, minutes=one.minute) for one in (opens, shuts))
    length = (end - start) % DAY or DAY
    into = (since_midnight - start) % DAY
    if length == DAY:
        return DAY
    return length - into if into < length else None
