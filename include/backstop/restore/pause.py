"""Stops sending, for a topic or for everything, and goes on: what the command line and the console do when somebody says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstop.config.settings import Settings
from backstop.control.decision_log import append
from backstop.control.read_rows import read
from backstop.control.speaker import require_may, settings_for, speaker, topics_to_decide
from backstop.model.errors import ConfigurationError
from backstop.restore.paused import require_finished
from backstop.sql.named import load

_SQL = load("backstop.restore", "pause.sql")
EVERYTHING = "*"
"""Instead of a topic: all of them."""
_LONGEST = 10_000


def pause(conn: Any, known: Iterable[str], topic: str, who: str, why: str) -> bool:
    """Whether it was not paused before; commits. Honoured between two batches."""
    if not why.strip() or len(why) > _LONGEST or "\x00" in why:
        raise ConfigurationError(
            f"A pause needs a reason, of at most {_LONGEST:,} characters.",
            unaffected="Nothing was paused.",
            next_step='Say it: --why "..."',
        )
    _require_known(known, topic)
    who = speaker(conn, None, who)
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["pause"], {"topic": topic, "who": who, "why": why})
        changed = bool(cursor.rowcount == 1)
        append(cursor, who, "pause", topic, why, {"changed": changed})
    return changed


def resume(conn: Any, settings: Settings, topic: str, who: str) -> bool:
    """Whether it was paused; EVERYTHING lifts every pause. Commits.

    DecisionRefused while a restore is not finished, and for a person's login that may not resend in one of these topics: what
    somebody stopped goes out again. What comes through Airflow was held against the same names there.
    """
    settings = settings_for(conn, settings)
    _require_known(settings.topics, topic)
    who = speaker(conn, None, who)
    for one in topics_to_decide(conn, settings) if topic == EVERYTHING else (topic,):
        require_may(conn, settings, who, "resend", one)
    with conn, conn.cursor() as cursor:
        require_finished(cursor)
        cursor.execute(_SQL["resume_all" if topic == EVERYTHING else "resume"], {"topic": topic})
        changed = bool(cursor.rowcount > 0)
        append(cursor, who, "resume", topic, "", {"changed": changed})
    return changed


def paused(conn: Any) -> list[dict[str, Any]]:
    """What is paused now: topic, since when, by whom, why."""
    return read(conn, _SQL["paused"], {})


def _require_known(known: Iterable[str], topic: str) -> None:
    names = list(known)
    if topic != EVERYTHING and topic not in names:
        raise ConfigurationError(
            f"There is no topic {topic!r}.",
            unaffected="Nothing was changed.",
            next_step=f"Name one of: {', '.join(names)}.",
        )
