"""The URL of a Redis Streams broker, as a producer's or a consumer's program gives it."""

from __future__ import annotations

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.model.errors import ConfigurationError


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "tcp://h:6379", "redis://:secret/word@h/0", "redis://h:6379/leases"],
)
def test_what_is_no_url_of_redis_is_refused_with_how_to_write_it(url: str) -> None:
    """redis-py raises a ValueError that quotes it, or takes database 0."""
    with pytest.raises(ConfigurationError) as error:
        RedisStreams(url)
    assert "redis://user:password@host:6379/0" in error.value.next_step
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h/", "rediss://h:6379/3", "unix:///a/socket"]
)
def test_what_redis_py_understands_is_taken(url: str) -> None:
    RedisStreams(url).close()
