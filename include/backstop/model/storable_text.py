"""Makes text from outside such as a database can hold it."""

from __future__ import annotations


def escaped(text: str) -> str:
    """The text with NUL and lone surrogates, which PostgreSQL refuses, as their escapes; of what is escaped already the same."""
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
