"""The log of what people decided: appended by one function of the control database, which nobody can rewrite.

Appending is the last statement of a transaction: entries are made one after the other, and whoever waits for a row while others
wait for their entry would stop them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backstop.model.errors import DecisionRefused

_WHY_AT_MOST = 10_000
_NAME_AT_MOST = _SUBJECT_AT_MOST = 1_000
"""Characters of a reason, of a name and of a subject: append_decision takes no more."""
_APPEND = "SELECT append_decision(%(who)s, %(action)s, %(subject)s, %(why)s, %(details)s::jsonb)"


def append(
    cur: Any, who: str, action: str, subject: str, why: str, details: Mapping[str, Any]
) -> None:
    """Appends one decision to the caller's transaction, its last statement. DecisionRefused for too long a reason or name. A subject
    that is too long, because it names an id of the longest, is whole in the details."""
    require_short(who, why)
    if len(subject) > _SUBJECT_AT_MOST:
        details = {**details, "subject": subject}
        subject = f"{subject[: _SUBJECT_AT_MOST - 1]}…"
    told = json.dumps(dict(details), default=str)
    cur.execute(
        _APPEND, {"who": who, "action": action, "subject": subject, "why": why, "details": told}
    )


def require_short(who: str, why: str) -> None:
    """Raises DecisionRefused for a name or a reason that the log of decisions would not take: for who changes other databases first."""
    if len(who) > _NAME_AT_MOST:
        raise DecisionRefused(
            f"A name has at most {_NAME_AT_MOST:,} characters.",
            unaffected="Nothing was applied.",
            next_step="Give a shorter one (--by).",
        )
    if len(why) > _WHY_AT_MOST:
        raise DecisionRefused(
            f"A reason has at most {_WHY_AT_MOST:,} characters.",
            unaffected="Nothing was applied.",
            next_step="Give a shorter reason, and put the rest into a note.",
        )
