"""Which way a copy may go on each kind of broker, from the settings alone: no server is asked."""

from __future__ import annotations

from typing import Any

import pytest

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.requests.ask import route_for
from system import settings_dict

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "redis_streams": ("redis://127.0.0.1:1/0", {"visibility": 2, "delivery_limit": 5}),
    "activemq": ("stomp://u:p@127.0.0.1:1?jolokia=http%3A%2F%2F127.0.0.1%3A1%2Fapi%2Fjolokia", {}),
    "rocketmq": ("rocketmq://127.0.0.1:1", {}),
}


@pytest.mark.parametrize(
    ("kind", "beside_a_group_that_takes_none"),
    [
        ("redis_streams", None),
        ("activemq", "group"),
        ("rocketmq", "group"),
    ],
)
def test_a_copy_goes_around_a_group_that_takes_no_duplicates_where_the_broker_can(
    kind: str, beside_a_group_that_takes_none: str | None
) -> None:
    url, options = OPTIONS[kind]
    written = settings_dict()
    written["brokers"] = {
        "embedded": {
            "kind": kind,
            "connection": "broker",
            "options": options,
            "retry_schedule": "5s",
        }
    }
    connections = Connections(resolver={"broker": url}.get)
    with Sources(Settings.model_validate(written), connections) as sources:
        assert route_for(sources, "orders", {"billing"}, {"shipping": "CONFIRMED"}) == "topic"
    written["groups"]["shipping"]["duplicates"] = "no"
    with Sources(Settings.model_validate(written), connections) as sources:
        assert (
            route_for(sources, "orders", {"billing"}, {"shipping": "CONFIRMED"})
            == beside_a_group_that_takes_none
        )
        assert route_for(sources, "orders", {"billing", "shipping"}, {}) == "topic"
