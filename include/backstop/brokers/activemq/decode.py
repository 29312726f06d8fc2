"""Writes messages as STOMP headers and reads them back: what the broker wrote stays apart from what the producer wrote."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

from backstop.brokers.activemq.frames import Frame
from backstop.brokers.activemq.names import Names, bare
from backstop.brokers.foreign_text import headers_as_json, json_object, json_text, not_sent
from backstop.brokers.protocol import DeadLetter, DeadLetterRef
from backstop.model.records import ID_HEADER, Message, id_in

TAG, KEY, MORE, ERROR, DELIVERIES = (
    "backstop-tag",
    "backstop-key",
    "backstop-headers",
    "backstop-error",
    "backstop-deliveries",
)
"""Headers of ours in a frame: tag, partition key, further headers as JSON, and what our consumers write to a dead letter."""
CAUSE, ORIGIN = "dlqDeliveryFailureCause", "original-destination"

BROKERS_OWN = frozenset(
    {
        "ack",
        "amq-msg-type",
        "browser",
        "content-length",
        "correlation-id",
        "destination",
        "expires",
        "id",
        "message-id",
        "original-destination",
        "originalExpiration",
        "dlqDeliveryFailureCause",
        "originalDeliveryMode",
        "persistent",
        "priority",
        "receipt",
        "receipt-id",
        "redelivered",
        "reply-to",
        "selector",
        "subscription",
        "timestamp",
        "transaction",
        "transformation",
        "transformation-error",
        "type",
    }
)
_BROKERS_PREFIXES = ("JMS", "AMQ_", "activemq.", "scheduledJobId")
_OURS = frozenset({TAG, KEY, MORE, ERROR, DELIVERIES})
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_JAVAS = re.compile(rb"\xc0\x80|\xed[\xa0-\xbf]")
_DELIVERIES = re.compile(r"Delivery\[(\d+)\]")
_START = datetime(1970, 1, 1, tzinfo=UTC)


def _brokers(name: str) -> bool:
    return name in BROKERS_OWN or name.startswith(_BROKERS_PREFIXES)


def headers_of(message: Message) -> dict[str, str]:
    """The message as headers of a frame. Raises ContractBroken, UnicodeEncodeError.

    A header whose name or value another client could not read goes into one header, as JSON.
    """
    if not message.message_id:
        raise not_sent("The message has no id.", "Give it the business key of its stub.")
    headers, more = {ID_HEADER: message.message_id}, {}
    for name, value in {**message.headers, ID_HEADER: message.message_id}.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise not_sent("A header is not text.", "Write header values as text.")
        (name + value).encode()  # lone surrogates are no text
        if "\x00" in value or not _PLAIN.fullmatch(name) or _brokers(name) or name in _OURS:
            more[name] = value
        else:
            headers[name] = value
    if ID_HEADER in more:
        del headers[ID_HEADER]
    for name, text in ((TAG, message.tag), (KEY, message.partition_key)):
        if text is not None:
            text.encode()
            # JSON text: a NUL or a line end in it would break other clients' frames.
            headers[name] = json.dumps(text)
    if more:
        headers[MORE] = json.dumps(more)
    return headers


def own_headers(frame: Frame) -> dict[str, str]:
    """What the producer wrote."""
    headers = {
        name: value
        for name, value in frame.headers.items()
        if not _brokers(name) and name not in _OURS
    }
    return {**headers, **json_object(frame.headers.get(MORE))}


def brokers_headers(frame: Frame) -> dict[str, str]:
    """What the broker wrote, by its own names, without what only carries the frame."""
    carried = ("content-length", "subscription", "ack")
    return {
        name: value
        for name, value in frame.headers.items()
        if _brokers(name) and name not in carried
    }


def content_of(frame: Frame) -> bytes:
    """The body. Java writes a NUL in a text as two bytes and a character beyond the first plane as two characters: no UTF-8."""
    if not frame.text or not _JAVAS.search(frame.body):
        return frame.body
    try:
        text = frame.body.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode()
    except UnicodeError:
        return frame.body  # no text of Java's: as it came


def message_of(frame: Frame, topic: str) -> Message:
    """The message of a topic; one without a readable id has an empty one, which the consumer's contract check refuses."""
    headers = own_headers(frame)
    tag, key = (json_text(frame.headers.get(name)) for name in (TAG, KEY))
    return Message(topic, headers.get(ID_HEADER, ""), content_of(frame), headers, tag, key)


def stored_at(frame: Frame) -> datetime | None:
    """The time on the message, the broker's where it stamps them (docs/brokers/activemq.md)."""
    written = frame.headers.get("timestamp", "")
    milliseconds = _number(written, 14)  # the year 5138: clients may write any text there
    return None if milliseconds is None else _START + timedelta(milliseconds=milliseconds)


def came_from(frame: Frame, names: Names, queue: str) -> tuple[str | None, str | None]:
    """(topic, group) of an entry of a dead-letter queue."""
    source = names.source_of_dead_letters(queue)
    if source is None:
        source = bare(frame.headers.get(ORIGIN, ""))
    return names.read_queue(source)


def ref_of(frame: Frame, names: Names, queue: str) -> DeadLetterRef:
    topic, group = came_from(frame, names, queue)
    return DeadLetterRef(
        group, topic, id_in(own_headers(frame)), frame.headers.get("message-id", "")
    )


def letter_of(frame: Frame, names: Names, queue: str) -> DeadLetter:
    """The entry, whole."""
    topic, group = came_from(frame, names, queue)
    headers = own_headers(frame)
    cause = frame.headers.get(CAUSE, "")
    counted = frame.headers.get(DELIVERIES) or next(iter(_DELIVERIES.findall(cause)), "")
    message_id = headers.get(ID_HEADER) or None
    return DeadLetter(
        queue=queue,
        broker_id=frame.headers.get("message-id", ""),
        group=group,
        topic=topic,
        message_id=message_id,
        content=content_of(frame),
        headers=headers_as_json(headers),
        properties=brokers_headers(frame),
        cause=cause,
        error=json_text(frame.headers.get(ERROR)) or "",
        deliveries=_number(counted, 9),
        tag=json_text(frame.headers.get(TAG)),
        partition_key=json_text(frame.headers.get(KEY)),
        invalid=None
        if message_id and topic
        else "it carries no message id"
        if topic
        else "it names no topic of ours",
    )


def _number(text: str, digits: int) -> int | None:
    """The number of at most so many digits; null for anything else that a foreign client may have written."""
    return int(text) if text.isdecimal() and len(text) <= digits else None
