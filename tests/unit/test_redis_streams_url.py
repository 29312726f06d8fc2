"""The URL of a Redis Streams broker or of leases in Redis, as a producer's or a consumer's program gives it."""

from __future__ import annotations

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import RedisExchange
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


def test_an_option_that_is_no_number_is_not_taken_for_a_wrong_url() -> None:
    with pytest.raises(ConfigurationError, match="or its database or an option is not a number"):
        RedisStreams("redis://h:6379/0?max_connections=x")


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("url", ["redis://:secret/word@h/0", "redis://h:6379/leases"])
def test_leases_are_not_kept_in_database_0_for_one_that_is_no_number(
    url: str, cluster: bool
) -> None:
    """The duties' connection is refused: whoever corrects that one alone would have them in two databases."""
    with pytest.raises(ConfigurationError) as error:
        RedisExchange(url, cluster=cluster)
    assert "redis://user:password@host:6379/0" in error.value.next_step
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "rediss://h:6379/3",
        "redis://h:6379/leases?db=1",
        "unix:///a/socket",
    ],
)
def test_what_redis_py_understands_is_taken(url: str) -> None:
    RedisStreams(url).close()
    RedisExchange(url).close()
