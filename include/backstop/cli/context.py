"""What every command needs: the settings, the connections, a connection to the control database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.runs.duty import RunCheck
    from backstop.runs.run import Run


@dataclass
class Chosen:
    """The options that stand before the command."""

    config: Path | None = None
    debug: bool = False


chosen = Chosen()
_opened: list[Connections] = []


def load_settings() -> Settings:
    """The settings that --config, $BACKSTOP_CONFIG or this folder name."""
    from backstop.config.load import load

    return load(chosen.config)


def connections() -> Connections:
    """The connections, kept so that their passwords can be kept out of every error text."""
    from backstop.config.connections import Connections

    made = Connections()
    _opened.append(made)
    return made


def hide_secrets(text: str) -> str:
    """The text without any password that this process resolved."""
    for made in _opened:
        text = made.hide(text)
    return text


def note_reading(conn: Any, what: str, details: Mapping[str, Any]) -> None:
    """Puts into the log of decisions that somebody is about to see contents; commits. Nothing is shown where it cannot."""
    from backstop.cli.out import who
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker

    reader = speaker(conn, None, who())
    with conn, conn.cursor() as cursor:
        append(cursor, reader, "read contents", what, "", details)


@contextmanager
def control(settings: Settings, known: Connections, *, any_schema: bool = False) -> Iterator[Any]:
    """A connection to the control database, closed at the end. ConfigurationError where it is older than this program."""
    from backstop.control.connection import connect
    from backstop.runs.run import require_schema

    conn = connect(settings, known)
    try:
        if not any_schema:
            require_schema(conn)
        yield conn
    finally:
        conn.close()


def data_checks(settings: Settings, known: Connections, docs: Path) -> RunCheck:
    """Runs suites over a run, with their reports in `docs`."""

    def check(run: Run, suites: Sequence[str]) -> None:
        from backstop.checks.run import given_by, run_suites

        url = known.url(settings.control)
        run_suites(suites, url, run.run_id, None, docs, **given_by(settings))

    return check
