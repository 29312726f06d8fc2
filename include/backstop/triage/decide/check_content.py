"""Compares a new content with what is known of its topic: JSON, the topic's JSON Schema, or the shape of other contents (pure).

It advises who edits a message. Which contents a consumer takes is the consumer's to say; nothing is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MOST = 20
"""Findings of one kind that are listed."""
_FEWEST = 3
"""Contents that are a shape; of fewer it is chance what they have in common."""
_DEPTH = 6
_LONGEST = 300
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class ContentFinding:
    """`severity`: an error breaks JSON or the schema; a warning says what is unlike the other contents."""

    severity: Literal["error", "warning"]
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class ContentCheck:
    """`compared_with`: what the content was compared with, in words."""

    findings: tuple[ContentFinding, ...]
    compared_with: tuple[str, ...]


def check_content(
    new: bytes,
    old: bytes | None,
    beside: Sequence[bytes],
    schema: Mapping[str, Any] | bool | None,
) -> ContentCheck:
    """`old`: what it would replace, where that is known. `beside`: contents of other messages like it."""
    findings: list[ContentFinding] = []
    compared: list[str] = []
    if not new:
        findings.append(_error("", "The content is empty."))
    elif old is not None and new == old:
        findings.append(ContentFinding("warning", "", "The content is the same as before."))
    others = [value for value in (_parsed(one) for one in beside) if value is not _NOT_JSON]
    wants_json = (
        schema is not None
        or (old is not None and _parsed(old) is not _NOT_JSON)
        or 2 * len(others) > len(beside)
    )
    if not wants_json or not new:
        return ContentCheck(tuple(findings), tuple(compared))
    compared.append("JSON")
    try:
        value = _parse(new)
    except (ValueError, RecursionError) as error:
        findings.append(_error("", f"The content is not JSON: {_cut(str(error))}."))
        return ContentCheck(tuple(findings), tuple(compared))
    if schema is not None:
        compared.append("the topic's JSON Schema")
        findings += _against_schema(value, schema)
    elif len(others) >= _FEWEST:
        compared.append(f"the shape of {len(others)} other messages")
        findings += _against_shape(value, others)
    return ContentCheck(tuple(findings), tuple(compared))


def _error(where: str, what: str) -> ContentFinding:
    return ContentFinding("error", where, what)


class _NotJson:
    pass


_NOT_JSON = _NotJson()


def _parsed(content: bytes) -> Any:
    try:
        return _parse(content)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _parse(content: bytes) -> Any:
    """ValueError also for what Python alone takes for JSON, and for a key that stands twice: parsers differ in which they keep."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {_cut(json.dumps(twice))} stands twice in one object")
        return made

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number in JSON")

    return json.loads(content.decode(), object_pairs_hook=once, parse_constant=refuse)


def _against_schema(value: Any, schema: Mapping[str, Any] | bool) -> Iterator[ContentFinding]:
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # A registry of its own: without one, a reference to another address would be fetched.
    validator = validator_for(schema)(schema, registry=Registry())
    try:
        for number, error in enumerate(validator.iter_errors(value)):
            if number == MOST:
                yield _error("", f"More than {MOST} places break the schema.")
                return
            yield _error(_cut(error.json_path), _cut(error.message))
    except Unresolvable as error:
        yield _error("", f"The schema refers to what is not in its file: {_cut(str(error))}")
    except RecursionError:
        yield _error("", "The content is nested too deep to be compared with the schema.")


def _against_shape(value: Any, others: Sequence[Any]) -> Iterator[ContentFinding]:
    mine, theirs = _shape(value), [_shape(one) for one in others]
    every = len(theirs)
    kinds: dict[str, set[str]] = {}
    times: dict[str, int] = {}
    for shape in theirs:
        for where, found in shape.items():
            kinds.setdefault(where, set()).update(found)
            times[where] = times.get(where, 0) + 1
    shown, apart = 0, set(mine) ^ set(kinds)
    for where in sorted({*mine, *kinds}):
        if any(where.startswith((f"{above}.", f"{above}[")) for above in apart):
            continue  # said of what it is in
        if where not in mine and times[where] == every:
            what = f"is missing; all {every} others have it"
        elif where in mine and where not in kinds:
            what = f"is in none of the {every} others"
        elif where in mine and mine[where] - kinds[where]:
            what = f"is {_listed(mine[where])}; in the others {_listed(kinds[where])}"
        else:
            continue
        shown += 1
        if shown > MOST:
            yield ContentFinding("warning", "", f"More than {MOST} places differ.")
            return
        yield ContentFinding("warning", where, what)


def _shape(value: Any, where: str = "$", depth: int = 0) -> dict[str, set[str]]:
    """Path -> the kinds of what stands there; all members of a list stand at one path."""
    found: dict[str, set[str]] = {where: {_KINDS[type(value)]}}
    if depth == _DEPTH:
        return found
    if isinstance(value, dict):
        parts = [(f"{where}.{_cut(name)}", one) for name, one in value.items()]
    elif isinstance(value, list):
        parts = [(f"{where}[]", one) for one in value]
    else:
        parts = []
    for path, one in parts:
        for place, kinds in _shape(one, path, depth + 1).items():
            found.setdefault(place, set()).update(kinds)
    return found


def _listed(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))


def _cut(text: str) -> str:
    """Short, and without halves of characters, which JSON can name and no answer can hold."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short.encode(errors="replace").decode()
