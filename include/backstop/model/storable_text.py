"""Makes text from outside such as a database can hold it."""

from __future__ import annotations


def escaped(text: str) -> str:
    """The text with NUL and lone surrogates, which PostgreSQL refuses, as their escapes; of what is escaped already the same."""
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")


def fits(text: str, longest: int | None = None) -> bool:
    """Whether a database holds the text as it is; with `longest`, in at most so many bytes."""
    if text.isascii():
        return "\x00" not in text and (longest is None or len(text) <= longest)
    return escaped(text) == text and (longest is None or len(text.encode()) <= longest)
