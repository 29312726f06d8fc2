"""Remembers which servers of a broker were seen, so that an answer without one of them is not taken for a whole one.

A name server of RocketMQ forgets a master that is down: its queues, retries and dead letters are then missing from every
answer, and nothing in the answers says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backstop.model.errors import BrokerUnavailable
from backstop.sql.named import load

_SQL = load("backstop.evidence", "queries.sql")


def require_servers(
    cursor: Any, broker: str, kind: str, topic: str, servers: Collection[str]
) -> None:
    """BrokerUnavailable when one that was seen for the topic before is not among `servers`.

    `kind`: the broker's, as the settings name it now. What was seen under the same name of another kind is another broker's.
    """
    cursor.execute(_SQL["servers_seen"], {"broker": broker, "kind": kind, "topic": topic})
    missing = sorted({server for (server,) in cursor.fetchall()} - set(servers))
    if missing:
        raise BrokerUnavailable(
            f"Broker {broker} does not name {', '.join(missing)} any more, which had, or could have, a part of topic {topic}.",
            unaffected="Nothing was decided without it.",
            next_step="Start it again. If it is gone for good, name it in the option `removed` of the broker.",
        )


def topics_seen(cursor: Any, broker: str, kind: str) -> set[str]:
    """The topics of which servers of this broker were seen, whether they are there now or not."""
    cursor.execute(_SQL["topics_seen"], {"broker": broker, "kind": kind})
    return {topic for (topic,) in cursor.fetchall()}


def record_servers(cursor: Any, seen: Mapping[tuple[str, str, str], Collection[str]]) -> None:
    """Remembers those of a look; `seen`: by broker, its kind, and topic."""
    for (broker, kind, topic), servers in sorted(seen.items()):
        if servers:
            cursor.execute(
                _SQL["record_servers"],
                {
                    "broker": broker,
                    "kind": kind,
                    "topic": topic,
                    "servers": sorted(servers),
                },
            )
