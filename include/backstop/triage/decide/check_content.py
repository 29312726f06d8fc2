"""Compares a new content with what is known of its topic: JSON, the topic's JSON Schema, or the shape of other contents (pure).

It advises who edits a message. Which contents a consumer takes is the consumer's to say; nothing is refused here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Literal

from backstop.model.read_json import read_json

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
    except ValueError as error:
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
    except ValueError:
        return _NOT_JSON


def _parse(content: bytes) -> Any:
    """ValueError also for what Python alone takes for JSON, for a key that stands twice, because parsers differ in which they keep,
    and for a number that most of them read as infinite."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice = next(name for name, times in Counter(n for n, _ in pairs).items() if times > 1)
            raise ValueError(f"the key {_cut(json.dumps(twice))} stands twice in one object")
        return made

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number in JSON")

    def finite(text: str) -> float:
        if isinf(number := float(text)):
            raise ValueError(f"a number is too large for most programs: {_cut(text)}")
        return number

    def whole(text: str) -> int:
        finite(text)
        return int(text)

    return read_json(
        content.decode(),
        object_pairs_hook=once,
        parse_constant=refuse,
        parse_float=finite,
        parse_int=whole,
    )


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
    except ArithmeticError:
        yield _error("", "A number is too large or too small to be compared with the schema.")


def _against_shape(value: Any, others: Sequence[Any]) -> Iterator[ContentFinding]:
    differences = _differences("$", [value], [[one] for one in others], len(others))
    for number, (where, what) in enumerate(differences):
        if number == MOST:
            yield ContentFinding("warning", "", f"More than {MOST} places differ.")
            return
        yield ContentFinding("warning", where, what)


def _differences(
    where: str, mine: Sequence[Any], theirs: Sequence[Sequence[Any]], every: int, depth: int = 0
) -> Iterator[tuple[str, str]]:
    """What stands at one place, and beneath it where both sides have something there. `theirs`: of each other content that has
    this place; `every`: how many others there are. All members of a list stand at one place."""
    kinds = {_KINDS[type(one)] for one in mine}
    known = {_KINDS[type(one)] for values in theirs for one in values}
    if kinds - known:
        yield where, f"is {_listed(kinds)}; in the others {_listed(known)}"
    if depth == _DEPTH:
        return
    inner, beside = _parts(mine), [_parts(values) for values in theirs]
    for part in sorted({*inner, *(part for parts in beside for part in parts)}):
        place = where + _cut(part)
        having = [parts[part] for parts in beside if part in parts]
        if part in inner and having:
            yield from _differences(place, inner[part], having, every, depth + 1)
        elif part in inner:
            yield place, f"is in none of the {every} others"
        elif len(having) == every:
            yield place, f"is missing; all {every} others have it"


def _parts(values: Sequence[Any]) -> dict[str, list[Any]]:
    """What stands in objects by its key, after a dot, and what stands in lists."""
    found: dict[str, list[Any]] = {}
    for value in values:
        if isinstance(value, dict):
            for name, one in value.items():
                found.setdefault(f".{name}", []).append(one)
        elif isinstance(value, list) and value:
            found.setdefault("[]", []).extend(value)
    return found


def _listed(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))


def _cut(text: str) -> str:
    """Short, and without halves of characters, which JSON can name and no answer can hold."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short.encode(errors="replace").decode()
