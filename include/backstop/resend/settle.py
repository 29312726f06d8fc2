"""Stores how sends ended: in the shard where the attempt is still ours, then in the requests; and ends those
not sent.

    send_attempt and stub | request closed, with the groups that were really addressed |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from backstop.brokers.protocol import Receipt
from backstop.evidence.apply_apart import apply_apart
from backstop.model.errors import RowsLocked, StoreFailed, StoreUnavailable
from backstop.model.records import Key, Outcome, RequestState
from backstop.model.storable_text import escaped
from backstop.requests.ask import FOR_GOOD
from backstop.requests.policy import Decision, NotNeeded, Postpone, Route, Send
from backstop.resend.claim import Claimed, Request, Worker
from backstop.runs.run import hold
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.stores.protocol import Settlement, StubStore

_SQL = load("backstop.resend", "queries.sql")
_LONGEST_ERROR = 1_000


@dataclass(frozen=True, slots=True)
class End:
    """What becomes of a claimed request. `send` is set when its number was taken: whom it addressed, and by
    which way."""

    state: RequestState
    error: str | None = None
    not_before: datetime | None = None
    send: Send | None = None


def settle_attempts(
    store: StubStore,
    token: str,
    broker_name: str,
    max_send: timedelta,
    requests: Mapping[int, Request],
    receipts: Mapping[int, Receipt],
    refused: list[tuple[Settlement, StoreFailed]],
) -> dict[int, Outcome]:
    """Stores each attempt's outcome, one commit of the shard; the outcomes by request id, as they count from
    now on.

    An attempt that was taken from us meanwhile (its deadline passed) counts as unknown: so it was recorded.
    Raises StoreUnavailable: then recovery records them as unknown; so it does with one whose row the shard refuses to change, which
    is added to `refused`. One that somebody holds is tried once more after the others: what the broker said is known here alone.
    """
    settlements = [
        Settlement(
            key=request.key,
            send_number=request.send_number,
            token=token,
            outcome=receipts[request_id].outcome,
            position=receipts[request_id].position,
            broker=broker_name,
            broker_message_id=receipts[request_id].broker_message_id,
            error=_error(receipts[request_id]),
            max_send_seconds=max_send.total_seconds(),
        )
        for request_id, request in requests.items()
    ]
    first: list[tuple[Settlement, StoreFailed]] = []
    ours = set[Key]().union(*apply_apart(settlements, store.settle, first))
    refused += [(one, error) for one, error in first if not isinstance(error, RowsLocked)]
    if held := [(one, error) for one, error in first if isinstance(error, RowsLocked)]:
        try:
            ours = ours.union(*apply_apart([one for one, _ in held], store.settle, refused))
        except StoreUnavailable:
            refused += held
    return {
        request_id: receipts[request_id].outcome if request.key in ours else Outcome.UNKNOWN
        for request_id, request in requests.items()
    }


def ends_of_sends(
    outcomes: Mapping[int, Outcome], receipts: Mapping[int, Receipt], sends: Mapping[int, Send]
) -> dict[int, End]:
    """How each request ends whose number was taken; those that end alike share one value."""
    shared: dict[tuple[object, ...], End] = {}
    ends: dict[int, End] = {}
    for number, outcome in outcomes.items():
        receipt, send = receipts[number], sends[number]
        alike = (outcome, receipt.outcome, receipt.error, receipt.refused_for_good, id(send))
        if alike not in shared:
            shared[alike] = end_of_send(outcome, receipt, send)
        ends[number] = shared[alike]
    return ends


def end_of_send(outcome: Outcome, receipt: Receipt, send: Send) -> End:
    """How a request ends whose number was taken."""
    error = _error(receipt)
    if outcome is not receipt.outcome:
        error = (
            "settled too late, or its row could not be changed: its attempt counts as unknown"
            f" (the broker answered {receipt.outcome})"
        )
    return End(RequestState(outcome.value), error, send=send)


def end_without_send(decision: Decision) -> End:
    """How a request ends whose number was not taken; a Send that came too late for the number is
    superseded."""
    match decision:
        case NotNeeded(why):
            return End(RequestState.NOT_NEEDED, why)
        case Postpone(until, why):
            return End(RequestState.OPEN, why, until)
        case Send():
            return End(
                RequestState.SUPERSEDED, "the stub had moved on, was not due, or has no budget left"
            )


def end_requests(worker: Worker, claimed: Claimed, ends: Mapping[int, End]) -> int:
    """Writes the ends where the claims are still this worker's, one commit; returns how many were. RunLost:
    none."""
    if not ends:
        return 0
    kinds = {id(end): end for end in ends.values()}  # requests of one batch share their ends
    places = {kind: place for place, kind in enumerate(kinds)}
    values = {
        "ids": array_literal(list(ends)),
        "places": array_literal([places[id(end)] for end in ends.values()]),
        "kinds": json.dumps([_row(place, end) for place, end in enumerate(kinds.values())]),
    }
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["end"], {**values, "token": claimed.token, "run_id": worker.run.run_id})
        return int(cursor.rowcount)


def _bounded(text: str | None) -> str | None:
    """Error text that PostgreSQL takes, of bounded length."""
    return None if text is None else escaped(text)[:_LONGEST_ERROR]


def _error(receipt: Receipt) -> str | None:
    if receipt.refused_for_good:
        return _bounded(FOR_GOOD + (receipt.error or "no reason given"))
    return _bounded(receipt.error)


def _row(place: int, end: End) -> dict[str, Any]:
    route: Route | None = end.send.route if end.send else None
    return {
        "place": place,
        "state": str(end.state),
        "error": _bounded(end.error),
        "not_before": end.not_before.isoformat() if end.not_before else None,
        "addressed": end.send is not None,
        "groups": list(end.send.groups) if end.send and end.send.groups is not None else None,
        "route": route,
    }
