"""Make an embedded platform's databases and broker ready: migrations, topics and groups. Safe to do twice."""

from __future__ import annotations

from collections.abc import Mapping

from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.schema.migrate import migrate

QUEUES = 4
"""For each topic: enough that workers share, few enough to look at."""


def prepare(settings: Settings, urls: Mapping[str, str]) -> None:
    """`urls`: connection id -> URL, as owners of the databases and administrator of the broker."""
    migrate(urls[settings.control], "control")
    for shard in settings.producers.values():
        migrate(urls[shard.connection], "producer")
    for store in settings.consumers.values():
        migrate(urls[store.connection], "consumer")
    connections = Connections(resolver=urls.get)
    for name in settings.brokers:
        with open_broker(settings, connections, name) as broker:
            for topic, wanted in settings.topics.items():
                if wanted.broker != name:
                    continue
                broker.create_topic(topic, QUEUES)
                for group in wanted.groups:
                    # From the start: a group owes what was sent before its first worker came.
                    broker.create_group(group, topic, at="start")
