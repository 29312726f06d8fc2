"""Makes one consumer a member of its group, and reckons which queues are its own: as RocketMQ's own clients do it.

All members reckon alike from the same list, so that they share the queues without a leader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import RequestCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request

EVERY_TAG = "*"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue as RocketMQ's clients name and sort it: `topic` is RocketMQ's name, `number` the broker's."""

    topic: str
    broker: str
    number: int

    def named(self) -> dict[str, str | int]:
        """As bodies have it."""
        return {"topic": self.topic, "brokerName": self.broker, "queueId": self.number}


def allocate(queues: Sequence[MessageQueue], members: Iterable[str], me: str) -> list[MessageQueue]:
    """The queues of one topic that are `me`'s: AllocateMessageQueueAveragely, with which a Java group must agree."""
    ordered, sorted_queues = sorted(set(members)), sorted(queues)
    if me not in ordered:
        return []
    place, share, more = ordered.index(me), *divmod(len(sorted_queues), len(ordered))
    start = place * share + min(place, more)
    return sorted_queues[start : start + share + (place < more)]


def heartbeat(client: str, group: str, filters: Mapping[str, str], version: int) -> Request:
    """Says that the client is a member and what it subscribes to: RocketMQ's topic -> its filter (tags, or EVERY_TAG)."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": _subscriptions(filters, version),
    }
    body = {
        "clientID": client,
        "producerDataSet": [],
        "consumerDataSet": [consumer],
        "heartbeatFingerprint": 0,
    }
    return Request(RequestCode.HEART_BEAT, {}, _json(body))


def leave(client: str, group: str) -> Request:
    return Request(RequestCode.UNREGISTER_CLIENT, {"clientID": client, "consumerGroup": group})


def ask_members(group: str) -> Request:
    return Request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def ask_running_info(group: str, client: str) -> Request:
    """Asks another member, by way of the broker, what it is doing."""
    return Request(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": group, "clientId": client, "jstackEnable": False},
    )


def queues_in(answer: Answer) -> set[MessageQueue]:
    """The queues that a member says to have; none, where its answer cannot be read."""
    try:
        named = [fastjson.members(key) for key in answer.json()["mqTable"]]
        return {MessageQueue(one["topic"], one["brokerName"], int(one["queueId"])) for one in named}
    except (Malformed, KeyError, TypeError, ValueError):
        return set()


def running_info(
    filters: Mapping[str, str], version: int, rows: Mapping[MessageQueue, tuple[int, int, int]]
) -> bytes:
    """What a Java client tells an administrator; `rows`: for each queue what may be committed, what is pulled next, how many
    are pulled and not acknowledged. Its keys are objects, which JSON does not have."""
    table = ",".join(
        f"{_json(queue.named()).decode()}:"
        + _json(
            {
                "commitOffset": lowest,
                "cachedMsgMinOffset": lowest,
                "cachedMsgMaxOffset": following - 1,
                "cachedMsgCount": held,
                "locked": False,
                "lastLockTimestamp": 0,
                "droped": False,
                "lastPullTimestamp": 0,
                "lastConsumeTimestamp": 0,
            }
        ).decode()
        for queue, (lowest, following, held) in rows.items()
    )
    properties = {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "V5_3_3",
        "PROP_CONSUMEORDERLY": "false",
    }
    rest = _json(
        {
            "properties": properties,
            "subscriptionSet": _subscriptions(filters, version),
            "statusTable": {},
        }
    ).decode()
    return f'{rest[:-1]},"mqTable":{{{table}}}}}'.encode()


def subscription(tags: Iterable[str]) -> str:
    """A filter as RocketMQ writes it; every message where there is none, or a tag that it cannot name: then only we filter."""
    named = sorted(set(tags))
    if not all(re.fullmatch(r"(?!\*\Z)[^\s\x00-\x20\x7f|]+", tag) for tag in named):
        return EVERY_TAG
    return " || ".join(named) or EVERY_TAG


def tags_of(text: str) -> list[str]:
    """The tags of a filter written as RocketMQ does: a || b."""
    return [tag for part in text.split("||") if (tag := part.strip())]


def java_hash(text: str) -> int:
    """String.hashCode, by which the broker filters tags."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(units), 2):
        number = (31 * number + int.from_bytes(units[place : place + 2])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def _subscriptions(filters: Mapping[str, str], version: int) -> list[dict[str, object]]:
    return [
        {
            "topic": topic,
            "subString": text,
            "tagsSet": [] if text == EVERY_TAG else tags_of(text),
            "codeSet": [] if text == EVERY_TAG else [java_hash(tag) for tag in tags_of(text)],
            "subVersion": version,
            "classFilterMode": False,
            "expressionType": "TAG",
        }
        for topic, text in filters.items()
    ]


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
