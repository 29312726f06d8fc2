"""Reads which message a key of another program is about; pure.

Such keys are joined without escaping, so an id may hold ':' and a key may have more than one reading. Topics, and tags where
there are any, are known from the settings: only readings that name one of them count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from backstop.model.records import Key

ReadKey = Callable[[str], tuple[Key, ...]]
"""The messages that a key may be about; none: it is not one of these keys."""

_PLACEHOLDER = re.compile(r"\{(topic|id)\}")


def dedup_listener_key(application: str, topics: Sequence[str], tags: Sequence[str]) -> ReadKey:
    """MSGDEDUP:APPLICATION:TOPIC[:TAG]:KEY, as RocketMQDedupListener joins it; a tag that is "" leaves no ':' of its own."""
    prefixes = [
        (topic, f"MSGDEDUP:{application}:{topic}:" + (f"{tag}:" if tag else ""))
        for topic in topics
        for tag in tags
    ]

    def read(key: str) -> tuple[Key, ...]:
        found = (
            Key(topic, key.removeprefix(prefix))
            for topic, prefix in prefixes
            if key.startswith(prefix) and key != prefix
        )
        return tuple(dict.fromkeys(found))

    return read


def plain_key(pattern: str, topics: Sequence[str]) -> ReadKey:
    """A pattern as "dedup:{topic}:{id}"; without {topic} there is one topic."""
    shapes = [(topic, re.compile(_shape(pattern, topic), re.DOTALL)) for topic in topics]

    def read(key: str) -> tuple[Key, ...]:
        found = ((topic, shape.fullmatch(key)) for topic, shape in shapes)
        return tuple(dict.fromkeys(Key(topic, match["id"]) for topic, match in found if match))

    return read


def dedup_listener_glob(application: str) -> str:
    """What SCAN is asked for, so that no other program's keys travel."""
    return f"MSGDEDUP:{_literal(application)}:*"


def plain_glob(pattern: str) -> str:
    """The same for a pattern; topics stay out of it: SCAN knows no alternatives."""
    return "".join(
        part if index % 2 == 0 else "*" for index, part in enumerate(_parts(pattern, _literal))
    )


def _shape(pattern: str, topic: str) -> str:
    parts = _parts(pattern, re.escape)
    filled = {"id": "(?P<id>.+)", "topic": re.escape(topic)}
    return "".join(part if index % 2 == 0 else filled[part] for index, part in enumerate(parts))


def _parts(pattern: str, escape: Callable[[str], str]) -> list[str]:
    """Fixed text, escaped, and placeholders in turn."""
    return [
        escape(part) if index % 2 == 0 else part
        for index, part in enumerate(_PLACEHOLDER.split(pattern))
    ]


def _literal(text: str) -> str:
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)
