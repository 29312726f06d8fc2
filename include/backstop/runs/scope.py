"""The name of a run's scope, by which runs of the same scope exclude one another, and what it stands for.

Only equal scopes exclude one another: a topic or a window may be judged by hand beside the run over everything, because
whatever two runs do twice is done once (see docs/adr/0015). '*' is everything; a JSON list names topics; a JSON object also a
window of creation times. Names may hold any character, so they are not joined.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from backstop.model.errors import ConfigurationError
from backstop.stores.protocol import Scope

EVERYTHING = "*"


def name_of(
    topics: Sequence[str] | None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
) -> str:
    """The name of these topics (null or none: all) and of this window (null: open).

    ConfigurationError for an instant without a zone, and for a window that ends before it begins.
    """
    if any(one is not None and one.tzinfo is None for one in (created_from, created_to)):
        raise _no_window("An instant of the window has no zone.", "Write it as 2026-11-21T02:00Z.")
    if created_from is not None and created_to is not None and created_from >= created_to:
        raise _no_window("The window ends before it begins.", "Name the earlier instant first.")
    names = sorted(set(topics)) if topics else None
    if created_from is None and created_to is None:
        return json.dumps(names, ensure_ascii=False) if names else EVERYTHING
    window = {"topics": names, "from": _text(created_from), "to": _text(created_to)}
    return json.dumps(window, ensure_ascii=False)


def scope_of(name: str) -> Scope:
    """What the name stands for."""
    if name == EVERYTHING:
        return Scope()
    written = json.loads(name)
    if isinstance(written, list):
        return Scope(topics=written)
    return Scope(written["topics"], _instant(written["from"]), _instant(written["to"]))


def topics_of(name: str) -> list[str] | None:
    """The topics of a scope; null: all."""
    topics = scope_of(name).topics
    return None if topics is None else list(topics)


def _no_window(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was started.", next_step=next_step)


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
