"""Opens a broker by its name in the settings: the one place that knows which kinds there are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic_core import PydanticCustomError

from backstop.brokers.redis_streams import RedisStreams
from backstop.config.connections import Connections
from backstop.config.durations import parse
from backstop.config.settings import Settings
from backstop.errors import ConfigurationError

_DEFAULT_SEND = timedelta(seconds=10)
_DURATIONS = frozenset({"visibility", "connect_timeout", "send_timeout", "retention"})


def open_broker(settings: Settings, connections: Connections, name: str) -> RedisStreams:
    """The broker `name`, not yet asked anything. ConfigurationError for an unknown name, kind or option."""
    broker = settings.brokers.get(name)
    if broker is None:
        known = ", ".join(sorted(settings.brokers)) or "none"
        raise _wrong(f"brokers.{name}: there is no such broker; allowed: {known}.")
    if broker.kind == "redis_streams":
        options = _options(f"brokers.{name}.options", broker.options)
        # The rule counts on it: what was not stored by then is never stored.
        options.setdefault("send_timeout", min(_DEFAULT_SEND, settings.shortest_send(name)))
        return RedisStreams(connections.url(broker.connection), **options)
    raise _wrong(f"brokers.{name}.kind: {broker.kind!r}; allowed: redis_streams.")


def _options(path: str, written: Mapping[str, object]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in written.items():
        if name in _DURATIONS:
            options[name] = _duration(f"{path}.{name}", value)
        elif name == "delivery_limit":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _wrong(f"{path}.{name}: {value!r}; allowed: a whole number of at least 1.")
            options[name] = value
        elif name == "prefix":
            if not isinstance(value, str) or not value:
                raise _wrong(f"{path}.{name}: {value!r}; allowed: text that begins every key.")
            options[name] = value
        else:
            allowed = ", ".join(sorted({*_DURATIONS, "delivery_limit", "prefix"}))
            raise _wrong(f"{path}.{name}: an unknown option; allowed: {allowed}.")
    return options


def _duration(path: str, value: object) -> timedelta:
    try:
        length = parse(value)
    except PydanticCustomError as error:
        raise _wrong(f"{path}: {value!r}; allowed: {error.message()}.") from error
    if length <= timedelta(0):
        raise _wrong(f"{path}: {value!r}; allowed: more than zero.")
    return length


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(
        what, kept="Nothing was sent or read.", next_step="Correct backstop.yaml and run this again."
    )
