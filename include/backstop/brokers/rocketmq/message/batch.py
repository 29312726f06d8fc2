"""Writes many messages for one queue as the body of one request: stored together or not at all, in this order.

Tried with 5.3.3: ten times as many messages a second as single requests of which one in a queue is under way, which is what it
takes to keep their order (17 of 2,000 pipelined sends to one queue changed places). The request's own properties stay empty:
a UNIQ_KEY there would replace the key of each message. Not for retry topics nor for delayed messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_HEAD = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")


def write_batch(messages: Iterable[tuple[str, bytes]]) -> bytes:
    """The body of a SEND_BATCH for (properties as `write_properties` gives them, content)."""
    parts: list[bytes] = []
    for properties, content in messages:
        written = properties.encode()
        size = _HEAD.size + len(content) + _SHORT.size + len(written)
        parts += (
            _HEAD.pack(size, 0, 0, 0, len(content)),
            content,
            _SHORT.pack(len(written)),
            written,
        )
    return b"".join(parts)
