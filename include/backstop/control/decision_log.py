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
"""Characters of a reason: append_decision takes no more."""
_APPEND = "SELECT append_decision(%(who)s, %(action)s, %(subject)s, %(why)s, %(details)s::jsonb)"


def append(
    cur: Any, who: str, action: str, subject: str, why: str, details: Mapping[str, Any]
) -> None:
    """Appends one decision to the caller's transaction, its last statement. DecisionRefused for too long a reason."""
    if len(why) > _WHY_AT_MOST:
        raise DecisionRefused(
            f"A reason has at most {_WHY_AT_MOST:,} characters.",
            unaffected="Nothing was applied.",
            next_step="Give a shorter reason, and put the rest into a note.",
        )
    told = json.dumps(dict(details), default=str)
    cur.execute(
        _APPEND, {"who": who, "action": action, "subject": subject, "why": why, "details": told}
    )
