"""Makes a letter such as the database can hold it: what does not fit its column goes to `properties`, and `invalid` says so.

Other people's brokers hold anything: NUL, lone surrogates, ids of a megabyte, offsets beyond 64 bits. Content and headers
are bytes and stay as they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from backstop.brokers.protocol import DeadLetter
from backstop.model.records import ID_BYTES, TOPIC_BYTES
from backstop.model.storable_text import escaped

NAME_BYTES = TOPIC_BYTES
"""As the client checks them: with these an index entry has room."""
BROKER_ID_BYTES, QUEUE_BYTES = 512, 1300
_INT, _BIGINT = 2**31 - 1, 2**63 - 1


def is_storable(letter: DeadLetter) -> bool:
    """Cheap, and true for nearly all; of other texts than names the encoding tells, when a row is written."""
    position = letter.position
    names = f"{letter.message_id}{letter.topic}{letter.group}{letter.broker_id}"
    return (
        "\0" not in names
        and (names.isascii() or escaped(names) == names)
        and (letter.message_id is None or 0 < len(letter.message_id) <= ID_BYTES // 4)
        and (letter.topic is None or 0 < len(letter.topic) <= NAME_BYTES // 4)
        and (letter.group is None or 0 < len(letter.group) <= NAME_BYTES // 4)
        and len(letter.broker_id) <= BROKER_ID_BYTES // 4
        and (
            position is None or (0 <= position.offset <= _BIGINT and 0 <= position.queue_id <= _INT)
        )
        and (letter.deliveries is None or 0 <= letter.deliveries <= _INT)
    )


def make_storable(letter: DeadLetter) -> DeadLetter:
    """The same letter where it fits; nothing of it is lost where it does not."""
    properties = {escaped(name): escaped(value) for name, value in letter.properties.items()}
    wrong = [] if letter.invalid is None else [escaped(letter.invalid)]

    def put(name: str, value: str) -> None:
        free, number = name, 1
        while free in properties:
            number += 1
            free = f"{name} ({number})"
        properties[free] = value

    def name(what: str, value: str | None, longest: int) -> str | None:
        if value is None:
            return None
        fit = escaped(value)
        if value and fit == value and len(value.encode()) <= longest:
            return value
        wrong.append(f"its {what} cannot be stored" if value else f"its {what} is empty")
        put(what, fit)
        return None

    def text(what: str, value: str) -> str:
        fit = escaped(value)
        if fit != value:
            put(f"{what} is escaped", "yes")
        return fit

    topic, group = (
        name("topic", letter.topic, NAME_BYTES),
        name("consumer group", letter.group, NAME_BYTES),
    )
    message_id = name("message id", letter.message_id, ID_BYTES)
    broker_id = escaped(letter.broker_id)
    if len(broker_id.encode()) > BROKER_ID_BYTES:
        put("broker id", broker_id)
        broker_id = (
            "sha256:" + hashlib.sha256(letter.broker_id.encode(errors="surrogatepass")).hexdigest()
        )
    position, deliveries = letter.position, letter.deliveries
    if position is not None and not (
        0 <= position.offset <= _BIGINT and 0 <= position.queue_id <= _INT
    ):
        wrong.append("its position is not a valid place")
        put(
            "position",
            f"queue {position.queue_id} offset {position.offset} epoch {escaped(position.epoch)}",
        )
        position = None
    if position is not None:
        position = replace(position, epoch=text("epoch", position.epoch))
    if deliveries is not None and not 0 <= deliveries <= _INT:
        wrong.append("its deliveries are not a valid number")
        put("deliveries", str(deliveries))
        deliveries = None
    return letter._replace(
        broker_id=broker_id,
        topic=topic,
        group=group,
        message_id=message_id,
        position=position,
        deliveries=deliveries,
        cause=text("cause", letter.cause),
        error=text("error", letter.error),
        tag=None if letter.tag is None else text("tag", letter.tag),
        partition_key=None
        if letter.partition_key is None
        else text("partition key", letter.partition_key),
        properties=properties,
        invalid="; ".join(wrong) or None,
    )
