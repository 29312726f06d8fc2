"""Our messages as RocketMQ's properties and back: what the broker and its clients wrote stays apart from the producer's."""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import datetime

from backstop.brokers.foreign_text import json_object, json_text, not_sent
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.model.records import ID_HEADER, Message

TAG, KEY, MORE = "backstop-tag", "backstop-key", "backstop-headers"
"""Properties of ours, as JSON: a tag or partition key that RocketMQ's own property cannot hold, and such headers."""
TAGS, KEYS, UNIQUE, SHARDING, WAIT = "TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "WAIT"
RETRY_TOPIC = "RETRY_TOPIC"
"""Names the topic of a message that lies in a group's retry topic, or among its dead letters."""
MAX_PROPERTIES = 31_000
"""Bytes of all properties: a message keeps their length in 15 bits, and each redelivery and death adds some of the broker's."""
BROKERS_OWN = frozenset(
    {
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BORN_TIMESTAMP",
        "BUYER_ID",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "CLUSTER",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DELAY",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INSTANCE_ID",
        "KEYS",
        "MAX_OFFSET",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_REGION",
        "MSG_TYPE",
        "ORIGIN_MESSAGE_ID",
        "PGROUP",
        "POP_CK",
        "POP_CK_OFFSET",
        "PROPERTY_FORWARD_QUEUE_ID",
        "PUSH_REPLY_TIME",
        "REAL_QID",
        "REAL_TOPIC",
        "RECONSUME_TIME",
        "REDIRECT",
        "REPLY_TO_CLIENT",
        "RETRY_TOPIC",
        "TAGS",
        "TRACE_CONTEXT",
        "TRACE_ON",
        "TRANSACTION_CHECK_TIMES",
        "TRANSFER_FLAG",
        "TRAN_MSG",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TTL",
        "UNIQ_KEY",
        "WAIT",
        "__BORNHOST",
        "__SHARDINGKEY",
        "__transactionId__",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)
_BROKERS_PREFIXES = ("__RMQ.TRANSIENT.", "TIMER_", "__CRC32#", "%")
_OURS = frozenset({TAG, KEY, MORE})
_TAG = re.compile(r"(?!\*\Z)[^\s\x00-\x20\x7f|]+")
"""What a subscription can name: it splits at ||, trims blanks, and takes * for all."""
_CONTROL = re.compile(r"[\x00-\x02]")
_BLANK = re.compile(r"[\s\x00-\x20]")


def is_brokers(name: str) -> bool:
    """Whether this property is the broker's, or a client's of RocketMQ, and no producer's own."""
    return name in BROKERS_OWN or name.startswith(_BROKERS_PREFIXES)


def properties_of(message: Message, *, unique_key: str | None = None) -> dict[str, str]:
    """The message's properties, with a UNIQ_KEY of its own. Raises ContractBroken, UnicodeEncodeError."""
    if not message.message_id:
        raise not_sent("The message has no id.", "Give it the business key of its stub.")
    properties, more = {UNIQUE: unique_key or next_unique_key(), WAIT: "true"}, {}
    if not _BLANK.search(message.message_id):
        properties[KEYS] = message.message_id  # blanks part several keys
    for name, value in {**message.headers, ID_HEADER: message.message_id}.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise not_sent("A header is not text.", "Write header values as text.")
        (name + value).encode()  # lone surrogates are no text
        if (
            not name
            or not value
            or _CONTROL.search(name + value)
            or is_brokers(name)
            or name in _OURS
        ):
            more[name] = value
        else:
            properties[name] = value
    if message.tag is not None:
        properties |= _named(TAGS, TAG, message.tag, bool(_TAG.fullmatch(message.tag)))
    if message.partition_key is not None:
        key = message.partition_key
        properties |= _named(SHARDING, KEY, key, bool(key) and not _CONTROL.search(key))
    if more:
        properties[MORE] = json.dumps(more)
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """As they go into a request. Raises ContractBroken for more than a message can keep."""
    written = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    size = len(written.encode())
    if size > MAX_PROPERTIES:
        raise not_sent(
            f"The message's id, headers, tag and key are {size} bytes long, and RocketMQ keeps {MAX_PROPERTIES}.",
            "Put what is long into the content.",
        )
    return written


def own_headers(properties: Mapping[str, str]) -> dict[str, str]:
    """What the producer wrote."""
    headers = {
        name: value
        for name, value in properties.items()
        if not is_brokers(name) and name not in _OURS
    }
    return {**headers, **json_object(properties.get(MORE))}


def brokers_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What the broker and RocketMQ's clients wrote, by their own names."""
    return {name: value for name, value in properties.items() if is_brokers(name)}


def tag_of(properties: Mapping[str, str]) -> str | None:
    exact = json_text(properties.get(TAG))
    return exact if exact is not None else properties.get(TAGS)


def partition_key_of(properties: Mapping[str, str]) -> str | None:
    exact = json_text(properties.get(KEY))
    return exact if exact is not None else properties.get(SHARDING)


def message_of(stored: Stored, topic: str) -> Message | str:
    """The message of a topic (ours); a text: why its content cannot be read, as the end of a sentence.

    One without a readable id has an empty one, which the consumer's contract check refuses.
    """
    content, unreadable = stored.unpack()
    if content is None:
        return unreadable or "it has no content"
    headers = own_headers(stored.properties)
    return Message(
        topic,
        headers.get(ID_HEADER, ""),
        content,
        headers,
        tag_of(stored.properties),
        partition_key_of(stored.properties),
    )


class _UniqueKeys:
    """32 hexadecimal digits, as Java's client makes them: who, the milliseconds since the month began, a counter.

    RocketMQ's tools read the time in it to know where to begin to look. Who is drawn at random for each process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process, self._who, self._count = 0, "", 0
        self._month: tuple[float, float] = (0.0, 0.0)

    def next(self) -> str:
        now = time.time()
        with self._lock:
            if self._process != os.getpid():  # a forked child would go on with its parent's
                self._process, self._who = os.getpid(), secrets.token_hex(10).upper()
            if not self._month[0] <= now < self._month[1]:
                self._month = _month_of(now)
            self._count = (self._count + 1) & 0xFFFF
            return (
                f"{self._who}{int((now - self._month[0]) * 1000) & 0xFFFFFFFF:08X}{self._count:04X}"
            )


def _month_of(now: float) -> tuple[float, float]:
    """When this month began, and when the next one does, in local time as Java has it."""
    begun = datetime.fromtimestamp(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = divmod(begun.year * 12 + begun.month, 12)
    return begun.timestamp(), begun.replace(year=year, month=month + 1).timestamp()


next_unique_key = _UniqueKeys().next


def _named(theirs: str, ours: str, text: str, fits: bool) -> dict[str, str]:
    text.encode()
    return {theirs: text} if fits else {ours: json.dumps(text)}
