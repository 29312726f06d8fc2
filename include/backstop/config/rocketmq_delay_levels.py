"""RocketMQ's delay levels: after how long a failed message comes again, and how long that goes on.

Beside the adapters, because the settings reckon with it before any broker is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""messageDelayLevel, as every RocketMQ has it unless it is set."""
FIRST_RETRY_LEVEL = 3
"""The first retry waits as level 3 says; each further one a level longer, and the last level is repeated."""
DELIVERIES = 17
"""RocketMQ's 16 retries, and the first delivery."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_levels(written: str) -> list[timedelta]:
    """messageDelayLevel as durations. ValueError for what RocketMQ would not take."""
    levels: list[timedelta] = []
    for part in written.split():
        found = re.fullmatch(r"(\d+)([smhd])", part)
        if found is None:
            raise ValueError(f"{part!r} is not a delay level")
        levels.append(timedelta(seconds=int(found[1]) * _UNITS[found[2]]))
    if not levels:
        raise ValueError("there is not a delay level")
    return levels


def retries_last(levels: Sequence[timedelta], deliveries: int) -> timedelta:
    """How long a message that fails at once goes on coming again before its last delivery."""
    retries = max(deliveries - 1, 0)
    growing = levels[FIRST_RETRY_LEVEL - 1 :][:retries]
    return sum(growing, timedelta(0)) + (retries - len(growing)) * levels[-1]
