"""Prints for people or, with --json, one document for programs. Progress goes to stderr and only to a terminal."""

from __future__ import annotations

import dataclasses
import getpass
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def document(value: Any) -> None:
    """Prints one JSON document."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Records, times and sets as what JSON knows; instants in ISO 8601."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str | int | float | bool) or value is None:
        return str(value) if isinstance(value, str) else value
    return str(value)


def printable(text: str, *, lines: bool = False) -> str:
    """Text that cannot steer a terminal: ids are other people's, and may contain anything."""
    return "".join(
        c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape").decode()
        for c in text
    )


def content(written: bytes) -> None:
    """A message's content as it is, for a file or a program; to a terminal without the characters that could steer it."""
    if sys.stdout.isatty():
        written = printable(written.decode(errors="backslashreplace"), lines=True).encode()
    sys.stdout.buffer.write(written)
    sys.stdout.buffer.flush()


def line(text: str = "", style: str | None = None) -> None:
    """One line, never wrapped nor read as markup."""
    from rich.console import Console

    Console(soft_wrap=True).print(
        printable(text), markup=False, highlight=False, emoji=False, style=style
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table; null is shown as '-'."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        shown.add_row(*(Text(printable(cell(value))) for value in row))
    # Cut off lines are of no use in a file or a pipe.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(shown)


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Shows that long work goes on; yields a function that names the present step."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: None
        return
    with console.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def who() -> str:
    """The name that a decision is recorded with, unless --by gives another."""
    return getpass.getuser()
