"""Create topics and groups where they are missing; whatever is there stays as it is. Needs no settings and no extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from backstop.model.errors import BrokerUnavailable, ConfigurationError

QUEUES = 4
"""For each topic: enough that workers share, few enough to look at."""


def create_topics(
    broker: Any, topics: Mapping[str, Iterable[str]], queues: int | None = None
) -> None:
    """`topics`: topic -> its groups. A new group begins at the start of its topic: it owes what was sent before it came.

    `queues` None: QUEUES for a new topic, and one that is there keeps its number.
    """
    for topic, groups in topics.items():
        if queues is not None or not _is_there(broker, topic):
            broker.create_topic(topic, queues or QUEUES)
        for group in groups:
            broker.create_group(group, topic, at="start")


def _is_there(broker: Any, topic: str) -> bool:
    try:
        return bool(broker.queues(topic))
    except BrokerUnavailable:
        return False  # missing; or the broker is away, which creating finds out


def open_by_url(url: str) -> Any:
    """An adapter of the kind that the URL's scheme names. ConfigurationError for another scheme."""
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        from backstop.brokers.redis_streams import RedisStreams

        return RedisStreams(url)
    if scheme in ("stomp", "stomp+ssl"):
        from backstop.brokers.activemq import ActiveMQ

        return ActiveMQ(url)
    if scheme == "rocketmq":
        from backstop.brokers.rocketmq import RocketMQ

        return RocketMQ(url)
    raise ConfigurationError(
        f"No broker has the scheme {scheme!r}.",
        unaffected="Nothing was created.",
        next_step="Name a URL that begins with redis://, rediss://, stomp:// or rocketmq://.",
    )
