"""Looks at dead letters: how many died of what, the list, and one with everything that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backstop.control.read_rows import read
from backstop.model.errors import ConfigurationError
from backstop.model.records import DeadLetterState
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load

_SQL = load("backstop.reports", "letters.sql")
UNDECIDED = (DeadLetterState.OPEN, DeadLetterState.REPLAYING)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters; null: any. `since`: of their death, or of when they were drained where nobody told."""

    topic: str | None = None
    group: str | None = None
    states: Sequence[str] | None = UNDECIDED
    category: str | None = None
    cause: int | None = None
    case: int | None = None
    since: datetime | None = None
    message_id: str | None = None

    def values(self) -> dict[str, Any]:
        """As the queries take it."""
        states = (
            None if self.states is None else array_literal([str(state) for state in self.states])
        )
        return {
            "topic": self.topic,
            "group": self.group,
            "states": states,
            "category": self.category,
            "cause": self.cause,
            "case": self.case,
            "since": self.since,
            "id": self.message_id,
        }


def count_by_cause(conn: Any, wanted: LetterFilter, limit: int = 20) -> list[dict[str, Any]]:
    """What these letters died of, the most frequent first; those that are not classified yet under no cause."""
    return read(conn, _SQL["by_cause"], {**wanted.values(), "limit": limit})


def list_letters(conn: Any, wanted: LetterFilter, limit: int = 100) -> list[dict[str, Any]]:
    """Letters without headers and contents, the newest first."""
    return read(conn, _SQL["list"], {**wanted.values(), "limit": limit})


def letters_of_message(conn: Any, topic: str, message_id: str) -> list[dict[str, Any]]:
    """The letters of one message, the first death first."""
    return read(conn, _SQL["of_message"], {"topic": topic, "message_id": message_id})


def show_letter(conn: Any, dead_letter_id: int) -> dict[str, Any]:
    """Everything that is known of a letter; headers and content as bytes, the content null when it was purged."""
    found = read(conn, _SQL["one"], {"dead_letter_id": dead_letter_id})
    if not found:
        raise ConfigurationError(
            f"There is no dead letter {dead_letter_id}.",
            unaffected="Nothing was read or changed.",
            next_step="`backstop dead-letters list --all` lists them; old ones are purged as the policy says.",
        )
    [letter] = found
    content = letter["content"]
    return {
        **letter,
        "headers": bytes(letter["headers"]),
        "content": None if content is None else bytes(content),
    }
