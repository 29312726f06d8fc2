"""The type of a handler's error: what it says may quote a message, and cases and alerts are read by many."""

import re

_TYPE = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}(?:Error|Exception|Fault|Failure|Timeout)"
)


def error_kind(error: str | None) -> str:
    """The type alone, or where to read more."""
    if not error:
        return "without an error of its handler: its workers died"
    named = _TYPE.match(error)
    return named[0] if named else "`backstop where` shows the error"
