"""Keeps what people write about a case, beside what they decide."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backstop.model.errors import DecisionRefused
from backstop.sql.named import load

_SQL = load("backstop.decisions", "queries.sql")
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Note:
    """One note, as it was written."""

    written_at: datetime
    written_by: str
    note: str


def add_note(conn: Any, case_id: int, who: str, text: str) -> None:
    """Writes a note to a case in any state; commits. DecisionRefused when there is no such case, or nothing is said."""
    if not who.strip() or not text.strip() or len(text) > _LONGEST or "\x00" in text:
        raise DecisionRefused(
            f"A note needs a name and a text of at most {_LONGEST} characters.",
            unaffected="Nothing was changed.",
            next_step="Say who writes (--by) and what (--text).",
        )
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["add_note"], {"case_id": case_id, "who": who, "note": text})
        if cur.rowcount == 0:
            raise DecisionRefused(
                f"There is no case {case_id}.",
                unaffected="Nothing was changed.",
                next_step="See: backstop cases list --all",
            )


def notes_of(conn: Any, case_id: int) -> list[Note]:
    """A case's notes, the oldest first."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["notes"], {"case_id": case_id})
        return [Note(*row) for row in cur.fetchall()]
