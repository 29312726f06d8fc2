"""Reads a stream entry back into a message; what cannot be read is left empty, never guessed."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams.keys import offset_of
from backstop.model.read_json import read_json
from backstop.model.records import Message, Position, id_in

LAST_OFFSET = 2**63 - 1
UNREADABLE_ID = ""
"""The id of an entry without a readable id header: the consumer's contract check refuses it."""


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers that are text to text; none when the field is no JSON object."""
    try:
        found = read_json(raw)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def received(
    topic: str, queue: int, entry_id: bytes, fields: Sequence[bytes], epoch: str, deliveries: int
) -> Received:
    """An entry as the consumer gets it. `epoch` is for an entry that carries none (foreign)."""
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
    position = (
        Position(queue, offset, _text(found, b"epoch") or epoch) if offset < LAST_OFFSET else None
    )
    return Received(message, position, f"{queue}/{entry_id.decode()}", deliveries)


def _text(found: dict[bytes, bytes], name: bytes) -> str | None:
    value = found.get(name)
    return None if value is None else value.decode(errors="replace")
