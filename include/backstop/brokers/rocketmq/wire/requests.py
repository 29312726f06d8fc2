"""Requests to a master for messages at an offset, committed offsets and the ends of queues, and how its answers are read."""

from __future__ import annotations

from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.unavailable import unavailable

READER = "TOOLS_CONSUMER"
"""RocketMQ's own group for tools: reading as a group of ours would move what the broker shows of that group."""
SUSPEND, SUBSCRIPTION = 2, 4
"""Bits of a pull's sysFlag: hold it while there is nothing; it brings its own filter, so that no consumer needs to be there."""
NOTHING_THERE = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""What a pull says that finds no message at its offset."""


def pull(
    topic: str, queue_id: int, offset: int, limit: int, *, wait_milliseconds: int = 0
) -> Request:
    """Asks for messages from an offset on, for no group of ours; `wait_milliseconds`: how long the broker may hold it."""
    return Request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": READER,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": limit,
            "sysFlag": SUBSCRIPTION | (SUSPEND if wait_milliseconds else 0),
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_milliseconds,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        },
    )


def ask_committed(group: str, topic: str, queue_id: int) -> Request:
    """How far a group has committed; the answer says QUERY_NOT_FOUND where it never did."""
    return Request(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "setZeroIfNotFound": False,
        },
    )


def read_stats(answer: Answer, doing: str) -> list[tuple[int, int, int]]:
    """(queue, first offset, next offset) of each queue that one master has."""
    try:
        return [
            (int(fastjson.members(key)["queueId"]), int(row["minOffset"]), int(row["maxOffset"]))
            for key, row in answer.json()["offsetTable"].items()
        ]
    except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
        raise unavailable(
            doing, f"offsets that cannot be read: {type(error).__name__}: {error}"
        ) from error


def number(answer: Answer, name: str, doing: str) -> int:
    """A number of an answer's header."""
    try:
        return answer.number(name)
    except Malformed as error:
        raise unavailable(doing, str(error)) from error
