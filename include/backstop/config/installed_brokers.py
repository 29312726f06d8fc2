"""Which kinds of brokers there are: ours, and those for which somebody installed an adapter as an entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

OURS = ("redis_streams", "activemq", "rocketmq")
ADAPTERS = "backstop.brokers"
"""The group of their entry points (docs/brokers/write-an-adapter.md)."""


def installed() -> dict[str, EntryPoint]:
    """kind -> the adapter of others; a name of ours stays ours."""
    return {one.name: one for one in entry_points(group=ADAPTERS) if one.name not in OURS}


def allowed_kinds() -> str:
    return ", ".join(repr(kind) for kind in (*OURS, *sorted(installed())))
