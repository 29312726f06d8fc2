"""What becomes of a dead letter: the table of decisions, first match wins."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstop.config.policy import Policy
from backstop.model.records import Category, LogRow, Stub
from backstop.triage.decide.decide import (
    REASONS,
    STICKY,
    Decision,
    Discard,
    Escalate,
    Facts,
    Replay,
    Wait,
    decide,
    look_again,
    proof_of,
)
from backstop.triage.decide.settle_replays import end_of

NOW = datetime(2026, 1, 10, tzinfo=UTC)
POLICY = Policy()
SOON = NOW + POLICY.recheck
AGO = timedelta(days=1)


def stub(**columns: Any) -> Stub:
    return replace(
        Stub(
            shard="shop_a",
            topic="orders",
            message_id="m",
            status="pending",
            send_count=1,
            refusals=0,
            max_sends=None,
            next_check_at=NOW,
            created_at=NOW - AGO,
        ),
        **columns,
    )


def log(state: str = "FAILED", moved: timedelta = AGO, **columns: Any) -> LogRow:
    return replace(
        LogRow(
            consumer_group="billing",
            topic="orders",
            message_id="m",
            state=state,
            owner_token=None,
            lease_expires_at=NOW - AGO,
            attempts=5,
            duplicates_stopped=0,
            first_received_at=NOW - AGO,
            updated_at=NOW - moved,
            consumed_at=NOW - AGO if state == "CONSUMED" else None,
            owner_host="web-1",
            payload_hash="ab",
        ),
        **columns,
    )


READY = Facts(
    as_of=NOW,
    category="transient",
    log=log(),
    stub=stub(),
    shards=("shop_a",),
    log_floor=NOW - timedelta(days=30),
)
"""A letter that a machine may replay: every row of the table changes something of it."""
CONSUMED = {"log": log("CONSUMED")}
DISCARDED = {"discarded": {"decided_by": "ann", "why": "old", "case_id": 3}}
ALIVE = {"log": log("CONSUMING", lease_expires_at=NOW)}

TABLE: list[tuple[str, dict[str, Any], Decision]] = [
    (
        "a delivery that a person gave up",
        {**DISCARDED, "unread": "shard shop_a"},
        Discard(DISCARDED["discarded"], "ann"),
    ),
    (
        "a group whose log says CONSUMED",
        {**CONSUMED, "category": "poison", "unaddressable": "invalid", "stub": None, "unread": "x"},
        Discard(
            {
                "log": "CONSUMED",
                "consumed_at": (NOW - AGO).isoformat(),
                "attempts": 5,
                "owner_host": "web-1",
                "payload_hash": "ab",
            }
        ),
    ),
    (
        "CONSUMED, and not classified: it may be a conflict",
        {**CONSUMED, "category": None},
        Wait(SOON, "not_classified"),
    ),
    (
        "CONSUMED, with another content than the letter's",
        {**CONSUMED, "category": "conflict", "stub": stub(status="confirmed")},
        Escalate("conflict"),
    ),
    (
        "a log that breaks its contract",
        {"log": log("CONSUMED", invalid="no consumed_at")},
        Escalate("invalid_log"),
    ),
    (
        "a store that did not answer",
        {"unread": "store billing_db", "log": None},
        Wait(SOON, "unread: store billing_db"),
    ),
    (
        "a lease that is alive, with the skew",
        ALIVE,
        Wait(NOW + POLICY.max_clock_skew, "in_progress"),
    ),
    (
        "a lease until the year 9000 is looked at again",
        {"log": log("CONSUMING", lease_expires_at=datetime(9000, 1, 1, tzinfo=UTC))},
        Wait(NOW + timedelta(hours=1), "in_progress"),
    ),
    (
        "a send whose deadline is in the year 9000",
        {"stub": stub(attempt_token="t", attempt_deadline=datetime(9000, 1, 1, tzinfo=UTC))},
        Wait(NOW + timedelta(hours=1), "a send of it is under way"),
    ),
    (
        "a lease of no end",
        {"log": log("CONSUMING", lease_expires_at=None)},
        Wait(SOON, "in_progress"),
    ),
    (
        "a log touched a moment ago",
        {"log": log(moved=timedelta(seconds=1))},
        Wait(NOW - timedelta(seconds=1) + POLICY.consume_timeout, "in_progress"),
    ),
    (
        "a log touched exactly consume_timeout ago",
        {"log": log(moved=POLICY.consume_timeout)},
        Replay("transient"),
    ),
    ("a parked key", {"log": log("PARKED")}, Wait(SOON, "parked")),
    (
        "a letter that was not classified yet",
        {"category": None, "unaddressable": "no_id"},
        Wait(SOON, "not_classified"),
    ),
    *[
        (f"a letter that is {why}", {"unaddressable": why, "stub": None}, Escalate(why))
        for why in ("no_id", "no_topic", "unknown_topic", "unknown_group", "not_owed", "invalid")
    ],
    ("a message that no shard promised", {"stub": None}, Escalate("no_stub")),
    ("a message on two shards", {"shards": ("shop_a", "shop_b")}, Escalate("two_shards")),
    (
        "exactly as old as the replay horizon",
        {"stub": stub(created_at=NOW - POLICY.replay_horizon)},
        Escalate("too_old"),
    ),
    (
        "created earlier, and scheduled for a moment later",
        {
            "stub": stub(
                created_at=NOW - 2 * POLICY.replay_horizon,
                deliver_at=NOW - POLICY.replay_horizon + timedelta(microseconds=1),
            )
        },
        Replay("transient"),
    ),
    (
        "a moment younger",
        {"stub": stub(created_at=NOW - POLICY.replay_horizon + timedelta(microseconds=1))},
        Replay("transient"),
    ),
    (
        "a closed stub, and a log that does not prove it",
        {"stub": stub(status="confirmed")},
        Escalate("stub_closed"),
    ),
    (
        "no log, where logs of its age were purged",
        {"log": None, "log_floor": NOW - timedelta(hours=1)},
        Escalate("log_purged"),
    ),
    ("no log, where logs of its age are kept", {"log": None}, Replay("transient")),
    (
        "a delivery that a person left",
        {"left": 7, "category": "poison"},
        Wait(NOW + timedelta(hours=1), "left"),
    ),
    (
        "a letter that a person left, whatever else it is",
        {"left": 7, "unaddressable": "no_id", "stub": None, "unread": "x"},
        Wait(NOW + timedelta(hours=1), "left"),
    ),
    (
        "a conflict that a person left",
        {**CONSUMED, "category": "conflict", "left": 7},
        Wait(NOW + timedelta(hours=1), "left"),
    ),
    (
        "what a person left, and was done since",
        {**CONSUMED, "left": 7},
        Discard(proof_of(log("CONSUMED"))),
    ),
    (
        "CONSUMED, and another content came under its id",
        {"log": log("CONSUMED", conflicts=1), "category": "already_confirmed"},
        Escalate("conflict"),
    ),
    (
        "CONSUMED, and its text says that this one came twice",
        {"log": log("CONSUMED", conflicts=1), "category": "duplicate_suppressed"},
        Discard(proof_of(log("CONSUMED"))),
    ),
    (
        "not done, and another content came under its id",
        {"log": log(conflicts=1)},
        Escalate("conflict"),
    ),
    *[
        (f"{category} is a person's", {"category": category}, Escalate(category))
        for category in ("poison", "conflict", "unknown")
    ],
    ("expired is a person's by default", {"category": "expired"}, Escalate("expired")),
    (
        "found done, and not done now",
        {"category": "already_confirmed"},
        Escalate("not_confirmed_any_more"),
    ),
    ("a newer letter may be forgotten", {"forgotten": True}, Escalate("forgotten")),
    ("replayed as often as allowed", {"replays": POLICY.max_replays}, Escalate("loop")),
    ("replayed once less", {"replays": POLICY.max_replays - 1}, Replay("transient")),
    ("sends used up", {"stub": stub(send_count=POLICY.max_sends)}, Escalate("budget")),
    (
        "refused sends do not count as sends",
        {"stub": stub(send_count=POLICY.max_sends, refusals=1)},
        Replay("transient"),
    ),
    (
        "a person allowed more sends",
        {"stub": stub(send_count=POLICY.max_sends, max_sends=9)},
        Replay("transient"),
    ),
    ("refused too often", {"stub": stub(send_count=20, refusals=20)}, Escalate("budget")),
    ("an exhausted stub", {"stub": stub(status="exhausted")}, Escalate("budget")),
    ("a topic that is only observed", {"observed": True}, Escalate("observe")),
    ("a group that takes no duplicates", {"duplicates": "no"}, Escalate("no_duplicates")),
    ("no way around another group", {"route": None}, Escalate("no_route")),
    *[(f"the end of its request: {why}", {"barred": why}, Escalate(why)) for why in sorted(STICKY)],
    (
        "a send that is under way",
        {"stub": stub(attempt_token="t", attempt_deadline=NOW + timedelta(minutes=20))},
        Wait(NOW + timedelta(minutes=20), "a send of it is under way"),
    ),
    (
        "a request that cannot be joined",
        {"asked": "another send of it was asked for"},
        Wait(SOON, "another send of it was asked for"),
    ),
    (
        "behind one of its key that waits for a person",
        {"before": "m0"},
        Wait(SOON, "behind m0 of its key, which a person must decide"),
    ),
    *[
        (f"{category} is replayed", {"category": category}, Replay(category))
        for category in ("transient", "busy_exhausted", "duplicate_suppressed")
    ],
]


@pytest.mark.parametrize(
    ("changed", "decision"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_row_of_the_table_of_decisions(changed: dict[str, Any], decision: Decision) -> None:
    assert decide(replace(READY, **changed), POLICY) == decision


def test_the_first_row_that_fits_decides() -> None:
    """Every row's change on top of those of all rows after it still decides as that row says, where the table has an order."""
    order = [
        (DISCARDED, Discard),
        ({**CONSUMED, "category": "poison"}, Discard),
        ({"left": 7}, Wait),
        ({"unread": "x"}, Wait),
        (ALIVE, Wait),
        ({"category": None}, Wait),
        ({"unaddressable": "invalid"}, Escalate),
        ({"stub": None}, Escalate),
        ({"category": "poison"}, Escalate),
        ({"replays": 9}, Escalate),
        ({"observed": True}, Escalate),
        ({"route": None}, Escalate),
        ({"asked": "x"}, Wait),
    ]
    for number, (changed, kind) in enumerate(order):
        facts = READY
        for later, _ in reversed(order[number:]):
            facts = replace(facts, **later)  # type: ignore[arg-type]
        assert type(decide(facts, POLICY)) is kind, changed
        assert decide(facts, POLICY) == decide(replace(facts, before="m0"), POLICY)


def test_an_expired_letter_is_replayed_where_the_policy_says_so() -> None:
    assert decide(replace(READY, category="expired"), Policy(expired="replay")) == Replay("expired")


@given(
    category=st.sampled_from([None, *Category]),
    unaddressable=st.sampled_from([None, "invalid", "not_owed"]),
    unread=st.sampled_from([None, "store billing_db"]),
    state=st.sampled_from([None, "CONSUMING", "FAILED", "EXPIRED", "PARKED"]),
    sends=st.integers(0, 7),
    status=st.sampled_from(["pending", "exhausted", "confirmed", "no_taker"]),
    replays=st.integers(0, 4),
    left=st.sampled_from([None, 7]),
    observed=st.booleans(),
    duplicates=st.sampled_from(["guard", "declared_safe", "no"]),
    route=st.sampled_from(["topic", None]),
    age=st.integers(0, 8),
)
def test_a_machine_replays_only_what_it_may(
    category: str | None,
    unaddressable: str | None,
    unread: str | None,
    state: str | None,
    sends: int,
    status: str,
    replays: int,
    left: int | None,
    observed: bool,
    duplicates: str,
    route: str | None,
    age: int,
) -> None:
    facts = replace(
        READY,
        category=category,
        unaddressable=unaddressable,
        unread=unread,
        log=None if state is None else log(state),
        stub=stub(send_count=sends, status=status, created_at=NOW - timedelta(days=age)),
        replays=replays,
        left=left,
        observed=observed,
        duplicates=duplicates,
        route=route,
    )
    match decide(facts, POLICY):
        case Discard():
            pytest.fail("nothing proves that it is done")
        case Replay():
            assert category in ("transient", "busy_exhausted", "duplicate_suppressed")
            assert (unaddressable, unread, left, observed, status) == (
                None,
                None,
                None,
                False,
                "pending",
            )
            assert (
                duplicates != "no" and route is not None and replays < 3 and sends < 5 and age < 7
            )
        case Escalate(reason):
            assert reason in REASONS
        case Wait(until):
            assert until > NOW


def test_what_waits_for_a_person_is_looked_at_more_rarely_with_its_age() -> None:
    ages = [timedelta(0), timedelta(hours=1), timedelta(hours=5), timedelta(days=30)]
    looks = [look_again(NOW - age, NOW, POLICY) - NOW for age in ages]
    assert looks == [
        POLICY.recheck,
        timedelta(minutes=6),
        timedelta(minutes=30),
        timedelta(hours=1),
    ]


ENDS = [
    (("sent", None, None, None), "replayed", None),
    (("sent", ["billing", "x"], None, None), "replayed", None),
    (("sent", ["x"], None, None), "open", "its request did not publish it"),
    (("unknown", ["billing"], "time-out", None), "replayed", None),
    (("refused", ["billing"], "no room", None), "open", "its request did not publish it"),
    (("refused", ["billing"], "refused for good: too large", None), "open", "refused_for_good"),
    (
        ("refused", ["x"], "refused for good: too large", None),
        "open",
        "its request did not publish it",
    ),
    (
        ("not_needed", ["billing"], "billing CONFIRMED", None),
        "open",
        "its request did not publish it",
    ),
    (("not_needed", ["billing"], "no_route", None), "open", "no_route"),
    (("not_needed", ["billing"], "given up by ann", 4), "open", "given_up"),
    (("superseded", None, "moved on", None), "open", "its request did not publish it"),
    ((None, None, None, None), "open", "its request did not publish it"),
]


@pytest.mark.parametrize(("request_", "state", "reason"), ENDS)
def test_a_letter_is_replayed_when_a_number_may_be_out_for_its_group_and_else_open_again(
    request_: tuple[Any, ...], state: str, reason: str | None
) -> None:
    ended = end_of(7, "billing", *request_)
    assert (ended["state"], ended["reason"]) == (state, reason)
