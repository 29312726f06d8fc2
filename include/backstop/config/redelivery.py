"""Reckons from a broker's options how long it redelivers one message, by its kind.

The settings ask before any broker is opened. Options that cannot be read count as nothing said: the adapter refuses them when it
is opened, with their place in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pydantic_core import PydanticCustomError

from backstop.config.durations import parse
from backstop.config.rocketmq_delay_levels import (
    DELAY_LEVELS,
    DELIVERIES,
    parse_levels,
    retries_last,
)

Options = Mapping[str, int | float | str | bool]


def redelivers_for(kind: str, options: Options) -> timedelta | None:
    """From a message's first delivery to its last; null: the options say nothing about it."""
    reckon = {"rocketmq": _by_levels}.get(kind, _by_visibility)
    try:
        return reckon(options)
    except (ValueError, PydanticCustomError):
        return None


def _by_visibility(options: Options) -> timedelta | None:
    limit, visibility = options.get("delivery_limit"), options.get("visibility")
    return limit * parse(visibility) if isinstance(limit, int) and visibility is not None else None


def _by_levels(options: Options) -> timedelta | None:
    limit = options.get("delivery_limit")
    levels = parse_levels(str(options.get("delay_levels", DELAY_LEVELS)))
    return retries_last(levels, limit if isinstance(limit, int) else DELIVERIES)
