"""Reads one entry of a dead-letter topic; whatever it holds is kept.

Which topic it died in, the entry says (`RETRY_TOPIC`, in two ways). Where it was there, only a look-up tells: find_origins.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from backstop.brokers.foreign_text import headers_as_json
from backstop.brokers.protocol import DeadLetter, DeadLetterRef
from backstop.brokers.rocketmq.message.names import RETRY, decode, encode_topic, topic_of_retry
from backstop.brokers.rocketmq.message.properties import (
    RETRY_TOPIC,
    brokers_properties,
    own_headers,
    partition_key_of,
    tag_of,
)
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.model.errors import ContractBroken
from backstop.model.records import ID_HEADER, Position, id_in

_START = datetime(1970, 1, 1, tzinfo=UTC)


def topic_of(stored: Stored, group: str) -> str | None:
    """The topic (ours) that the message was sent to; null: the entry names none.

    A consumer that pushes or pulls leaves the topic itself; for one that POPs the broker writes the name of the retry topic.
    """
    written = stored.properties.get(RETRY_TOPIC)
    return _topic(written, group) if written else None


@lru_cache(maxsize=1024)
def _topic(written: str, group: str) -> str | None:
    topic = topic_of_retry(written, group)
    if topic is None and not written.startswith(RETRY):
        topic = decode(written)
    return topic


@lru_cache(maxsize=1024)
def encoded(topic: str) -> str | None:
    """RocketMQ's name for a topic that an entry names; null: none can have it."""
    try:
        return encode_topic(topic)
    except ContractBroken:
        return None


def broker_id_of(broker: str, stored: Stored) -> str:
    """Names the entry forever: at the same place in a broker that was rebuilt lies another message."""
    life = stored.unique_key or str((stored.stored_at - _START) // timedelta(milliseconds=1))
    return f"{broker}/{stored.queue_id}/{stored.offset}/{life}"


def place_of(broker: str, queue_id: int) -> str:
    """Names the queue of an entry in its place."""
    return f"{broker}/{queue_id}"


def ref_of(broker: str, group: str, stored: Stored) -> DeadLetterRef:
    headers = own_headers(stored.properties)
    message_id = id_in(headers) if _id(stored, headers) else None
    place = place_of(broker, stored.queue_id), str(stored.offset)
    return DeadLetterRef(
        group,
        topic_of(stored, group),
        message_id,
        broker_id_of(broker, stored),
        stored.stored_at,
        place,
    )


def read_dead_letter(
    queue: str, broker: str, group: str, stored: Stored, position: Position | None
) -> DeadLetter:
    """The entry, whole. A content that cannot be unpacked is handed out as it is stored, and `invalid` says so."""
    headers = own_headers(stored.properties)
    content, unreadable = stored.unpack()
    message_id, topic = _id(stored, headers), topic_of(stored, group)
    wrong = [
        why
        for why in (
            None if message_id else f"it has no property {ID_HEADER}",
            None if topic else "it names no topic",
            unreadable,
        )
        if why
    ]
    return DeadLetter(
        queue=queue,
        broker_id=broker_id_of(broker, stored),
        group=group,
        topic=topic,
        message_id=message_id,
        content=stored.body if content is None else content,
        headers=headers_as_json(headers),
        properties=_brokers(stored),
        # All that it tells of why: a consumer gave it up at once (1), or it came again to the limit.
        cause=f"reconsumed {stored.reconsume_times} times" if stored.reconsume_times else "",
        # The broker counts when it gives up, so that the last delivery is counted too.
        deliveries=stored.reconsume_times or None,
        position=position,
        tag=tag_of(stored.properties),
        partition_key=partition_key_of(stored.properties),
        died_at=stored.stored_at,
        invalid="; ".join(wrong) or None,
    )


def _id(stored: Stored, headers: Mapping[str, str]) -> str | None:
    """The message's id as it came. A text that is cut off is not an id, and could begin like another message's."""
    return None if "\0" in stored.properties.get(ID_HEADER, "") else headers.get(ID_HEADER) or None


def _brokers(stored: Stored) -> dict[str, str]:
    """What the broker and RocketMQ's clients wrote; beside the properties what stands in the entry's head, by Java's names."""
    return {
        **brokers_properties(stored.properties),
        "reconsumeTimes": str(stored.reconsume_times),
        "sysFlag": str(stored.sys_flag),
        "offsetMsgId": stored.store_id,
        "bornTimestamp": stored.born_at.isoformat(),
    }
