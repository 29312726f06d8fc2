"""Says what other rules would make of the open dead letters, and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.triage.causes.classify import PAGE, Logs, Unclassified, judge
from backstop.triage.causes.rules import Rules
from backstop.triage.causes.show_template import shown

_SQL = load("backstop.triage.causes", "classify.sql")
EXAMPLES = 5
UNCLASSIFIED = "(none)"


@dataclass(slots=True)
class Change:
    """Open letters that would go from one category to another; `examples` are ids of the first ones."""

    before: str
    after: str
    letters: int
    examples: list[int]
    template: str
    """Of the first one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`letters` were looked at; `same` stay what they are; `waits`: their log did not answer."""

    letters: int
    same: int
    waits: int
    changes: tuple[Change, ...]
    away: tuple[str, ...]


def try_rules(
    control: Any,
    settings: Settings,
    connections: Connections,
    own: Sequence[Mapping[str, Any]],
    *,
    topics: Sequence[str] | None = None,
    limit: int = 100_000,
) -> Trial:
    """`own` stands in the place of `dead_letters.rules`; the first `limit` open letters are looked at, logs asked again."""
    rules, logs = Rules(own), Logs(settings, connections)
    changes: dict[tuple[str, str], Change] = {}
    letters = same = waits = after = 0
    try:
        while letters < limit:
            with control, control.cursor() as cursor:
                cursor.execute(
                    _SQL["trial"],
                    {
                        "after": after,
                        "limit": min(PAGE, limit - letters),
                        "topics": None if topics is None else list(topics),
                    },
                )
                rows = cursor.fetchall()
            if not rows:
                break
            after, letters = rows[-1][0], letters + len(rows)
            page = [Unclassified(*row[:-1]) for row in rows]
            for letter, asked, (*_, present) in zip(page, logs.ask(page), rows, strict=True):
                found = judge(letter, asked, rules)
                before = present or UNCLASSIFIED
                if found is None:
                    waits += 1
                elif found.category == before:
                    same += 1
                else:
                    change = changes.setdefault(
                        (before, found.category),
                        Change(before, str(found.category), 0, [], shown(found.template)),
                    )
                    change.letters += 1
                    if len(change.examples) < EXAMPLES:
                        change.examples.append(letter.dead_letter_id)
    finally:
        logs.close()
    ordered = sorted(
        changes.values(), key=lambda change: (-change.letters, change.before, change.after)
    )
    return Trial(letters, same, waits, tuple(ordered), tuple(sorted(logs.away.values())))
