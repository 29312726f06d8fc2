"""Reckons from a broker's options and its adapter's defaults how long it redelivers one message, by its kind.

The settings ask before any broker is opened. Options that cannot be read count as nothing said: the adapter refuses them when it
is opened, with their place in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pydantic_core import PydanticCustomError

from backstop.config.durations import parse
from backstop.config.redelivery_defaults import DELIVERY_LIMIT, VISIBILITY
from backstop.config.rocketmq_delay_levels import (
    DELAY_LEVELS,
    DELIVERIES,
    parse_levels,
    retries_last,
)

Options = Mapping[str, int | float | str | bool]
_LIMITS = {
    "redis_streams": DELIVERY_LIMIT,
    "activemq": DELIVERY_LIMIT,
    "rocketmq": DELIVERIES,
}


def delivery_limit(kind: str, options: Options) -> int | None:
    """After how many deliveries a message becomes a dead letter; null: neither the options nor an adapter of ours say."""
    limit = options.get("delivery_limit", _LIMITS.get(kind))
    return limit if isinstance(limit, int) else None


def redelivers_for(kind: str, options: Options) -> timedelta | None:
    """From a message's first delivery to its last; null: neither the options nor an adapter of ours say."""
    limit = delivery_limit(kind, options)
    try:
        if kind == "rocketmq":
            levels = parse_levels(str(options.get("delay_levels", DELAY_LEVELS)))
            return retries_last(levels, DELIVERIES if limit is None else limit)
        visibility = options.get("visibility", VISIBILITY if kind == "redis_streams" else None)
        return None if limit is None or visibility is None else limit * parse(visibility)
    except (ValueError, PydanticCustomError):
        return None
