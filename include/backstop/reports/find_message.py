"""Finds the stubs that an id names, in every topic and on every shard: by key, which costs the same however many there are."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Key

Found = list[tuple[tuple[str, str], str]]


def find_stubs(
    settings: Settings, connections: Connections, topics: Sequence[str], message_id: str
) -> tuple[Found, list[str], dict[str, str]]:
    """((topic, id), shard) of each, the shards that were searched, and why others were not."""
    found: Found = []
    searched: list[str] = []
    unreachable: dict[str, str] = {}
    with Sources(settings, connections) as sources:
        for shard in settings.producers:
            try:
                stubs = sources.shard(shard).stubs([Key(topic, message_id) for topic in topics])
            except Unavailable as error:
                unreachable[f"shard {shard}"] = error.what
                continue
            searched.append(f"shard {shard}")
            found += [((key.topic, key.message_id), shard) for key in stubs]
    return found, searched, unreachable
