"""Make an embedded platform's databases and broker ready: migrations, topics and groups. Safe to do twice."""

from __future__ import annotations

from collections.abc import Mapping

from backstop.brokers.create_topics import QUEUES, create_topics
from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.schema.migrate import migrate


def prepare(settings: Settings, urls: Mapping[str, str]) -> None:
    """`urls`: connection id -> URL, as owners of the databases and administrator of the broker."""
    migrate(urls[settings.control], "control")
    for shard in settings.own_producers():
        migrate(urls[settings.producers[shard].connection], "producer")
    for store in settings.own_consumers():
        migrate(urls[settings.consumers[store].connection], "consumer")
    connections = Connections(resolver=urls.get)
    for name in settings.brokers:
        with open_broker(settings, connections, name) as broker:
            create_topics(
                broker,
                {topic: its.groups for topic, its in settings.topics.items() if its.broker == name},
                QUEUES,
            )
