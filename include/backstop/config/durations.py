"""Durations as people write them in backstop.yaml: "30s", "5m", "2h", "7d", or a number of seconds."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = r"^(\d+(?:\.\d+)?) ?(ms|s|m|h|d)$"
LONGEST = timedelta(days=36_500)
"""A hundred years. Instants are reckoned by durations, and with a few thousand years there are none: neither in Python nor in a
database."""
ALLOWED = (
    'a number with a unit ("500ms", "30s", "5m", "2h", "7d") or a number of seconds; at most 36500d'
)


def parse(value: object) -> timedelta:
    """A written duration as a timedelta; a validation error for anything else, negative ones and those above LONGEST too."""
    found: timedelta | None = None
    try:
        if isinstance(value, timedelta):
            found = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = timedelta(seconds=value)
        elif isinstance(value, str) and (match := re.match(_PATTERN, value.strip())):
            found = timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    except (OverflowError, ValueError):
        found = (
            None  # too long for a timedelta, or no number: said below like every other wrong value
        )
    if found is None or not timedelta(0) <= found <= LONGEST:
        raise PydanticCustomError("duration", "{allowed}", {"allowed": ALLOWED})
    return found


def written(length: timedelta) -> str:
    """A timedelta as the shortest text that `parse` reads back: 90 s as "90s", an hour as "1h"."""
    seconds = length.total_seconds()
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:.10g}s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse),
    PlainSerializer(lambda length: length.total_seconds(), return_type=float),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _PATTERN},
                {"type": "number", "minimum": 0, "maximum": int(LONGEST.total_seconds())},
            ],
            "description": ALLOWED,
        }
    ),
]
