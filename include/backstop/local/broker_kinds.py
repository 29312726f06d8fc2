"""Which brokers the demo knows: their server, what can be done to it, and what backstop.yaml says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstop.local.activemq import ActiveMQServer
from backstop.local.broker_faults.activemq import ActiveMQFaults
from backstop.local.broker_faults.protocol import BrokerFaults, FaultTools
from backstop.local.broker_faults.redis_streams import RedisStreamsFaults
from backstop.local.broker_faults.rocketmq import OPTIONS, SERVER, RocketMQFaults
from backstop.local.broker_server import BrokerServer
from backstop.local.rocketmq import RocketMQServer
from backstop.local.valkey import Valkey

EMBEDDED = "redis_streams"


@dataclass(frozen=True)
class BrokerKind:
    """`settings` and `policy` are written over those of backstop.yaml, whose broker it takes the place of."""

    make_server: Callable[[Path, int], BrokerServer]
    """Of the platform's folder and a port that is free for it."""
    open_faults: Callable[[Any, FaultTools], BrokerFaults]
    settings: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)

    def take_place(self, written: dict[str, Any]) -> None:
        """Changes what backstop.yaml says of the embedded broker; unchanged for that one."""
        if self.settings is not None:
            name = str(self.settings["kind"])
            written["brokers"] = {name: {"connection": "backstop_broker", **self.settings}}
            for topic in written["topics"].values():
                topic["broker"] = name
        written["policy"] |= self.policy


KINDS: dict[str, BrokerKind] = {
    EMBEDDED: BrokerKind(
        lambda root, port: Valkey(root / "valkey", port),
        lambda server, tools: RedisStreamsFaults(server.url(), tools.ledger),
    ),
    "activemq": BrokerKind(
        lambda root, port: ActiveMQServer(root / "activemq", port),
        ActiveMQFaults,
        {"kind": "activemq", "options": {"send_timeout": 2, "delivery_limit": 5}},
    ),
    "rocketmq": BrokerKind(
        lambda root, port: RocketMQServer(root / "rocketmq", port, settings=SERVER),
        RocketMQFaults,
        {"kind": "rocketmq", "options": OPTIONS},
    ),
}
BROKERS = {"embedded": EMBEDDED, **{kind: kind for kind in KINDS if kind != EMBEDDED}}
"""What `make demo BROKER=...` takes."""
