"""Whether a message with an ordering key may go out now, as a truth table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest

from backstop.model.records import Verdict
from backstop.requests.policy import Postpone, Send
from backstop.resend.order_policy import decide_order
from backstop.stores.protocol import Neighbours

LATER = datetime(2026, 1, 1, tzinfo=UTC)
SEND = Send(None, "topic")
LOST, DEAD, USED_UP = (
    [Verdict.LOST],
    [Verdict.DEAD_LETTERED, Verdict.CONFIRMED],
    [Verdict.EXHAUSTED],
)


@pytest.mark.parametrize(
    ("before", "after", "head", "person", "gap", "sends", "case"),
    [
        (None, None, [], False, "case", True, None),
        ("a", None, LOST, False, "case", False, None),
        ("a", None, LOST, True, "case", False, None),
        ("a", "z", LOST, True, "resend", False, None),
        ("a", None, [], False, "case", False, None),
        ("a", None, DEAD, False, "case", False, "order_parked"),
        ("a", None, USED_UP, False, "resend", False, "order_parked"),
        ("a", None, USED_UP, True, "case", True, None),
        (None, "z", [], False, "case", False, "order_gap"),
        (None, "z", [], False, "resend", True, None),
        (None, "z", [], True, "case", True, None),
    ],
)
def test_a_message_goes_after_those_before_it_and_not_after_those_behind_it(
    before: str | None,
    after: str | None,
    head: list[Verdict],
    person: bool,
    gap: Literal["case", "resend"],
    sends: bool,
    case: str | None,
) -> None:
    answer = decide_order(
        SEND, Neighbours("k", before, after), head, by_person=person, gap=gap, later=LATER
    )
    assert answer.case == case
    assert (answer.decision == SEND) is sends
    assert sends or (isinstance(answer.decision, Postpone) and answer.decision.until == LATER)


def test_a_message_without_a_key_has_no_order() -> None:
    assert decide_order(SEND, None, [], by_person=False, gap="case", later=LATER).decision == SEND
