"""Reads the broker's JSON dialect: numbers and whole objects may stand where JSON has a text as a key.

Standard JSON goes through the standard library; only what it refuses is read here, token by token.
"""

from __future__ import annotations

import json
import re
from typing import Any

from backstop.model.read_json import read_json

Value = Any
"""What JSON gives; a key that was a number is its text, one that was an object is the tuple of its sorted items."""
MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null', re.DOTALL
)
_MAX_DIGITS = 400
"""No number of a broker is longer, and Python's own limit on digits is an error of another kind."""


def read(text: str) -> Value:
    """The value that the text is. Raises ValueError."""
    try:
        return read_json(text)
    except ValueError:
        value, at = _value(text, 0, 0)
    at = _skip(text, at)
    if at != len(text):
        raise ValueError(f"something follows the value at {at}: {text[at : at + 20]!r}")
    return value


def members(key: object) -> dict[str, Value]:
    """What a key that was an object holds, whichever way the broker wrote it. Raises ValueError."""
    found = read(key) if isinstance(key, str) else dict(key) if isinstance(key, tuple) else None
    if not isinstance(found, dict):
        raise ValueError(f"a key that is not an object: {str(key)[:40]!r}")
    return found


def _value(text: str, at: int, depth: int) -> tuple[Value, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"it is more than {MAX_DEPTH} levels deep")
    at = _skip(text, at)
    opening = text[at : at + 1]
    if opening == "{":
        return _object(text, at + 1, depth + 1)
    if opening == "[":
        return _array(text, at + 1, depth + 1)
    found = _TOKEN.match(text, at)
    if found is None or (opening != '"' and found.end() - at > _MAX_DIGITS):
        raise ValueError(f"no value at {at}: {text[at : at + 20]!r}")
    return read_json(found.group(), strict=False), found.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[Any, Value], int]:
    found: dict[Any, Value] = {}
    at = _skip(text, at)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, at = _value(text, at, depth)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"no ':' at {at}: {text[at : at + 20]!r}")
        found[_key(key)], at = _value(text, at + 1, depth)
        at, ends = _after(text, at, "}")
        if ends:
            return found, at


def _array(text: str, at: int, depth: int) -> tuple[list[Value], int]:
    found: list[Value] = []
    at = _skip(text, at)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        one, at = _value(text, at, depth)
        found.append(one)
        at, ends = _after(text, at, "]")
        if ends:
            return found, at


def _after(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Behind the ',' or the closing bracket that must come, and whether it was the bracket."""
    at = _skip(text, at)
    sign = text[at : at + 1]
    if sign not in (",", closing) or not sign:
        raise ValueError(f"no ',' or {closing!r} at {at}: {text[at : at + 20]!r}")
    return at + 1, sign == closing


def _key(value: Value) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if any(
            not isinstance(name, str) or isinstance(one, (dict, list))
            for name, one in value.items()
        ):
            raise ValueError("a key that is an object holds further objects")
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        raise ValueError("a key that is an array")
    return json.dumps(value)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
