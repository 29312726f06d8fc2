"""Decides (pure) whether a message with an ordering key may go out now: after those before it, and not after those behind it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from backstop.model.records import Verdict
from backstop.requests.policy import Decision, Postpone, Send
from backstop.resend.ramp_policy import SET_ASIDE
from backstop.stores.protocol import Neighbours

CaseKind = Literal["order_gap", "order_parked"]
STUCK = frozenset({Verdict.EXHAUSTED, Verdict.DEAD_LETTERED, Verdict.PARKED})
"""It does not get through without a person."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """What becomes of the request, and the case that a person must decide, if any."""

    decision: Decision
    case: CaseKind | None = None


def decide_order(
    send: Send,
    neighbours: Neighbours | None,
    head: Collection[Verdict],
    *,
    by_person: bool,
    gap: Literal["case", "resend"],
    later: datetime,
    moving: str | None = None,
) -> InOrder:
    """`neighbours`: null when the message has no ordering key. `head`: the verdicts of the first open message before it.
    `moving`: for a person's request behind a stuck one, the first before it that is still on its way to some group.

    Nobody overtakes a message that is still on its way. A person may send behind those that are stuck, and into a gap.
    """
    if neighbours is None:
        return InOrder(send)
    key = neighbours.ordering_key
    if neighbours.open_before is not None:
        stuck = sorted(str(verdict) for verdict in STUCK.intersection(head))
        before = moving if stuck else neighbours.open_before
        if before is not None:
            return InOrder(
                Postpone(later, f"{SET_ASIDE}waits until {before} of key {key!r} is done")
            )
        if not by_person:
            why = f"{SET_ASIDE}key {key!r} is parked behind {neighbours.open_before}, which is {', '.join(stuck)}"
            return InOrder(Postpone(later, why), "order_parked")
    if neighbours.sent_after is not None and gap == "case" and not by_person:
        why = f"{SET_ASIDE}{neighbours.sent_after}, a later message of key {key!r}, may have been sent already"
        return InOrder(Postpone(later, why), "order_gap")
    return InOrder(send)
