"""Refuse what could not be stored, sent or found again, before anything is written."""

from collections.abc import Mapping

from backstop.model.errors import ContractBroken
from backstop.model.records import ID_BYTES, TOPIC_BYTES

RESERVED = "backstop-"
"""Headers of this prefix are Backstop's own."""
LARGEST = 2**63 - 1
"""The largest sequence."""
CONTENT_TYPE_HEADER = "content-type"
MAX_CONTENT_BYTES = 4 * 1024 * 1024
"""The default of the smallest common broker limit; a broker refuses for good what it cannot take."""


def check_key(topic: str, message_id: str) -> None:
    check_text("topic", topic, TOPIC_BYTES)
    check_text("message_id", message_id, ID_BYTES)


def refuse_blank(name: str, value: str) -> None:
    """An id of white space only is most likely a field that was never filled. Raises ContractBroken."""
    if not value.strip():
        raise _broken(
            f"{name} is blank ({value!r})", f"Give {name} a text with more than white space in it."
        )


def check_text(name: str, value: object, longest: int | None = None) -> None:
    """Not empty, no NUL, valid UTF-8, at most `longest` bytes. Raises ContractBroken."""
    if not isinstance(value, str) or not value:
        raise _broken(f"{name} is {value!r}", f"Give {name} as text that is not empty.")
    if value.isascii() and "\x00" not in value and (longest is None or len(value) <= longest):
        return  # as nearly all are
    _check_storable(name, value)
    if longest is not None and len(value.encode()) > longest:
        raise _broken(
            f"{name} has {len(value.encode())} bytes, starting {value[:40]!r}",
            f"At most {longest} bytes are allowed: use a shorter key.",
        )


def check_optional(name: str, value: str | None, longest: int | None = None) -> None:
    if value is not None:
        check_text(name, value, longest)


def check_sequence(sequence: int | None) -> None:
    """Within what a column holds: a server that is not strict would store another one. Raises ContractBroken."""
    if sequence is not None and not -LARGEST - 1 <= sequence <= LARGEST:
        raise _broken(
            f"sequence is {sequence}", f"Number the messages of a key from 1, up to {LARGEST}."
        )


def check_content(content: object, longest: int) -> None:
    if not isinstance(content, bytes):
        raise _broken(f"content is a {type(content).__name__}", "Encode it: content is bytes.")
    if len(content) > longest:
        raise _broken(
            f"content has {len(content)} bytes",
            f"At most {longest} are allowed: send a reference, or raise this limit and the broker's.",
        )


def check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        check_text("a header's name", name)
        if not isinstance(value, str):
            raise _broken(f"header {name!r} is a {type(value).__name__}", "Header values are text.")
        _check_storable(f"header {name!r}", value)
        if name.lower().startswith(RESERVED):
            raise _broken(
                f"header {name!r} is Backstop's own", f"Leave out the prefix {RESERVED!r}."
            )


def _check_storable(name: str, value: str) -> None:
    if "\x00" in value:
        raise _broken(
            f"{name} holds a NUL character", "Remove it: databases cannot store it in text."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _broken(f"{name} is not valid Unicode", "Remove the lone surrogate.") from error


def _broken(what: str, next_step: str) -> ContractBroken:
    return ContractBroken(
        f"The message is not allowed: {what}.",
        unaffected="Nothing was written or sent.",
        next_step=next_step,
    )
