"""How a column writes an id. An id that is written otherwise stands in no row of it, whatever row there is of its message."""

from __future__ import annotations

import re
from re import Pattern

WHOLE = re.compile("0|-?[1-9][0-9]*")
DIGITS = 80
"""More than any type of whole numbers has; Python refuses to read thousands."""
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WITHOUT_FRACTION = re.compile(r"numeric\([0-9]+,0\)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_POSTGRESQL: dict[str, Pattern[str]] = {
    "uuid": UUID,
    **dict.fromkeys(("smallint", "integer", "bigint"), WHOLE),
    **dict.fromkeys(("text", "citext"), re.compile(".*", re.DOTALL)),
    # Spaces at the end are the padding of one, and are cut by the other where the text is too long.
    **dict.fromkeys(("character", "character varying"), re.compile("(.*[^ ])?", re.DOTALL)),
}
"""Type of a column, of a domain what it is made of -> the ids that stand there as they are."""


def in_postgresql(kind: str, text: str) -> bool:
    """Whether a row may have exactly this text in a column of the type. Only of known types: any other may change it."""
    form = WHOLE if _WITHOUT_FRACTION.fullmatch(kind) else _POSTGRESQL.get(kind)
    return form is not None and form.fullmatch(text) is not None


def in_json(text: str, *, most: int | None = None) -> bool:
    """Whether a field has the text if it has the id: a program may have written 007 as the number 7. `most`: the server keeps no
    whole number beyond it."""
    if WHOLE.fullmatch(text) is None:
        return _NUMBER.fullmatch(text) is None
    return most is None or (len(text) <= DIGITS and abs(int(text)) <= most)


def why_not(written: str) -> str:
    """Of a column of this type."""
    return f"an id that a column of type {written} cannot hold as it is written"


NOT_IN_JSON = "an id that JSON may have as another number"
