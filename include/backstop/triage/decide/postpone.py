"""Looks again at letters that were decided before; what would only be decided the same once more is looked at later, and not now.

Triage does it first: its steps and checks begin only when a letter is new, or is to be decided otherwise than it was.
"""

from __future__ import annotations

import json
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.decide.apply import decide_all, lock, policy_of
from backstop.triage.decide.decide import Escalate, Wait, look_again
from backstop.triage.decide.evidence import gather_evidence, read_dead_letters

_SQL = load("backstop.triage.decide", "decide.sql")
_BATCH = 1_000


def postpone_unchanged(settings: Settings, connections: Connections, control: Any, run: Run) -> int:
    """Returns how many of the due letters stay as they are until their next look; all others are still due.

    None is postponed when more are due than one look reads, when one was never decided, or when something did not answer:
    then the steps have to run anyway, and they say what was away. Raises RunLost.
    """
    with control, control.cursor() as cur:
        hold(cur, run)
        cur.execute(_SQL["clock"])
        values = {
            "after": 0,
            "cut": cur.fetchone()[0],
            "topics": topics_of(run.scope),
            "limit": _BATCH + 1,
        }
        letters = read_dead_letters(cur, "due", values)
    if len(letters) > _BATCH or any(letter.decided_at is None for letter in letters):
        return 0
    with Sources(settings, connections) as sources:
        evidence = gather_evidence(control, settings, sources, letters)
        if sources.unreachable or any(
            facts.unread is not None for facts in evidence.facts.values()
        ):
            return 0
        decided = decide_all(settings, control, evidence, letters)
    rows: list[dict[str, Any]] = []
    for one in decided:
        row: dict[str, Any] = {"dead_letter_id": one.letter.dead_letter_id}
        match one.decision:
            case Escalate(reason):
                until = look_again(
                    one.letter.drained_at, evidence.as_of, policy_of(settings, one.letter)
                )
                rows.append(row | {"decision": "escalate", "reason": reason, "look_at": until})
            case Wait(until, reason):
                rows.append(row | {"decision": "wait", "reason": reason, "look_at": until})
    with control, control.cursor() as cur:
        hold(cur, run)
        held = lock(cur, [one.letter for one in decided])
        kept = [row for row in rows if row["dead_letter_id"] in held]
        cur.execute(_SQL["postpone"], {"rows": json.dumps(kept, default=str)})
        return int(cur.rowcount)
