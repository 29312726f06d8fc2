"""Removes the quotes around an error's message, so that it is not masked as a value: `msg="no such account"`.

That is text after a key such as `msg`, and the only argument of an exception as Python prints it. Any other quoted text is a
value.
"""

from __future__ import annotations

import re

from backstop.triage.causes.screen import Screen
from backstop.triage.causes.vocabulary import is_kind

SAYS_WHAT = frozenset(
    {
        "error",
        "err",
        "errors",
        "code",
        "errcode",
        "error_code",
        "errorcode",
        "sqlstate",
        "reason",
        "exception",
        "cause",
        "type",
        "kind",
        "status",
        "msg",
        "message",
    }
)
"""Keys whose value, in words, is a message."""
SAYS_CODE = frozenset(
    {"code", "errcode", "error_code", "errorcode", "errno", "sqlstate", "status_code"}
)
"""Keys whose number is a code."""
_KEY = "|".join(sorted(SAYS_WHAT | SAYS_CODE, key=len, reverse=True))
_TEXT = r"[bu]?(?P<text>\"(?:[^\"\\\n]|\\.){0,1000}\"|'(?:[^'\\\n]|\\.){0,1000}')"
_SAID = re.compile(
    rf"(?<![\w.\-])(?P<quote>[\"']?)(?P<key>{_KEY})(?P=quote)(?P<equals>\s?[:=]\s?){_TEXT}",
    re.IGNORECASE,
)
_RAISED = re.compile(rf"(?<![\w.$])(?P<kind>[A-Za-z_][\w.$]{{0,200}})\({_TEXT},?\)")
_SCREEN = Screen([r"[:=]\s?[bBuU]?[\"']", r"\([bu]?[\"']"])
"""What every text has that _SAID, and _RAISED, matches."""
STILL_SAID = re.compile(rf"(?<![\w.\-])(?:{_KEY})\s?[:=]\s?(?!<\*>)[^\s,;)\]}}]", re.IGNORECASE)
"""A key of errors whose value is no slot."""


def unquote_messages(text: str) -> str:
    """`text`: one line."""
    may_have = _SCREEN.may_match(text)
    if 0 in may_have:
        text = _SAID.sub(lambda found: found["key"] + found["equals"] + found["text"][1:-1], text)
    # A quote that was around it may be gone now; none has come.
    return _RAISED.sub(_unquote_raised, text) if 1 in may_have else text


def _unquote_raised(found: re.Match[str]) -> str:
    """The key of a KeyError is a value; what other errors say is text."""
    kind, text = found["kind"], found["text"][1:-1]
    return (
        f"{kind}: {text}" if text and is_kind(kind) and not kind.endswith("KeyError") else found[0]
    )
