"""Ends the letters whose request has ended: its number was published (replayed), or it was not (open again, decided again)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backstop.model.records import Counts, DeadLetterState, RequestState
from backstop.requests.ask import FOR_GOOD
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.decide.decide import GIVEN_UP, STICKY

_SQL = load("backstop.triage.decide", "decide.sql")
_BATCH = 5_000
_PUBLISHED = (RequestState.SENT, RequestState.UNKNOWN)
_NO_ROUTE = "no_route"


def settle_replays(control: Any, run: Run) -> Counts:
    """Returns `replayed` and `open_again`; bounded batches, each committed. Raises RunLost."""
    counts, after = Counts(), 0
    while not run.dry_run:
        with control, control.cursor() as cur:
            hold(cur, run)
            cur.execute(
                _SQL["ended"], {"after": after, "topics": topics_of(run.scope), "limit": _BATCH}
            )
            found = cur.fetchall()
            if not found:
                break
            after = found[-1][0]
            rows = [end_of(letter, group, *request) for letter, group, _, *request in found]
            cur.execute(_SQL["settle"], {"rows": json.dumps(rows)})
        for row in rows:
            counts.add("replayed" if row["state"] == DeadLetterState.REPLAYED else "open_again")
    return counts


def end_of(
    dead_letter_id: int,
    group: str,
    state: str | None,
    groups: Sequence[str] | None,
    error: str | None,
    given_up_by: int | None,
) -> dict[str, Any]:
    """What becomes of a replaying letter whose request ended so (pure). State null: the request is not there any more."""
    if state in _PUBLISHED and (groups is None or group in groups):
        state = str(DeadLetterState.REPLAYED)
        return {
            "dead_letter_id": dead_letter_id,
            "state": state,
            "reason": None,
            "barred": None,
            "look_at": None,
        }
    reason = "its request did not publish it"
    if given_up_by is not None:
        reason = GIVEN_UP
    elif error is not None and error.startswith(FOR_GOOD):
        reason = "refused_for_good"
    elif state == RequestState.NOT_NEEDED and error == _NO_ROUTE:
        reason = _NO_ROUTE
    return {
        "dead_letter_id": dead_letter_id,
        "state": str(DeadLetterState.OPEN),
        "reason": reason,
        "barred": reason if reason in STICKY else None,
        "look_at": None,
    }
