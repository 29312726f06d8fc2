"""How a batch goes on, as truth tables: one delivery's standing, and what a step's standings come to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstop.config.policy import Policy
from backstop.evidence.judge_by_key import Judged
from backstop.model.records import Verdict
from backstop.requests.policy import NOT_CLAIMED, SEVERAL_SHARDS
from backstop.resend.ramp_policy import (
    A_PERSONS,
    SET_ASIDE,
    Close,
    Next,
    Release,
    Released,
    StepLook,
    Stop,
    Wait,
    next_step,
    stand,
    step_size,
)
from backstop.verdicts.frames import micros

RELEASED_AT = datetime(2026, 1, 1, tzinfo=UTC)
AFTER, BEFORE = RELEASED_AT + timedelta(seconds=1), RELEASED_AT - timedelta(seconds=1)


def judged(
    verdict: str, eligible: bool = False, group: str = "billing", sends: int = 1, **evidence: Any
) -> Judged:
    return Judged(
        "shop_a",
        "orders",
        "m",
        group,
        "pending",
        sends,
        0,
        5,
        Verdict(verdict),
        "",
        eligible,
        None,
        None,
        evidence,
    )


def failed(at: datetime, verdict: str = "BACKLOGGED") -> Judged:
    return judged(verdict, log_state="FAILED", log_updated_at=micros(at))


@pytest.mark.parametrize(
    ("state", "deliveries", "expected"),
    [
        ("sent", [judged("CONFIRMED")], "done"),
        ("sent", [judged("VOIDED")], "done"),
        ("sent", [judged("CONFIRMED"), judged("BACKLOGGED", group="shipping")], "waits"),
        ("sent", [judged("BACKLOGGED")], "waits"),
        ("sent", [judged("WAITING")], "waits"),
        ("sent", [judged("IN_PROGRESS")], "waits"),
        ("sent", [judged("UNKNOWN")], "waits"),
        ("sent", [judged("STALLED")], "waits"),
        ("unknown", [judged("WAITING")], "waits"),
        ("open", [judged("LOST", eligible=True)], "waits"),
        ("claimed", [judged("LOST", eligible=True)], "waits"),
        ("open", [judged("CONFIRMED")], "waits"),
        ("sent", [judged("LOST", eligible=True)], "lost_again"),
        ("unknown", [judged("UNSENT", eligible=True)], "lost_again"),
        ("sent", [judged("STALLED", eligible=True)], "lost_again"),
        ("sent", [judged("LOST", eligible=True, sends=0)], "waits"),
        ("refused", [judged("UNSENT", eligible=True)], "refused"),
        ("sent", [judged("DEAD_LETTERED")], "dead_lettered"),
        ("sent", [judged("PARKED")], "parked"),
        ("sent", [judged("EXHAUSTED")], "exhausted"),
        ("sent", [judged("CONFIRMED"), judged("DEAD_LETTERED", group="shipping")], "dead_lettered"),
        ("sent", [failed(AFTER)], "failed"),
        ("sent", [failed(RELEASED_AT)], "failed"),
        ("sent", [failed(BEFORE)], "waits"),
        ("sent", [failed(AFTER, "CONFIRMED")], "done"),
        ("not_needed", [judged("LOST", eligible=True)], "done"),
        ("superseded", [judged("BACKLOGGED")], "done"),
        ("sent", [], "done"),
    ],
)
def test_what_one_delivery_says_of_its_step(
    state: str, deliveries: list[Judged], expected: str
) -> None:
    assert stand(Released(1, "m", 1, None, state, None), deliveries, RELEASED_AT) == expected


def parked(at: datetime) -> Judged:
    return judged("PARKED", log_state="PARKED", log_updated_at=micros(at))


@pytest.mark.parametrize(
    ("state", "deliveries", "expected"),
    [
        ("sent", [judged("DEAD_LETTERED")], "waits"),
        ("open", [judged("DEAD_LETTERED")], "done"),
        ("claimed", [judged("DEAD_LETTERED")], "waits"),
        (
            "open",
            [judged("DEAD_LETTERED"), judged("LOST", eligible=True, group="shipping")],
            "waits",
        ),
        (
            "sent",
            [judged("DEAD_LETTERED"), judged("DEAD_LETTERED", group="shipping")],
            "dead_lettered",
        ),
        ("open", [parked(BEFORE)], "done"),
        ("sent", [parked(BEFORE)], "parked"),
        ("sent", [parked(RELEASED_AT)], "parked"),
        ("open", [parked(AFTER)], "parked"),
        ("open", [judged("EXHAUSTED")], "done"),
        ("unknown", [judged("EXHAUSTED")], "exhausted"),
    ],
)
def test_what_was_bad_before_the_step_is_no_harm_of_it(
    state: str, deliveries: list[Judged], expected: str
) -> None:
    assert (
        stand(Released(1, "m", 1, None, state, None), deliveries, RELEASED_AT, {"billing"})
        == expected
    )


def test_only_the_groups_that_were_addressed_count_and_what_waits_for_its_key_does_not() -> None:
    both = [judged("CONFIRMED"), judged("DEAD_LETTERED", group="shipping")]
    assert stand(Released(1, "m", 1, ("billing",), "sent", None), both, RELEASED_AT) == "done"
    held = Released(1, "m", 1, None, "open", SET_ASIDE + "waits until x of key 'k' is done")
    assert stand(held, [judged("LOST", eligible=True)], RELEASED_AT) == "done"


@pytest.mark.parametrize(
    ("deliveries", "expected"),
    [
        ([judged("LOST", eligible=True)], "not_claimed"),
        ([judged("CONFIRMED"), judged("LOST", eligible=True, group="shipping")], "not_claimed"),
        ([parked(AFTER)], "parked"),
    ],
)
def test_what_its_shard_does_not_hand_out_delays_no_step(
    deliveries: list[Judged], expected: str
) -> None:
    refused = Released(1, "m", 1, None, "open", NOT_CLAIMED + "another transaction holds it")
    assert stand(refused, deliveries, RELEASED_AT) == expected


def test_what_a_person_is_asked_about_holds_no_step_and_lets_none_grow() -> None:
    closed = Released(1, "m", 1, None, "not_needed", A_PERSONS)
    assert stand(closed, [judged("VOIDED")], RELEASED_AT) == "a_persons"
    most, few = StepLook(done=5, a_persons=15), StepLook(done=15, a_persons=5)
    policy = Policy()
    for seen, size in ((most, 20), (few, 80)):
        step = next_step(seen, held=True, size=40, pardoned=False, policy=policy)
        assert step == Release(size)
        assert next_step(seen, held=False, size=40, pardoned=False, policy=policy) == Close()


@pytest.mark.parametrize("error", [NOT_CLAIMED, SEVERAL_SHARDS])
def test_what_only_somebody_else_can_mend_delays_no_step(error: str) -> None:
    waits = Released(1, "m", 1, None, "open", error + "why")
    assert stand(waits, [judged("LOST", eligible=True)], RELEASED_AT) == "not_claimed"


def look(done: int = 0, waits: int = 0, harm: int = 0, not_claimed: int = 0) -> StepLook:
    harmed = {"failed": [f"m{i}" for i in range(harm)]} if harm else {}
    return StepLook(done, waits, harmed, not_claimed)


@pytest.mark.parametrize(
    ("seen", "held", "pardoned", "expected"),
    [
        (look(done=20), True, False, Release(40)),
        (look(done=19, waits=1), True, False, Wait(1)),
        (look(done=20), False, False, Close()),
        (look(waits=1), False, False, Wait(1)),
        (look(done=18, waits=1, harm=1), True, False, Stop("1 failed (m0)")),
        (look(harm=1), False, False, Stop("1 failed (m0)")),
        (look(harm=5), True, False, Stop("5 failed (m0, m1, m2, ...)")),
        (look(done=1, waits=3, harm=1), True, True, Release(20)),
        (look(harm=1), False, True, Close()),
        (look(waits=1, harm=1), False, True, Wait(1)),
        (look(done=19, not_claimed=1), True, False, Release(40)),
        (look(done=19, not_claimed=1), False, False, Close()),
        (look(done=18, waits=1, not_claimed=1), True, False, Wait(1)),
        (look(done=10, not_claimed=10), True, False, Release(40)),
        (look(done=9, not_claimed=11), True, False, Wait(11)),
        (look(done=1, not_claimed=19), False, False, Wait(19)),
        (look(not_claimed=20), True, False, Wait(20)),
        (look(not_claimed=20), False, False, Wait(20)),
        (look(done=18, harm=1, not_claimed=1), True, False, Stop("1 failed (m0)")),
    ],
)
def test_how_a_batch_goes_on_after_a_step_of_twenty(
    seen: StepLook, held: bool, pardoned: bool, expected: Next
) -> None:
    assert next_step(seen, held=held, size=20, pardoned=pardoned, policy=Policy()) == expected


@pytest.mark.parametrize(
    ("size", "written", "expected"),
    [
        (0, {}, 20),
        (20, {}, 40),
        (5, {}, 40),
        (40, {"ramp_factor": 1.5}, 60),
        (40, {"ramp_factor": 1.0}, 40),
        (100_000, {}, 120_000),
        (40, {"rate_limit": 0.01}, 20),
        (20, {"canary": 0}, 2**31 - 1),
    ],
)
def test_a_step_grows_by_the_factor_and_never_beyond_what_the_rate_sends_between_two_runs(
    size: int, written: dict[str, Any], expected: int
) -> None:
    assert step_size(size, Policy(**written)) == expected
