"""Reads a stream entry back into a message; what cannot be read is left empty, never guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha1

from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams.keys import offset_of
from backstop.model.errors import ContractBroken
from backstop.model.records import Message, Position, id_in

LAST_OFFSET = 2**63 - 1
UNREADABLE_ID = ""
"""The id of an entry without a readable id header: the consumer's contract check refuses it."""
_BROKER_ID = re.compile(r"([0-9]+)/([0-9]+-[0-9]+)#([0-9a-f]{16})")


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers that are text to text; none when the field is no JSON object."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def mark_of(fields: Mapping[bytes, bytes]) -> str:
    """Tells an entry from one that is given the same id later. `another.lua` computes the same text on the server."""
    text = b"\n".join(fields.get(name, b"") for name in (b"time", b"epoch", b"headers"))
    return sha1(text, usedforsecurity=False).hexdigest()[:16]


def entry_of(received: Received) -> tuple[int, str, str]:
    """The queue, the entry id and the mark of a received entry."""
    named = _BROKER_ID.fullmatch(received.broker_id)
    if named is None:
        raise ContractBroken(
            "This message was not received from a Redis Streams subscription.",
            unaffected="Nothing was acknowledged or handed back.",
            next_step="Give back the objects that `fetch` returned.",
        )
    return int(named[1]), named[2], named[3]


def received(
    topic: str, queue: int, entry_id: bytes, fields: Sequence[bytes], deliveries: int
) -> Received:
    """An entry as the consumer gets it."""
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    headers = headers_of(found.get(b"headers", b""))
    offset = offset_of(entry_id)
    message = Message(
        topic=topic,
        message_id=id_in(headers) or UNREADABLE_ID,
        content=found.get(b"content", b""),
        headers=headers,
        tag=_text(found, b"tag"),
        partition_key=_text(found, b"key"),
    )
    # An id beyond all offsets that a database holds is a foreign one, and no place.
    epoch = _text(found, b"epoch") or ""
    position = Position(queue, offset, epoch) if offset < LAST_OFFSET else None
    broker_id = f"{queue}/{entry_id.decode()}#{mark_of(found)}"
    return Received(message, position, broker_id, deliveries)


def _text(found: dict[bytes, bytes], name: bytes) -> str | None:
    value = found.get(name)
    return None if value is None else value.decode(errors="replace")
