"""A list of message ids as text, one a line: where it comes from a file, a form or a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

from backstop.model.errors import ConfigurationError


def read_id_list(path: str) -> str:
    """The text of a file, or of the standard input ("-"). Line ends are left as they are: an id may hold any other character.
    Raises ConfigurationError."""
    try:
        given = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return given.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The file {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.",
            unaffected="Nothing was started.",
            next_step="Name a text file with one message id a line.",
        ) from None


def ids_in(text: str) -> list[str]:
    """The id of each line that is not blank. A line ends with LF, or CR and LF: what else breaks a line on paper may be part of
    an id."""
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line for line in lines if line.strip()]


def fits_a_line(message_id: str) -> bool:
    """Whether the id can stand in such a list."""
    return ids_in(message_id) == [message_id]
