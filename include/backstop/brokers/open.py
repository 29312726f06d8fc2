"""Opens a broker by its name in the settings: the one place that knows which kinds there are.

Beside ours there may be adapters of others, installed as entry points (docs/brokers/write-an-adapter.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic_core import PydanticCustomError

from backstop.brokers.activemq import ActiveMQ
from backstop.brokers.protocol import Broker
from backstop.brokers.redis_streams import RedisStreams
from backstop.brokers.rocketmq import RocketMQ
from backstop.brokers.rocketmq.inspect.check_config import WantedGroup, WantedTopic
from backstop.config.connections import Connections
from backstop.config.durations import parse
from backstop.config.installed_brokers import installed
from backstop.config.rocketmq_delay_levels import DELIVERIES
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError

_DEFAULT_SEND = timedelta(seconds=10)
_DURATIONS = frozenset(
    {"visibility", "connect_timeout", "send_timeout", "answer_timeout", "retention"}
)
_NUMBERS = frozenset({"delivery_limit", "max_message_bytes", "prefetch", "pull_batch"})
_METHODS: Final = [
    *(name for name in vars(Broker) if not name.startswith("_")),
    "__enter__",
    "__exit__",
]
_OPTIONS: Final = {
    "redis_streams": {
        "visibility",
        "connect_timeout",
        "send_timeout",
        "answer_timeout",
        "retention",
        "delivery_limit",
        "prefix",
    },
    "activemq": {
        "connect_timeout",
        "send_timeout",
        "answer_timeout",
        "delivery_limit",
        "max_message_bytes",
        "prefetch",
        "send_to",
        "receive_from",
        "dead_letters",
        "redelivery",
    },
    "rocketmq": {
        "brokers",
        "removed",
        "connect_timeout",
        "send_timeout",
        "answer_timeout",
        "delivery_limit",
        "max_message_bytes",
        "drain_group",
        "pull_batch",
        "delay_levels",
    },
}


def open_broker(settings: Settings, connections: Connections, name: str) -> Broker:
    """The broker `name`, not yet asked anything. ConfigurationError for an unknown name, kind or option."""
    broker = settings.brokers.get(name)
    if broker is None:
        known = ", ".join(sorted(settings.brokers)) or "none"
        raise _wrong(f"brokers.{name}: there is no such broker; allowed: {known}.")
    if broker.kind not in _OPTIONS:
        return _open_installed(settings, connections, name)
    options = _options(f"brokers.{name}.options", broker.options, _OPTIONS[broker.kind])
    # The rule counts on it: what was not stored by then is never stored.
    options.setdefault("send_timeout", min(_DEFAULT_SEND, settings.shortest_send(name)))
    url = connections.url(broker.connection)
    if broker.kind == "redis_streams":
        return RedisStreams(url, **options)
    if broker.kind == "rocketmq":
        return _open_rocketmq(settings, url, name, options)
    return _open_activemq(settings, url, name, options)


def _open_installed(settings: Settings, connections: Connections, name: str) -> Broker:
    """An adapter of others. It gets what ours get: the URL, its options, and which groups each of its topics has."""
    broker = settings.brokers[name]
    options: dict[str, Any] = {
        "send_timeout": min(_DEFAULT_SEND, settings.shortest_send(name)),
        **broker.options,
    }
    if not isinstance(options["send_timeout"], timedelta):
        options["send_timeout"] = _duration(
            f"brokers.{name}.options.send_timeout", options["send_timeout"]
        )
    topics = {
        topic: tuple(its.groups) for topic, its in settings.topics.items() if its.broker == name
    }
    opened: Broker = installed()[broker.kind].load()(
        connections.url(broker.connection), topics=topics, **options
    )
    # By the class first: a property such as `capabilities` is not asked here.
    missing = [
        method
        for method in _METHODS
        if not (hasattr(type(opened), method) or hasattr(opened, method))
    ]
    if missing:
        raise ConfigurationError(
            f"brokers.{name}: the adapter for {broker.kind!r} has no {', '.join(missing)}, which"
            " backstop.brokers.protocol.Broker asks for.",
            unaffected="Nothing was sent or read.",
            next_step="Install a release of the adapter that was made for this version of Backstop.",
        )
    return opened


def _open_rocketmq(settings: Settings, url: str, name: str, options: dict[str, Any]) -> RocketMQ:
    """`backstop check` holds the server against what the settings reckon with, topic by topic."""
    limit = options.get("delivery_limit", DELIVERIES)
    wanted: dict[str, WantedTopic] = {}
    for topic, its in settings.topics.items():
        if its.broker != name:
            continue
        groups: dict[str, WantedGroup] = {}
        for group, subscription in its.groups.items():
            policy = settings.policy_for(topic, group)
            room = policy.redelivery_horizon - policy.consume_timeout - policy.max_clock_skew
            groups[group] = WantedGroup(
                subscription.tags,
                acknowledged=settings.groups[group].progress == "acknowledged",
                retries_at_most=room,
                retries_more_than=policy.lease + policy.sweep_interval,
                delivery_limit=limit,
            )
        wanted[topic] = WantedTopic(settings.policy_for(topic).broker_retention, groups)
    return RocketMQ(url, wanted=wanted, **options)


def _open_activemq(settings: Settings, url: str, name: str, options: dict[str, Any]) -> ActiveMQ:
    groups: dict[str, str] = {}
    one_group = "{group}" not in options.get("receive_from", "{group}")
    for topic, its in settings.topics.items():
        if its.broker != name:
            continue
        if one_group and len(its.groups) > 1:
            raise _wrong(
                f"brokers.{name}.options.receive_from: it has no {{group}}, so the {len(its.groups)} groups of {topic!r} would "
                "take one another's messages; allowed: one group for each topic, or a name that holds {group}."
            )
        logged = [group for group in its.groups if settings.groups[group].progress == "logged"]
        if logged:
            raise _wrong(
                f"groups.{logged[0]}.progress: 'logged' needs offsets; allowed at ActiveMQ: acknowledged, received."
            )
        if one_group:
            groups |= dict.fromkeys([topic], next(iter(its.groups))) if its.groups else {}
    return ActiveMQ(url, groups=groups, **options)


def _options(path: str, written: Mapping[str, object], allowed: set[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in written.items():
        if name not in allowed:
            raise _wrong(
                f"{path}.{name}: an unknown option; allowed: {', '.join(sorted(allowed))}."
            )
        if name in _DURATIONS:
            options[name] = _duration(f"{path}.{name}", value)
        elif name in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _wrong(f"{path}.{name}: {value!r}; allowed: a whole number of at least 1.")
            options[name] = value
        elif not isinstance(value, str) or not value:
            says = "text that begins every key" if name == "prefix" else "text"
            raise _wrong(f"{path}.{name}: {value!r}; allowed: {says}.")
        else:
            options[name] = value
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
        what,
        unaffected="Nothing was sent or read.",
        next_step="Correct backstop.yaml and run this again.",
    )
