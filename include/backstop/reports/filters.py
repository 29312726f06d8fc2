"""Reads filters as people type them: `topic:orders group:billing category:poison since:2h "id:two words"` (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import PydanticCustomError

from backstop.config.durations import parse
from backstop.model.errors import ConfigurationError

_TOKEN = re.compile(
    r'(?P<name>[a-z_]+):(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))|(?P<space>\s+)|(?P<other>\S+)'
)
LONGEST = 4_000
"""Characters of a filter: a topic, a group and an id of the longest, each of whose characters is quoted, and the short ones."""
_LARGEST = 2**63 - 1
INTEGERS = frozenset({"cause", "case", "batch", "run", "plan", "send"})
"""Qualifiers whose value is a number of ours."""
NONE = "none"
"""Of `cause` (read as 0) and `category`: rows without one."""


def read_filter(
    text: str, allowed: Sequence[str], choices: Mapping[str, Sequence[str]] = {}
) -> dict[str, Any]:
    """Qualifier -> value, null for each that is not given. ConfigurationError says what is wrong with the text."""
    found: dict[str, Any] = dict.fromkeys(allowed)
    if len(text) > LONGEST or "\x00" in text:
        raise _refused(
            "The filter is too long, or has a character that no value can have.", allowed
        )
    for token in _TOKEN.finditer(text):
        if token["space"] is not None:
            continue
        if token["other"] is not None:
            raise _refused(f"{token['other']!r} is no filter.", allowed)
        name = token["name"]
        if name not in found:
            raise _refused(f"There is no filter {name!r} here.", allowed)
        if found[name] is not None:
            raise _refused(f"The filter {name!r} is given twice.", allowed)
        value = (
            token["plain"]
            if token["plain"] is not None
            else re.sub(r"\\(.)", r"\1", token["quoted"])
        )
        found[name] = _value(name, value, allowed, choices)
    return found


def _value(
    name: str, text: str, allowed: Sequence[str], choices: Mapping[str, Sequence[str]]
) -> Any:
    if name in choices and text not in choices[name]:
        raise _refused(
            f"{name}:{text}: there is no such value; there are {', '.join(choices[name])}.", allowed
        )
    if name == "cause" and text == NONE:
        return 0
    if name in INTEGERS:
        if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _LARGEST:
            raise _refused(f"{name}:{text}: that is no number of ours.", allowed)
        return int(text)
    if name == "since":
        return _since(text, allowed)
    if name == "day":
        try:
            return datetime.strptime(text, "%Y-%m-%d").date()
        except ValueError:
            raise _refused(f"day:{text}: write it as 2026-11-24.", allowed) from None
    return text


def _since(text: str, allowed: Sequence[str]) -> timedelta:
    try:
        ago = parse(text)
    except PydanticCustomError:
        ago = None
    if ago is None or not timedelta(0) < ago <= timedelta(days=3650):
        raise _refused(f"since:{text}: write how long ago, as 30m, 2h or 7d.", allowed)
    return ago


def _refused(what: str, allowed: Sequence[str]) -> ConfigurationError:
    names = ", ".join(f"{name}:…" for name in allowed)
    next_step = f"Filter by {names}." if names else "Leave the filter out."
    return ConfigurationError(what, unaffected="Nothing was read.", next_step=next_step)
