"""Says what a text would be without all that differs from one letter to the next: its template, and the template's name.

A pure function: the same text has the same template in every run and on every executor. What one text cannot tell (is this
word a name?) is left in; find_patterns.py looks at many.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

from backstop.triage.causes.mask_slots import SLOT, mask_line, own_words
from backstop.triage.causes.screen import Screen
from backstop.triage.causes.shorten_traces import shorten

VERSION = 1
"""Moves when the same text may get another template: open letters are then classified again."""
HEAD, TAIL = 8_192, 2_048
"""Characters that are read of a text: its beginning, and its end, where a chain of errors has its root."""
TEMPLATE = 1_500
"""Characters that a template keeps; longer ones keep their beginning and their end."""
EMPTY = "(no text)"
BETWEEN = " || "
"""Stands between the broker's words and the consumer's."""
_CONTROL = re.compile(
    r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ue000-\ue009]"
)
_MARKS = re.compile(r"<(name|any|\*)>")
"""Text that looks like a mark of ours."""
_LEFT = re.compile(
    r"[0-9]{8,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{0,12}"
    r"|[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,2000}\.[A-Za-z0-9][A-Za-z0-9.\-]{0,200}"
)
"""What must not be in a template, whatever stood around it: templates are kept and shown for longer than letters."""
_MAY_BE_LEFT = Screen([r"@|[0-9]{8}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-"])
"""Every text that _LEFT matches has it."""
_WORD = re.compile(r"[^\W\d_]")
_OWN_WORDS = 12
"""Words that name a text of which no word is left."""
_JSON_START = re.compile(r"[{\[](?=\s{0,20}[\"'{\[}\]])")
_SAYS_CODE = ("code", "error_code", "errorCode")
_SAYS_WHAT = (
    "error",
    "err",
    "exception",
    "cause",
    *_SAYS_CODE,
    "type",
    "reason",
    "status",
    "title",
    "error_description",
    "__type",
)
_TEXT = ("message", "msg", "detail", "description")


class Shape(NamedTuple):
    """What a text is once its slots are out. `fingerprint` is the template's name, marked with the version."""

    template: str
    fingerprint: str


def fingerprint(text: str) -> Shape:
    """Any text at all: NUL, lone surrogates and control characters do no harm, and only HEAD + TAIL of it are read."""
    return _shape(bound(text))


def shape_of(cause: str, error: str) -> Shape:
    """Of what the broker and the consumer said together."""
    if not (cause and error):
        return fingerprint(cause or error)
    template = _cut(fingerprint(cause).template + BETWEEN + fingerprint(error).template)
    return Shape(template, name_of(template))


def parts_of(template: str) -> tuple[str, str]:
    """A template's part of the broker and that of the consumer."""
    cause, _, error = template.partition(BETWEEN)
    return cause, error


@lru_cache(maxsize=16_384)
def name_of(template: str, mark: str = "") -> str:
    """The fingerprint of a template; `mark` sets apart causes that share it."""
    text = json.dumps([template, mark] if mark else [template], ensure_ascii=True)
    return f"f{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def bound(text: str) -> str:
    """What is read of a text."""
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n{text[-TAIL:]}"
    return text.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=16_384)
def _shape(text: str) -> Shape:
    readable = _MARKS.sub(r"\1", _CONTROL.sub(" ", text))
    masked = mask_line(shorten(_take_json(readable)))
    if masked and not _WORD.search(
        masked
    ):  # a bare document or quote: all of them would be one cause
        masked = f"{masked} {own_words(readable, _OWN_WORDS)}".strip()
    if _MAY_BE_LEFT.may_match(masked):
        masked = _LEFT.sub(SLOT, masked)
    template = _cut(masked) or EMPTY
    return Shape(template, name_of(template))


def _cut(template: str) -> str:
    return (
        template
        if len(template) <= TEMPLATE
        else f"{template[: TEMPLATE - 400]} ... {template[-390:]}"
    )


DEPTH = 8
"""How deep an error may lie in a document: an error of an error of an error."""


def _take_json(text: str) -> str:
    """Documents inside the text become what they say of an error; a whole document also keeps its message."""
    if "{" not in text and "[" not in text:
        return text
    parts: list[str] = []
    at, decoder = 0, json.JSONDecoder()
    for _ in range(50):
        found = _JSON_START.search(text, at)
        if found is None:
            break
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        parts += [text[at : found.start()], _said_in(value)]
        at = end
    return "".join(parts) + text[at:]


def _said_in(value: Any, depth: int = 0) -> str:
    if depth > DEPTH:
        return SLOT
    if isinstance(value, list):
        return (
            SLOT
            if not (value and isinstance(value[0], dict))
            else f"[{_said_in(value[0], depth + 1)}]"
        )
    if not isinstance(value, dict):
        return SLOT
    inner = value.get("error") or value.get("fault") or value.get("errors")
    if isinstance(inner, list) and all(isinstance(one, str) for one in inner):
        inner = {"error": "; ".join(inner[:3])}
    if isinstance(inner, dict | list):
        return _said_in(inner, depth + 1)
    kept = []
    for key in (*_SAYS_WHAT, *_TEXT):
        said = value.get(key)
        if isinstance(said, str) and said:
            kept.append(f"{key}{'=' if key in _SAYS_CODE else ': '}{said[:300]}")
        elif (
            isinstance(said, int) and not isinstance(said, bool) and key in (*_SAYS_CODE, "status")
        ):
            kept.append(f"{key}={said}")
    return f"json({'; '.join(kept)})" if kept else SLOT
