"""Text of ours within another protocol's headers, as JSON: written so that any text stays whole, read so that anything is."""

from __future__ import annotations

import json

from backstop.model.errors import ContractBroken
from backstop.model.read_json import read_json

_AS_IT_IS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ESCAPED = json.JSONEncoder(separators=(",", ":"))


def headers_as_json(headers: dict[str, str]) -> bytes:
    """Text to text; half a surrogate, which a program may have written into our header of headers, stays as its escape."""
    try:
        return _AS_IT_IS.encode(headers).encode()
    except UnicodeEncodeError:
        return _ESCAPED.encode(headers).encode()


def json_object(text: str | None) -> dict[str, str]:
    """The texts of an object that is written as JSON; none where it is not one."""
    try:
        found = read_json(text or "{}")
    except ValueError:
        return {}
    return {n: v for n, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def json_text(written: str | None) -> str | None:
    """Text written as JSON; what is not (another program's) is taken as it is."""
    if written is None:
        return None
    try:
        found = read_json(written)
    except ValueError:
        return written
    return found if isinstance(found, str) else written


def not_sent(what: str, next_step: str) -> ContractBroken:
    """The error of a message that the broker's protocol cannot carry."""
    return ContractBroken(what, unaffected="It was not sent.", next_step=next_step)
