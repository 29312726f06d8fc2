"""Opens the broker for one process of the demo, from backstop.yaml and the URL that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self, cast

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import Broker, Subscription
from backstop.config.connections import Connections
from backstop.config.load import load


class OwnBroker(Broker, Protocol):
    """What every adapter is to a program that sends and receives."""

    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> Subscription: ...

    def __enter__(self) -> Self: ...


def own_broker(places: dict[str, Any]) -> OwnBroker:
    """`places` is the JSON that the owner wrote for the process: config, broker_name, and broker, its URL.

    A send ends before the time is over in which Backstop takes it for under way: open_broker sees to it.
    """
    settings = load(Path(places["config"]))
    reference = settings.brokers[places["broker_name"]].connection
    opened = open_broker(
        settings,
        Connections(resolver={reference: str(places["broker"])}.get),
        places["broker_name"],
    )
    return cast(OwnBroker, opened)
