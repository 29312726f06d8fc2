"""A remoting command as bytes and back: JSON headers and binary ones, and the signature of a login.

A frame is its length, the kind and length of its header, the header and a body.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import word

MAX_FRAME = 64 * 1024 * 1024
"""Four times what the broker itself takes. A longer one is not from a broker."""
ANSWER, ONEWAY = 1, 2
_VERSION = 485
"""5.3.3. Above 4.9.3 every field of a request is signed."""
_LANGUAGE, _LANGUAGE_CODE = "PYTHON", 3
_JSON, _BINARY = 0, 1
_TO_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_LENGTHS = struct.Struct(">II")
_BINARY_HEAD = struct.Struct(">hBhiii")
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")

Field = str | int | bool | None
"""A value of a request's header; null is left out."""


class Malformed(Exception):
    """The other side does not speak the remoting protocol."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Those of one `lane` are executed one after another; the broker's threads change the order of others."""

    code: int
    ext: Mapping[str, Field] = field(default_factory=dict)
    body: bytes = b""
    lane: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One frame that came: an answer to a request of ours, or something that the broker asks or tells (a push)."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    ext: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & ANSWER)

    @property
    def wants_answer(self) -> bool:
        return not self.flag & (ANSWER | ONEWAY)

    def said(self) -> str:
        """The code's word and the remark's first line."""
        first = (self.remark or "").strip().partition("\n")[0][:500]
        return f"{word(self.code)}: {first}" if first else word(self.code)

    def number(self, name: str) -> int:
        """A number of the header. Raises Malformed where there is none."""
        try:
            return int(self.ext[name])
        except (KeyError, ValueError) as error:
            raise Malformed(
                f"{word(self.code)} has no number {name!r}: {self.ext.get(name, '')[:40]!r}"
            ) from error

    def json(self) -> fastjson.Value:
        """The body, in the broker's dialect. Raises Malformed."""
        try:
            return fastjson.read(self.body.decode())
        except ValueError as error:
            raise Malformed(f"the body of {word(self.code)} is not JSON: {error}") from error


Answer = Command


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """Signs requests; never shown."""

    access: str
    secret: str

    def sign(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields with who asks and the HMAC over all values, in the order of their names, and the body."""
        signed = {**ext, "AccessKey": self.access}
        content = "".join(signed[name] for name in sorted(signed)).encode() + body
        digest = hmac.new(self.secret.encode(), content, hashlib.sha1).digest()
        return {**signed, "Signature": base64.b64encode(digest).decode()}


def encode(
    request: Request,
    opaque: int,
    *,
    login: Login | None = None,
    flag: int = 0,
    remark: str | None = None,
    binary: bool = False,
) -> bytes:
    """One frame. Raises UnicodeEncodeError for text that is none."""
    ext = {
        name: value
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in request.ext.items()
        if value is not None
    }
    if login is not None:
        ext = login.sign(ext, request.body)
    if binary:
        head, kind = _binary_head(request.code, opaque, flag, remark, ext), _BINARY
    else:
        command = {
            "code": int(request.code),
            "language": _LANGUAGE,
            "version": _VERSION,
            "opaque": opaque,
            "flag": flag,
            "extFields": ext,
            "serializeTypeCurrentRPC": "JSON",
        }
        if remark is not None:
            command["remark"] = remark
        head, kind = _TO_JSON(command).encode(), _JSON
    return b"".join(
        (
            _LENGTHS.pack(4 + len(head) + len(request.body), kind << 24 | len(head)),
            head,
            request.body,
        )
    )


def _binary_head(
    code: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str]
) -> bytes:
    said = (remark or "").encode()
    fields = []
    for name, value in ext.items():
        key, text = name.encode(), value.encode()
        fields += [_SHORT.pack(len(key)), key, _INT.pack(len(text)), text]
    written = b"".join(fields)
    head = _BINARY_HEAD.pack(code, _LANGUAGE_CODE, _VERSION, opaque, flag, len(said))
    return head + said + _INT.pack(len(written)) + written


def decode(frame: bytes | bytearray | memoryview) -> Command:
    """A frame without its first four bytes. Raises Malformed."""
    if len(frame) < 4:
        raise Malformed(f"a frame of {len(frame)} bytes")
    (lengths,) = _INT.unpack_from(frame)
    kind, length = lengths >> 24 & 0xFF, lengths & 0xFFFFFF
    if length > len(frame) - 4:
        raise Malformed(f"a header of {length} bytes in a frame of {len(frame)}")
    head, body = bytes(frame[4 : 4 + length]), bytes(frame[4 + length :])
    try:
        if kind == _JSON:
            return _read_json(head, body)
        if kind == _BINARY:
            return _read_binary(head, body)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise Malformed(f"a header that cannot be read: {type(error).__name__}: {error}") from error
    raise Malformed(f"a header of the kind {kind}")


def _read_json(head: bytes, body: bytes) -> Command:
    found = fastjson.read(head.decode())
    if not isinstance(found, dict):
        raise Malformed("a header that is not an object")
    ext = found.get("extFields") or {}
    remark = found.get("remark")
    texts = {
        name: value if isinstance(value, str) else str(value)
        for name, value in ext.items()
        if value is not None
    }
    return Command(
        int(found["code"]),
        int(found["opaque"]),
        int(found.get("flag", 0)),
        None if remark is None else str(remark),
        texts,
        body,
    )


def _read_binary(head: bytes, body: bytes) -> Command:
    code, _, _, opaque, flag, said = _BINARY_HEAD.unpack_from(head)
    at = _BINARY_HEAD.size
    remark, at = _text(head, at, said) if said > 0 else (None, at)
    (length,) = _INT.unpack_from(head, at)
    at += 4
    if length < 0 or at + length > len(head):
        raise Malformed(f"fields of {length} bytes in a header of {len(head)}")
    end, ext = at + length, {}
    while at < end:
        (size,) = _SHORT.unpack_from(head, at)
        name, at = _text(head, at + 2, size)
        (size,) = _INT.unpack_from(head, at)
        ext[name], at = _text(head, at + 4, size)
    return Command(code, opaque, flag, remark, ext, body)


def _text(head: bytes, at: int, size: int) -> tuple[str, int]:
    if size < 0 or at + size > len(head):
        raise Malformed(f"a text of {size} bytes in a header of {len(head)}")
    return head[at : at + size].decode(), at + size


class Reader:
    """Cuts what arrives into commands."""

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self._held, self._at, self._max = bytearray(), 0, max_frame

    def feed(self, data: bytes | memoryview) -> None:
        if self._at:
            del self._held[: self._at]
            self._at = 0
        self._held += data

    def next(self) -> Command | None:
        """The next whole command; null: more bytes are needed. Raises Malformed, a length that cannot be at once."""
        held, at = self._held, self._at
        if len(held) - at < 4:
            return None
        (length,) = _INT.unpack_from(held, at)
        if not 4 <= length <= self._max:
            raise Malformed(f"a frame of {length} bytes, and 4 to {self._max} can be")
        if len(held) - at < 4 + length:
            return None
        self._at = at + 4 + length
        with memoryview(held) as whole:
            return decode(whole[at + 4 : self._at])
