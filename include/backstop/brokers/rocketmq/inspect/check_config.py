"""Holds what a broker is set to against what the settings reckon with (pure): findings, one a line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from backstop.brokers.protocol import Finding
from backstop.config.rocketmq_delay_levels import DELIVERIES, parse_levels, retries_last

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


def check_broker(
    name: str, config: Mapping[str, str], retention: timedelta | None, levels: str, max_bytes: int
) -> list[Finding]:
    """One master's settings; `retention`: the longest that a topic is said to be kept; `levels` and `max_bytes`: the delay levels
    and the largest message that the settings reckon with."""
    return [
        _flush(name, config),
        _recovery(name, config),
        _replication(name, config),
        _retention(name, config, retention),
        _making(name, config),
        _permission(name, config),
        _levels(name, config, levels),
        _size(name, config, max_bytes),
    ]


def _flush(name: str, config: Mapping[str, str]) -> Finding:
    kind, pool = (
        config.get("flushDiskType", "unknown"),
        config.get("transientStorePoolEnable", "false"),
    )
    good = kind == "SYNC_FLUSH"
    says = f"flushDiskType {kind}" + (", transientStorePoolEnable true" if pool == "true" else "")
    if good:
        return Finding(f"{name}: flush", True, f"{says}: an acknowledged message is on disk")
    return Finding(
        f"{name}: flush",
        False,
        f"{says}: a crash may lose messages that were acknowledged",
        "Set flushDiskType=SYNC_FLUSH; until then such losses are found as LOST and sent again.",
    )


def _recovery(name: str, config: Mapping[str, str]) -> Finding:
    """What becomes of the message that a broker was writing when it was killed. Checking the body alone is not bad: our consumers
    and duties recognize such a message."""
    written, checked = (
        config.get(one, "unknown") for one in ("enabledAppendPropCRC", "forceVerifyPropCRC")
    )
    says = f"enabledAppendPropCRC {written}, forceVerifyPropCRC {checked}"
    if checked == "true" and written != "true":
        return Finding(
            f"{name}: recovery",
            False,
            f"{says}: messages are stored without the checksum that recovery demands, and a restart removes those it reads",
            "Set enabledAppendPropCRC=true, and forceVerifyPropCRC=false until no message from before that is stored.",
        )
    if checked == "true":
        return Finding(
            f"{name}: recovery", True, f"{says}: a message that was cut off by a crash is removed"
        )
    return Finding(
        f"{name}: recovery",
        True,
        f"{says}: a crash may leave the message that was being written without its properties: it becomes a dead letter",
    )


def _replication(name: str, config: Mapping[str, str]) -> Finding:
    role, needed = config.get("brokerRole", "unknown"), config.get("inSyncReplicas", "1")
    says = f"brokerRole {role}, inSyncReplicas {needed}"
    if role == "SLAVE":
        return Finding(
            f"{name}: replication",
            False,
            f"{says}: no master",
            "Let a master register under this name.",
        )
    if role == "SYNC_MASTER" and needed.isdecimal() and int(needed) > 1:
        return Finding(
            f"{name}: replication", True, f"{says}: an acknowledged message is on {needed} machines"
        )
    return Finding(
        f"{name}: replication",
        True,
        f"{says}: a machine that is lost takes messages with it that no replica has",
    )


def _retention(name: str, config: Mapping[str, str], wanted: timedelta | None) -> Finding:
    written = config.get("fileReservedTime", "")
    if not written.isdecimal():
        return Finding(
            f"{name}: retention",
            False,
            "fileReservedTime cannot be read",
            "See the broker's configuration.",
        )
    kept = timedelta(hours=int(written))
    full = config.get("diskMaxUsedSpaceRatio", "75")
    says = f"fileReservedTime {written} h, sooner when the disk is {full} % full"
    if wanted is None or kept >= wanted:
        return Finding(f"{name}: retention", True, says)
    return Finding(
        f"{name}: retention",
        False,
        f"{says}; broker_retention says {wanted.total_seconds() / 3600:g} h",
        "Raise fileReservedTime, or lower broker_retention in the policy (and backlog_horizon below it).",
    )


def _making(name: str, config: Mapping[str, str]) -> Finding:
    topics, groups = (
        config.get(f"autoCreate{what}", "unknown") for what in ("TopicEnable", "SubscriptionGroup")
    )
    good = topics == "false"
    return Finding(
        f"{name}: making topics",
        good,
        f"autoCreateTopicEnable {topics}, autoCreateSubscriptionGroup {groups}",
        ""
        if good
        else "Set autoCreateTopicEnable=false: a misspelt topic is made, and what is sent to it nobody owes.",
    )


def _permission(name: str, config: Mapping[str, str]) -> Finding:
    written = config.get("brokerPermission", "6")
    good = written.isdecimal() and int(written) & (READ | WRITE) == READ | WRITE
    return Finding(
        f"{name}: permission",
        good,
        f"brokerPermission {written} (6: read and write)",
        "" if good else "Set brokerPermission=6: until then it refuses what is read or written.",
    )


def _levels(name: str, config: Mapping[str, str], wanted: str) -> Finding:
    written = config.get("messageDelayLevel", "unknown")
    good = written.split() == wanted.split()
    return Finding(
        f"{name}: delay levels",
        good,
        f"messageDelayLevel {written}",
        ""
        if good
        else f"Write it as the broker's option delay_levels in backstop.yaml; that says {wanted}.",
    )


def _size(name: str, config: Mapping[str, str], wanted: int) -> Finding:
    written = config.get("maxMessageSize", "")
    good = written.isdecimal() and int(written) >= wanted
    return Finding(
        f"{name}: message size",
        good,
        f"maxMessageSize {written or 'unknown'}",
        ""
        if good
        else f"Lower the broker's option max_message_bytes to it; that says {wanted}, and larger pieces go twice.",
    )


def check_permissions(
    topic: str, queues: Mapping[str, tuple[int, int]], away: Sequence[str]
) -> Finding:
    """`queues`: for each broker name how many can be read, and how many written to; `away`: those without a master."""
    subject = f"topic {topic}"
    says = "; ".join(
        f"{broker}: {read} queues to read, {write} to write to"
        for broker, (read, write) in sorted(queues.items())
    )
    if away:
        return Finding(
            subject,
            False,
            f"{says}; no master of {', '.join(away)}",
            "Start it: until then nothing of the topic is read.",
        )
    if not queues or any(min(both) == 0 for both in queues.values()):
        return Finding(
            subject,
            False,
            says or "no queue",
            "Set the topic's permission to 6 (mqadmin updateTopicPerm).",
        )
    if any(written > read for read, written in queues.values()):
        do = "Make as many queues readable as writable: what is in the others comes to nobody."
        return Finding(subject, False, says, do)
    return Finding(subject, True, says)


def check_retries(
    group: str,
    levels: str,
    retry_max: int | None,
    wanted: WantedGroup,
    retry_min: int | None = None,
) -> Finding:
    """Does a message come again for as long as the policy reckons with? `retry_max`: the group's own, for consumers that name
    none; `retry_min`: at the master where it is lowest."""
    subject = f"group {group}: retries"
    known = parse_levels(levels)
    deliveries = max(
        wanted.delivery_limit, 1 + (retry_max if retry_max is not None and retry_max >= 0 else 0)
    )
    longest, shortest = retries_last(known, deliveries), retries_last(known, wanted.delivery_limit)
    says = f"up to {deliveries} deliveries over {longest}"
    if longest > wanted.retries_at_most:
        return Finding(
            subject,
            False,
            f"{says}; redelivery_horizon leaves room for {wanted.retries_at_most}",
            "Raise redelivery_horizon, or lower retryMaxTimes of the group and delivery_limit.",
        )
    if shortest <= wanted.retries_more_than:
        return Finding(
            subject,
            False,
            f"{says}; a lease and a sweep take {wanted.retries_more_than}",
            "Let the broker deliver for longer than a lease and a sweep, or it makes dead letters of what is only busy.",
        )
    fewest = retry_max if retry_min is None else retry_min
    if fewest is not None and 1 + fewest < wanted.delivery_limit:
        return Finding(
            subject,
            False,
            f"{says}; retryMaxTimes {fewest} ends sooner than delivery_limit {wanted.delivery_limit}",
            "Set retryMaxTimes of the group to delivery_limit - 1.",
        )
    return Finding(subject, True, says)


@dataclass(frozen=True, slots=True)
class Consumers:
    """Who is connected for a group."""

    number: int
    subscriptions: Mapping[str, Collection[str]]
    """RocketMQ's topic -> what they subscribe to in it."""
    pops: Sequence[str] = ()
    """What shows that messages are received by POP. RocketMQ calls such a consumer CONSUME_PASSIVELY too."""
    silent: int = 0
    """How many do not say how they receive."""

    def expressions(self, topic: str) -> list[str] | None:
        """What is subscribed to; null: nobody is connected."""
        return sorted(self.subscriptions.get(topic, ())) if self.number else None


def check_progress(group: str, consumers: Consumers, acknowledged: bool) -> Finding:
    """A group that POPs commits what it received: that is not what it acknowledged."""
    subject = f"group {group}: consumers"
    says = f"{consumers.number} connected" + (
        f", {consumers.silent} do not say how they receive" if consumers.silent else ""
    )
    if acknowledged and consumers.pops:
        return Finding(
            subject,
            False,
            f"{says}; it receives by POP ({', '.join(consumers.pops)}): what it commits is only received, and the settings call "
            "it acknowledged",
            f"Write groups.{group}.progress: received.",
        )
    return Finding(subject, True, says)


def check_group(group: str, configs: Mapping[str, Mapping[str, object]]) -> Finding:
    """What the group is set to, by the master that says it."""
    subject = f"group {group}"
    closed = [to for to, one in configs.items() if one.get("consumeEnable") is False]
    if closed:
        says = f"consumeEnable is false at {', '.join(closed)}"
        return Finding(
            subject, False, says, "Set consumeEnable=true, or its messages stay BACKLOGGED."
        )
    nowhere = [to for to, one in configs.items() if int(str(one.get("retryQueueNums", 1))) < 1]
    if nowhere:
        return Finding(
            subject,
            False,
            f"retryQueueNums is 0 at {', '.join(nowhere)}: a failed message is dropped there, although the broker accepts it back",
            "Set retryQueueNums to 1 or more.",
        )
    return Finding(subject, True, "it may consume")


def check_subscription(
    group: str, topic: str, expressions: Sequence[str] | None, wanted: WantedGroup
) -> Finding:
    """`expressions`: what the group's consumers subscribe to in the topic; null: nobody is connected."""
    subject = f"group {group}: subscription to {topic}"
    if expressions is None:
        return Finding(subject, True, "no consumer is connected, so what it takes cannot be seen")
    if not expressions:
        do = "Let them subscribe, or take the group from the topic in the settings."
        return Finding(subject, False, "its consumers do not take the topic", do)
    says = f"it takes {' or '.join(repr(one) for one in expressions)}"
    if len(expressions) > 1:
        return Finding(
            subject,
            False,
            f"{says}: consumers of one group that differ skip messages",
            "Give every consumer of the group the same subscription.",
        )
    if expressions[0].startswith("SQL92: "):
        do = "Filter by tags, or take every message: Backstop cannot tell which messages this leaves out."
        return Finding(subject, False, says, do)
    if read_expression(expressions[0]) == (None if wanted.tags is None else frozenset(wanted.tags)):
        return Finding(subject, True, says)
    settings = "every message" if wanted.tags is None else " || ".join(sorted(wanted.tags))
    return Finding(
        subject,
        False,
        f"{says}; the settings say {settings}",
        "Write the group's tags in backstop.yaml as it subscribes: what its filter leaves out is else called lost.",
    )


def read_expression(expression: str) -> frozenset[str] | None:
    """The tags of a subscription; null: every message."""
    parts = frozenset(part.strip() for part in expression.split("||") if part.strip())
    return None if not parts or "*" in parts else parts
