"""Makes one consumer a member of its group, and reckons which queues are its own: as RocketMQ's own clients do it.

All members reckon alike from the same list, so that they share the queues without asking one another. Between two lists a queue
may have two members; a lock of the broker's makes the new one wait until the old one has committed and let go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backstop.brokers.rocketmq.codes import Ask
from backstop.brokers.rocketmq.frames import Request

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
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": _subscriptions(filters, version),
    }  # fmt: skip
    body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer], "heartbeatFingerprint": 0}
    return Request(Ask.HEARTBEAT, {}, _json(body))


def leave(client: str, group: str) -> Request:
    return Request(Ask.UNREGISTER, {"clientID": client, "consumerGroup": group})


def ask_members(group: str) -> Request:
    return Request(Ask.CONSUMER_IDS, {"consumerGroup": group})


def lock(client: str, group: str, queues: Iterable[MessageQueue]) -> Request:
    """Asks for queues of one broker, or keeps them; the answer names those that are the client's. Held for 60 s."""
    return Request(Ask.LOCK_QUEUES, {}, _locks(client, group, queues))


def unlock(client: str, group: str, queues: Iterable[MessageQueue]) -> Request:
    return Request(Ask.UNLOCK_QUEUES, {}, _locks(client, group, queues))


def running_info(
    client: str, filters: Mapping[str, str], version: int, rows: Mapping[MessageQueue, tuple[int, int, int]], *, locked_at: int
) -> bytes:
    """What a Java client tells an administrator; `rows`: for each queue what may be committed, what is pulled next, how many
    are in hand. Its keys are objects, which JSON has not."""
    table = ",".join(
        f"{_json(queue.named()).decode()}:" + _json({
            "commitOffset": lowest, "cachedMsgMinOffset": lowest, "cachedMsgMaxOffset": following - 1, "cachedMsgCount": held,
            "locked": True, "lastLockTimestamp": locked_at, "droped": False, "lastPullTimestamp": 0, "lastConsumeTimestamp": 0,
        }).decode()
        for queue, (lowest, following, held) in rows.items()
    )  # fmt: skip
    properties = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CLIENT_VERSION": "V5_3_3", "PROP_CONSUMEORDERLY": "false"}
    rest = _json({"properties": properties, "subscriptionSet": _subscriptions(filters, version), "statusTable": {}}).decode()
    return f'{rest[:-1]},"mqTable":{{{table}}}}}'.encode()


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
            "topic": topic, "subString": text, "tagsSet": [] if text == EVERY_TAG else tags_of(text),
            "codeSet": [] if text == EVERY_TAG else [java_hash(tag) for tag in tags_of(text)],
            "subVersion": version, "classFilterMode": False, "expressionType": "TAG",
        }
        for topic, text in filters.items()
    ]  # fmt: skip


def _locks(client: str, group: str, queues: Iterable[MessageQueue]) -> bytes:
    named = [queue.named() for queue in queues]
    return _json({"consumerGroup": group, "clientId": client, "onlyThisBroker": True, "mqSet": named})


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
