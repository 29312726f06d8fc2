"""Which brokers the demo knows: their server, what can be done to it, and what backstop.yaml says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstop_lab.faults.brokers.activemq import ActiveMQFaults
from backstop_lab.faults.brokers.protocol import BrokerFaults, FaultTools
from backstop_lab.faults.brokers.redis_streams import RedisStreamsFaults
from backstop_lab.faults.brokers.rocketmq import RocketMQFaults
from backstop_lab.servers.activemq import ActiveMQServer
from backstop_lab.servers.broker_server import BrokerServer
from backstop_lab.servers.rocketmq import RocketMQServer
from backstop_lab.servers.valkey import Valkey

EMBEDDED = "redis_streams"
DEMO_SEND_SECONDS = 2
"""`send_timeout`: as long as backstop.yaml's `max_send_duration` lets it be."""
DEMO_DELIVERIES = 5
"""`delivery_limit`: so few that what always fails is a dead letter within seconds."""
DEMO_DELAY_LEVELS = "1s 2s 2s 2s 2s 3s 5s 10s 30s"
"""RocketMQ's: a failed message comes again after 2 s (after 3 s the last time), and not after 10 s and more."""
DEMO_MESSAGE_BYTES = 262_144
"""The longest message that RocketMQ takes: small beside a file of its log."""
DEMO_LOG_FILE_BYTES = 2_097_152
"""A file of RocketMQ's log: small, because its retention removes whole files, and one is filled up for it."""
DEMO_ROCKETMQ = {
    # Asynchronous flush by way of memory of its own: else what was acknowledged outlives the process in the machine's memory.
    "transientStorePoolEnable": "true",
    "transientStorePoolSize": "5",
    "mappedFileSizeCommitLog": str(DEMO_LOG_FILE_BYTES),
    # From there into the file: after so many pages (16 MiB: never before its time), or so many milliseconds.
    "commitCommitLogLeastPages": "4096",
    "commitIntervalCommitLog": "50",
    "commitCommitLogThoroughInterval": "50",
    "messageDelayLevel": DEMO_DELAY_LEVELS,
    "maxMessageSize": str(DEMO_MESSAGE_BYTES),
    # Bytes: a file holds 1000 places of a queue.
    "mappedFileSizeConsumeQueue": "20000",
    # Milliseconds: retention looks twice a second, and removes without a pause.
    "cleanResourceInterval": "500",
    "deletePhysicFilesInterval": "1",
    "deleteConsumeQueueFilesInterval": "1",
    # Milliseconds: a member that says nothing for so long, because it stands still, is none any more.
    "channelExpiredTimeout": "45000",
}
"""What its broker is told beside the settings of every server of ours."""


@dataclass(frozen=True)
class BrokerKind:
    """`settings` and `policy` are written over those of backstop.yaml, whose broker it takes the place of."""

    make_server: Callable[[Path, int], BrokerServer]
    """Of the platform's folder and a port that is free for it."""
    open_faults: Callable[[Any, FaultTools], BrokerFaults]
    settings: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    owns_queues: bool = False
    """The demo has a group on it that consumes in order."""

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
        owns_queues=True,
    ),
    "activemq": BrokerKind(
        lambda root, port: ActiveMQServer(root / "activemq", port),
        ActiveMQFaults,
        {
            "kind": "activemq",
            "options": {"send_timeout": DEMO_SEND_SECONDS, "delivery_limit": DEMO_DELIVERIES},
        },
    ),
    "rocketmq": BrokerKind(
        lambda root, port: RocketMQServer(root / "rocketmq", port, settings=DEMO_ROCKETMQ),
        lambda server, tools: RocketMQFaults(server, tools, delivery_limit=DEMO_DELIVERIES),
        {
            "kind": "rocketmq",
            "options": {
                "send_timeout": DEMO_SEND_SECONDS,
                "delivery_limit": DEMO_DELIVERIES,
                "max_message_bytes": DEMO_MESSAGE_BYTES,
                "delay_levels": DEMO_DELAY_LEVELS,
            },
        },
    ),
}
BROKERS = {"embedded": EMBEDDED, **{kind: kind for kind in KINDS if kind != EMBEDDED}}
"""What `make demo BROKER=...` takes."""
