"""Writes and reads STOMP 1.2 frames: bytes in, bytes out, nothing decoded that need not be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ESCAPES = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
_UNESCAPES = {written: plain for plain, written in _ESCAPES.items()}
_TO_ESCAPE = re.compile(r"[\\\r\n:]")
_ESCAPED = re.compile(r"\\.")
NUL = b"\x00"
LARGEST = 128 * 2**20
"""Bytes of a frame that are kept while it arrives: more than ActiveMQ sends with its own `maxFrameSize` (100 MiB)."""
BEATS, MOST_BEATS = (b"\n", b"\n\n"), 2
"""After so many heart-beats the rest of a frame does not come."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. Of a header that is there twice the first one counts."""

    command: str
    headers: Mapping[str, str]
    body: bytes = b""
    text: bool = field(default=False, compare=False)
    """Its body ended at the first NUL. The broker writes the length of bytes alone; of a text it writes none."""


class Malformed(Exception):
    """The other side does not speak STOMP."""


def encode(command: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """One frame. A body gets its length, so that it may hold any byte; CONNECT alone is written without escapes."""
    lines = [command]
    plain = command == "CONNECT"
    for name, value in headers.items():
        lines.append(f"{name}:{value}" if plain else f"{_escape(name)}:{_escape(value)}")
    if body is not None:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + (body or b"") + NUL


class Reader:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._looked = 0
        self._beats = 0
        """Heart-beats since anything else came. The broker writes none within a frame."""

    def feed(self, data: bytes) -> None:
        self._held += data
        self._beats = self._beats + 1 if data in BEATS else 0

    def next(self) -> Frame | None:
        """The next whole frame; null: more bytes are needed. Raises Malformed, also for a frame that is larger than LARGEST."""
        frame = self._cut()
        if frame is None and len(self._held) > LARGEST:
            raise Malformed(f"a frame of more than {LARGEST} bytes")
        return frame

    def _cut(self) -> Frame | None:
        held = self._held
        start = 0
        while start < len(held) and held[start] in b"\r\n":
            start += 1  # line ends between frames are the other side's signs of life
        if start:
            del held[:start]
            self._looked = 0
        end = held.find(b"\n\n", max(0, self._looked - 2))
        crlf = held.find(b"\n\r\n", max(0, self._looked - 3), end if end >= 0 else len(held))
        body_at = crlf + 3 if crlf >= 0 else end + 2
        if end < 0 and crlf < 0:
            self._looked = len(held)
            return None
        command, headers = _head(bytes(held[: body_at - 2]))
        length = headers.get("content-length", "")
        stop = body_at + int(length) if length.isdecimal() and len(length) <= 18 else -1
        if stop >= len(held) and self._beats < MOST_BEATS:
            return None
        # A property of that name, which clients in Java may write to a text, stands in place of a length and is wrong.
        text = not 0 <= stop < len(held) or held[stop] != 0
        if text and (stop := held.find(NUL, body_at)) < 0:
            return None
        frame = Frame(command, headers, bytes(held[body_at:stop]), text)
        del held[: stop + 1]
        self._looked = self._beats = 0
        return frame


def _head(head: bytes) -> tuple[str, dict[str, str]]:
    try:
        command, *lines = head.decode().rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise Malformed("headers that are not UTF-8") from error
    plain = command.strip() == "CONNECTED"
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.removesuffix("\r").partition(":")
        if colon:
            headers.setdefault(*((name, value) if plain else (_unescape(name), _unescape(value))))
    return command.strip(), headers


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found.group()], text)


def _unescape(text: str) -> str:
    return (
        _ESCAPED.sub(lambda found: _UNESCAPES.get(found.group(), found.group()), text)
        if "\\" in text
        else text
    )
