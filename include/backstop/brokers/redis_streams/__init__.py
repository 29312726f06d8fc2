"""Redis Streams as a broker: see docs/brokers/redis-streams.md."""

from backstop.brokers.redis_streams.adapter import RedisStreams
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.receive import RedisSubscription

__all__ = ["Keys", "RedisStreams", "RedisSubscription"]
