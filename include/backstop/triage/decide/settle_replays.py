"""Ends the letters whose request has ended: its number was published (replayed), or it was not (open again, decided again).

One that the broker refused is decided again after the wait of its send, as everybody else's next send: a broker that refuses for an
hour would else use up what may be refused of a message, a number a minute, for all of its groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from backstop.config.settings import Settings
from backstop.model.records import Counts, DeadLetterState, Key, RequestState
from backstop.requests.ask import FOR_GOOD
from backstop.requests.policy import backoff
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.decide.decide import GIVEN_UP, STICKY

_SQL = load("backstop.triage.decide", "decide.sql")
_BATCH = 5_000
_PUBLISHED = (RequestState.SENT, RequestState.UNKNOWN)
_NO_ROUTE = "no_route"


def settle_replays(settings: Settings, control: Any, run: Run) -> Counts:
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
            rows = [_row(settings, *one) for one in found]
            cur.execute(_SQL["settle"], {"rows": json.dumps(rows)})
        for row in rows:
            counts.add("replayed" if row["state"] == DeadLetterState.REPLAYED else "open_again")
    return counts


def _row(
    settings: Settings,
    dead_letter_id: int,
    topic: str,
    message_id: str,
    send_number: int | None,
    ended_at: datetime | None,
    group: str,
    *request: Any,
) -> dict[str, Any]:
    row = end_of(dead_letter_id, group, *request)
    if request[0] != RequestState.REFUSED or row["barred"] or send_number is None or not ended_at:
        return row
    policy = settings.policy_for(topic if topic in settings.topics else None)
    look_at = ended_at + backoff(send_number, Key(topic, message_id), policy)
    return row | {"look_at": look_at.isoformat()}


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
    elif error is not None and error.startswith(FOR_GOOD) and (groups is None or group in groups):
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
