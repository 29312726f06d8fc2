"""Holds what a broker is set to against what the settings reckon with (pure): findings, one a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from backstop.brokers.protocol import Finding
from backstop.brokers.retry_levels import DELAY_LEVELS, DELIVERIES, parse_levels, retries_last

READ, WRITE = 4, 2
"""Bits of a permission."""


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """What the settings reckon with for one group of a topic."""

    tags: tuple[str, ...] | None
    acknowledged: bool
    """Its progress is said to count what is acknowledged."""
    retries_at_most: timedelta
    """redelivery_horizon, less the time of the last delivery: a later one would come after it was called settled."""
    retries_more_than: timedelta
    """A lease and a sweep: a broker that gives up sooner makes false dead letters."""
    delivery_limit: int = DELIVERIES


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """What the settings reckon with for one topic."""

    retention: timedelta
    groups: Mapping[str, WantedGroup] = field(default_factory=dict)


def hold_broker(name: str, config: Mapping[str, str], retention: timedelta | None) -> list[Finding]:
    """One master's settings; `retention`: the longest that a topic is said to be kept."""
    return [
        _flush(name, config), _replication(name, config), _retention(name, config, retention), _making(name, config),
        _permission(name, config),
    ]  # fmt: skip


def _flush(name: str, config: Mapping[str, str]) -> Finding:
    kind, pool = config.get("flushDiskType", "unknown"), config.get("transientStorePoolEnable", "false")
    good = kind == "SYNC_FLUSH"
    says = f"flushDiskType {kind}" + (", transientStorePoolEnable true" if pool == "true" else "")
    if good:
        return Finding(f"{name}: flush", True, f"{says}: an acknowledged message is on disk")
    return Finding(
        f"{name}: flush", False, f"{says}: a crash may lose messages that were acknowledged",
        "Set flushDiskType=SYNC_FLUSH; until then such losses are found as LOST and sent again.",
    )  # fmt: skip


def _replication(name: str, config: Mapping[str, str]) -> Finding:
    role, needed = config.get("brokerRole", "unknown"), config.get("inSyncReplicas", "1")
    says = f"brokerRole {role}, inSyncReplicas {needed}"
    if role == "SLAVE":
        return Finding(f"{name}: replication", False, f"{says}: no master", "Let a master register under this name.")
    if role == "SYNC_MASTER" and needed.isdecimal() and int(needed) > 1:
        return Finding(f"{name}: replication", True, f"{says}: an acknowledged message is on {needed} machines")
    return Finding(f"{name}: replication", True, f"{says}: a machine that is lost takes messages with it that no replica has")


def _retention(name: str, config: Mapping[str, str], wanted: timedelta | None) -> Finding:
    written = config.get("fileReservedTime", "")
    if not written.isdecimal():
        return Finding(f"{name}: retention", False, "fileReservedTime cannot be read", "See the broker's configuration.")
    kept = timedelta(hours=int(written))
    full = config.get("diskMaxUsedSpaceRatio", "75")
    says = f"fileReservedTime {written} h, sooner when the disk is {full} % full"
    if wanted is None or kept >= wanted:
        return Finding(f"{name}: retention", True, says)
    return Finding(
        f"{name}: retention", False, f"{says}; broker_retention says {wanted.total_seconds() / 3600:g} h",
        "Raise fileReservedTime, or lower broker_retention in the policy (and backlog_horizon below it).",
    )  # fmt: skip


def _making(name: str, config: Mapping[str, str]) -> Finding:
    topics, groups = (config.get(f"autoCreate{what}", "unknown") for what in ("TopicEnable", "SubscriptionGroup"))
    good = topics == "false"
    return Finding(
        f"{name}: making topics", good, f"autoCreateTopicEnable {topics}, autoCreateSubscriptionGroup {groups}",
        "" if good else "Set autoCreateTopicEnable=false: a misspelt topic is made, and what is sent to it nobody owes.",
    )  # fmt: skip


def _permission(name: str, config: Mapping[str, str]) -> Finding:
    written = config.get("brokerPermission", "6")
    good = written.isdecimal() and int(written) & (READ | WRITE) == READ | WRITE
    return Finding(
        f"{name}: permission", good, f"brokerPermission {written}: {_allows(int(written) if written.isdecimal() else 0)}",
        "" if good else "Set brokerPermission=6: until then it refuses what is read or written.",
    )  # fmt: skip


def hold_permissions(topic: str, queues: Mapping[str, tuple[int, int, int]], unknown: list[str]) -> Finding:
    """`queues`: for each broker name how many can be read, how many written, and the permission; `unknown`: names that the
    option `brokers` leaves out."""
    says = ", ".join(
        f"{name}: {written if read == written else f'{read} readable, {written} writable'} queues, {_allows(perm)}"
        for name, (read, written, perm) in sorted(queues.items())
    )
    if unknown:
        return Finding(f"topic {topic}", False, says, f"Append to the option brokers: {', '.join(unknown)}.")
    if any(perm & (READ | WRITE) != READ | WRITE for _, _, perm in queues.values()):
        return Finding(f"topic {topic}", False, says, "Set the topic's permission to 6, or take it out of the settings.")
    if any(written > read for read, written, _ in queues.values()):
        do = "Make as many queues readable as writable: what is in the others comes to nobody."
        return Finding(f"topic {topic}", False, says, do)
    return Finding(f"topic {topic}", True, says)


def hold_retries(group: str, levels: str, retry_max: int | None, wanted: WantedGroup) -> Finding:
    """Does a message come again for as long as the policy reckons with? `retry_max`: the group's own, for consumers that name
    none."""
    subject = f"group {group}: retries"
    try:
        known = parse_levels(levels)
    except ValueError as error:
        return Finding(subject, False, f"messageDelayLevel cannot be read: {error}", "See the broker's configuration.")
    deliveries = max(wanted.delivery_limit, 1 + (retry_max if retry_max is not None and retry_max >= 0 else 0))
    longest, shortest = retries_last(known, deliveries), retries_last(known, wanted.delivery_limit)
    says = f"up to {deliveries} deliveries over {longest}"
    if levels.split() != DELAY_LEVELS.split():
        says += f", by messageDelayLevel {levels}"
    if longest > wanted.retries_at_most:
        return Finding(
            subject, False, f"{says}; redelivery_horizon leaves room for {wanted.retries_at_most}",
            "Raise redelivery_horizon, or lower retryMaxTimes of the group and delivery_limit.",
        )  # fmt: skip
    if shortest <= wanted.retries_more_than:
        return Finding(
            subject, False, f"{says}; a lease and a sweep take {wanted.retries_more_than}",
            "Let the broker deliver for longer than a lease and a sweep, or it makes dead letters of what is only busy.",
        )  # fmt: skip
    if retry_max is not None and 1 + retry_max < wanted.delivery_limit:
        return Finding(
            subject, False, f"{says}; retryMaxTimes {retry_max} ends sooner than delivery_limit {wanted.delivery_limit}",
            "Set retryMaxTimes of the group to delivery_limit - 1.",
        )  # fmt: skip
    return Finding(subject, True, says)


def hold_subscription(group: str, subscribed: Mapping[str, str] | None, wanted: WantedGroup) -> Finding:
    """`subscribed`: client to its expression for the topic, of those that are connected; null: nobody is connected."""
    subject = f"group {group}: subscription"
    if not subscribed:
        return Finding(subject, True, "no consumer is connected, so what it takes cannot be seen")
    expressions = sorted(set(subscribed.values()))
    says = f"{len(subscribed)} consumers take {', '.join(repr(one) for one in expressions)}"
    if len(expressions) > 1:
        return Finding(
            subject, False, f"{says}: consumers of one group that differ skip messages",
            "Give every consumer of the group the same subscription.",
        )  # fmt: skip
    taken = read_expression(expressions[0])
    tags = None if wanted.tags is None else frozenset(wanted.tags)
    if taken == tags:
        return Finding(subject, True, says)
    settings = "every message" if tags is None else ", ".join(sorted(tags))
    return Finding(
        subject, False, f"{says}; the settings say {settings}",
        "Write the group's tags in backstop.yaml as it subscribes: what its filter leaves out is else called lost.",
    )  # fmt: skip


def read_expression(expression: str) -> frozenset[str] | None:
    """The tags of a subscription; null: every message."""
    parts = frozenset(part.strip() for part in expression.split("||") if part.strip())
    return None if not parts or "*" in parts else parts


def _allows(perm: int) -> str:
    return ("neither read nor write", "write only", "read only", "read and write")[(perm & (READ | WRITE)) >> 1]
