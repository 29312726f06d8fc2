"""The pure decisions of a resend: how long to wait, by which way, and what a request comes to when judged
again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstop.brokers.protocol import Receipt
from backstop.config.policy import Policy
from backstop.evidence.judge_by_key import DeliveryVerdict
from backstop.model.records import (
    GROUPS_HEADER,
    SEND_HEADER,
    Attempt,
    Key,
    Message,
    Outcome,
    RequestState,
    Stub,
    Verdict,
)
from backstop.requests.policy import (
    NO_ROUTE,
    RECONCILE,
    TOO_OLD,
    NotNeeded,
    Postpone,
    Send,
    backoff,
    by_incident,
    choose_route,
    decide,
    expected_queue_delay,
    is_by_person,
    whose_turn,
)
from backstop.resend.claim import Request
from backstop.resend.publish import as_copy, publish
from backstop.resend.recover import LeftBehind, end_of
from backstop.resend.settle import FOR_GOOD, end_of_send

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("orders", "o:1%")
POLICY = Policy()
GUARDED = {"billing": "guard", "shipping": "guard"}


def judged(
    group: str, verdict: Verdict, eligible: bool = False, next_look: datetime | None = None
) -> DeliveryVerdict:
    return DeliveryVerdict(group, verdict, "reason", eligible, next_look)


def decided(
    *deliveries: DeliveryVerdict,
    asked: tuple[str, ...] | None = None,
    by: str = "reconcile",
    duplicates: dict[str, str] = GUARDED,
    never_sent: bool = False,
    age: timedelta = timedelta(minutes=5),
    asked_by: Mapping[str, str] | None = None,
    own_retry_topic: bool = False,
) -> object:
    return decide(
        asked,
        by,
        deliveries,
        as_of=NOW,
        replay_from=NOW - age,
        policy=POLICY,
        duplicates=duplicates,
        own_retry_topic=own_retry_topic,
        never_sent=never_sent,
        asked_by=asked_by,
    )


@given(n=st.integers(1, 30), message_id=st.text(min_size=1))
def test_backoff_grows_to_its_cap_and_jitter_only_adds_up_to_its_share(
    n: int, message_id: str
) -> None:
    wait = backoff(n, Key("t", message_id), POLICY)
    plain = min(POLICY.backoff_cap, POLICY.backoff_base * 2 ** (n - 1))
    assert plain <= wait <= plain * (1 + POLICY.backoff_jitter)
    assert wait == backoff(n, Key("t", message_id), POLICY), "a rerun decides the same"


def test_jitter_spreads_messages_and_numbers() -> None:
    assert len({backoff(1, Key("t", str(i)), POLICY) for i in range(100)}) == 100
    assert backoff(6, Key("t", "1"), POLICY) != backoff(7, Key("t", "1"), POLICY)
    assert backoff(1, Key("a", "b c"), POLICY) != backoff(1, Key("a b", "c"), POLICY)


def test_queue_delay_is_that_of_the_slowest_group_up_to_the_cap() -> None:
    cap = timedelta(hours=1)
    assert expected_queue_delay([], cap) == timedelta(0)
    assert expected_queue_delay([(0, None), (100, 10.0), (100, 5.0)], cap) == timedelta(seconds=20)
    assert expected_queue_delay([(1, None)], cap) == cap
    assert expected_queue_delay([(1, 0.0)], cap) == cap
    assert expected_queue_delay([(10**9, 1.0)], cap) == cap


@pytest.mark.parametrize(
    ("declared", "verdict", "way"),
    [
        ("guard", "DEAD_LETTERED", "topic"),
        ("guard", "CONFIRMED", "topic"),
        ("declared_safe", "CONFIRMED", "topic"),
        ("declared_safe", None, "topic"),
        ("declared_safe", "DEAD_LETTERED", None),
        ("declared_safe", "PARKED", None),
        ("guard", "VOIDED", "topic"),
        ("declared_safe", "VOIDED", None),
        ("no", "CONFIRMED", None),
        ("no", None, None),
    ],
)
def test_a_copy_to_the_topic_must_not_harm_another_group(
    declared: str, verdict: str | None, way: str | None
) -> None:
    duplicates = {"billing": "guard", "shipping": declared}
    verdicts = {} if verdict is None else {"shipping": verdict}
    assert choose_route({"billing"}, duplicates, verdicts) == way
    with_own = choose_route({"billing"}, duplicates, verdicts, own_retry_topic=True)
    assert with_own == ("topic" if way else "group")


def test_the_asked_group_itself_may_be_of_any_kind_and_two_groups_share_no_retry_topic() -> None:
    assert choose_route({"billing"}, {"billing": "no"}, {}) == "topic"
    three = {"a": "guard", "b": "guard", "c": "no"}
    assert choose_route({"a", "b"}, three, {}, own_retry_topic=True) is None


def test_only_eligible_deliveries_are_sent_and_the_others_do_not_hold_them_up() -> None:
    lost = judged("billing", Verdict.LOST, eligible=True)
    assert decided(lost, judged("shipping", Verdict.LOST, eligible=True)) == Send(None, "topic")
    for other in (Verdict.CONFIRMED, Verdict.BACKLOGGED, Verdict.UNKNOWN, Verdict.DEAD_LETTERED):
        assert decided(lost, judged("shipping", other)) == Send(("billing",), "topic")


def test_a_group_that_was_not_asked_for_gets_nothing_even_if_eligible() -> None:
    both = [judged(group, Verdict.LOST, eligible=True) for group in GUARDED]
    assert decided(*both, asked=("shipping",)) == Send(("shipping",), "topic")


NOT_NEEDED = {
    Verdict.CONFIRMED,
    Verdict.VOIDED,
    Verdict.IN_PROGRESS,
    Verdict.EXHAUSTED,
    Verdict.DEAD_LETTERED,
}
WAITS = {Verdict.UNKNOWN, Verdict.WAITING, Verdict.BACKLOGGED}


@pytest.mark.parametrize("verdict", sorted(NOT_NEEDED))
def test_a_settled_verdict_closes_a_request_by_machine(verdict: Verdict) -> None:
    assert isinstance(decided(judged("billing", verdict)), NotNeeded)


@pytest.mark.parametrize("verdict", sorted(NOT_NEEDED))
def test_for_a_person_only_confirmed_voided_and_in_progress_close_it(verdict: Verdict) -> None:
    decision = decided(judged("billing", verdict), asked=("billing",), by="case 3")
    closing = verdict in (Verdict.CONFIRMED, Verdict.VOIDED, Verdict.IN_PROGRESS)
    assert isinstance(decision, NotNeeded if closing else Send)


@pytest.mark.parametrize("verdict", sorted(NOT_NEEDED - {Verdict.DEAD_LETTERED}))
def test_triage_overrules_what_a_person_overrules(verdict: Verdict) -> None:
    assert decided(judged("billing", verdict), by="triage") == decided(
        judged("billing", verdict), by="case 3"
    )


@pytest.mark.parametrize("by", ["triage", "ann (incident 3)"])
def test_triage_and_a_plan_wait_for_another_letter_that_nobody_has_decided(by: str) -> None:
    dead, stalled = judged("billing", Verdict.DEAD_LETTERED), judged("shipping", Verdict.STALLED)
    assert isinstance(decided(dead, by=by), Postpone)
    assert isinstance(decided(dead, by="case 3"), Send)
    assert decided(dead, stalled, by=by) == Send(("shipping",), "topic"), (
        "what joined its request is not replayed by it"
    )


def test_only_who_looked_at_the_delivery_itself_counts_as_a_person() -> None:
    assert [
        is_by_person(by)
        for by in ("case 3", "by hand: ann", "ann (incident 3)", "triage", "reconcile")
    ] == [True, True, False, False, False]
    assert not is_by_person(by_incident("ann", 3))
    assert not is_by_person("person ann (incident 3)"), "a plan, by whoever has such a name"


@pytest.mark.parametrize(
    ("verdict", "by"), list(product(sorted(WAITS), ["reconcile", "triage", "case 3"]))
)
def test_a_verdict_that_waits_postpones_until_its_next_look(verdict: Verdict, by: str) -> None:
    later = NOW + timedelta(hours=2)
    assert decided(judged("billing", verdict, next_look=later), by=by).until == later  # type: ignore[attr-defined]
    soon = decided(judged("billing", verdict, next_look=NOW), by=by)
    assert isinstance(soon, Postpone) and soon.until == NOW + POLICY.recheck


def test_a_stalled_delivery_waits_for_the_broker_unless_its_group_takes_no_duplicates() -> None:
    stalled = judged("billing", Verdict.STALLED, next_look=NOW + timedelta(hours=6))
    assert isinstance(decided(stalled), Postpone)
    assert isinstance(decided(stalled, duplicates={"billing": "no"}), NotNeeded)
    assert decided(stalled, duplicates={"billing": "no"}, by="case 9") == Send(None, "topic")


@pytest.mark.parametrize("by", ["triage", "ann (incident 3)", "person ann"])
def test_work_that_was_begun_is_not_repeated_for_a_group_without_duplicates_unless_by_its_case(
    by: str,
) -> None:
    """A plan and triage ask for no such group: it joined their request, or was declared otherwise since. A list looks at no message."""
    stalled = judged("billing", Verdict.STALLED)
    none = {"billing": "no", "shipping": "guard"}
    assert isinstance(decided(stalled, duplicates=none, by=by), NotNeeded)
    lost = judged("shipping", Verdict.LOST, eligible=True)
    assert decided(stalled, lost, duplicates=none, by=by) == NotNeeded(NO_ROUTE), (
        "nor by the copy for another group"
    )
    assert decided(stalled, duplicates={"billing": "guard"}, by=by) == Send(None, "topic")
    dead = judged("billing", Verdict.DEAD_LETTERED)
    assert not isinstance(decided(dead, duplicates=none, by=by), Send)


def test_nobody_lends_their_name_to_the_groups_that_others_asked_for() -> None:
    none = {"billing": "no", "shipping": "no"}
    asked_by = {"billing": "case 3", "*": "reconcile"}
    both = judged("billing", Verdict.STALLED), judged("shipping", Verdict.STALLED)
    joined = decided(*both, duplicates=none, by="case 3", asked_by=asked_by)
    assert joined == Send(("billing",), "topic")
    other = decided(both[1], duplicates=none, by="case 3", asked_by=asked_by)
    assert isinstance(other, NotNeeded), "what is left of the request is the machine's"
    lost = judged("shipping", Verdict.LOST, eligible=True)
    done = judged("billing", Verdict.CONFIRMED)
    assert decided(done, lost, duplicates=none, by="case 3", asked_by=asked_by) == NotNeeded(
        NO_ROUTE
    ), "nor the harm that its copy would do to another"
    dead = judged("billing", Verdict.STALLED), judged("shipping", Verdict.DEAD_LETTERED)
    for by in ("case 3", "person ann", "ann (incident 3)", "triage"):
        asked = {"billing": by, "shipping": "reconcile"}
        assert decided(*dead, by=by, asked_by=asked) == Send(("billing",), "topic"), by


def test_of_two_groups_that_each_have_a_way_of_their_own_one_is_sent_to_and_nobody_else() -> None:
    lost = [judged(group, Verdict.LOST, eligible=True) for group in ("billing", "shipping")]
    blocked = {"audit": "no", "billing": "guard", "shipping": "guard"}
    audit = judged("audit", Verdict.CONFIRMED)
    for by, asked_by, first in (
        ("reconcile", None, "billing"),
        ("case 5", None, "billing"),
        ("case 5", {"shipping": "case 5", "*": "reconcile"}, "shipping"),
    ):
        found = decided(
            *lost, audit, duplicates=blocked, by=by, asked_by=asked_by, own_retry_topic=True
        )
        assert found == Send((first,), "group")
    assert decided(*lost, audit, duplicates=blocked, by="case 5") == Send(
        ("billing", "shipping"), "topic"
    ), "without such a way a person decided so"
    assert [whose_turn(["shipping", "billing"], number) for number in (1, 2, 3, 4)] == [
        "billing",
        "shipping",
    ] * 2, "none uses up the sends of the other"


def test_no_way_to_send_closes_a_machines_request_for_reconcile_to_make_the_case() -> None:
    lost = judged("billing", Verdict.LOST, eligible=True)
    blocked = {"billing": "guard", "shipping": "no"}
    assert decided(lost, duplicates=blocked) == NotNeeded(NO_ROUTE)
    for by in ("triage", "ann (incident 3)", "person ann"):
        assert decided(judged("billing", Verdict.STALLED), duplicates=blocked, by=by) == NotNeeded(
            NO_ROUTE
        )
    assert decided(lost, duplicates=blocked, by="case 5") == Send(("billing",), "topic"), (
        "a person decided so"
    )


def test_while_no_copy_exists_a_group_without_duplicates_is_waited_for_until_its_verdict_is_known() -> (
    None
):
    unsent = judged("billing", Verdict.UNSENT, eligible=True)
    unknown = judged("shipping", Verdict.UNKNOWN, next_look=NOW + timedelta(hours=1))
    blocked = {"billing": "guard", "shipping": "no"}
    waiting = decided(unsent, unknown, duplicates=blocked, never_sent=True)
    assert waiting == Postpone(NOW + timedelta(hours=1), "shipping UNKNOWN (reason)")
    assert decided(unsent, unknown, duplicates=blocked) == NotNeeded(NO_ROUTE), (
        "a copy may have reached it"
    )
    for verdict in (Verdict.CONFIRMED, Verdict.VOIDED, Verdict.UNSENT):
        known = judged("shipping", verdict)
        assert decided(unsent, known, duplicates=blocked, never_sent=True) == NotNeeded(NO_ROUTE)
    assert decided(unsent, unknown, duplicates=blocked, never_sent=True, by="case 5") == Send(
        ("billing",), "topic"
    )


@pytest.mark.parametrize("by", ["reconcile", "triage", "case 3"])
def test_nothing_is_sent_beyond_the_replay_horizon_by_a_person_either(by: str) -> None:
    lost = judged("billing", Verdict.LOST, eligible=True)
    assert decided(lost, by=by, age=POLICY.replay_horizon) == NotNeeded(TOO_OLD)
    assert isinstance(
        decided(lost, by=by, age=POLICY.replay_horizon - timedelta(microseconds=1)), Send
    )


def test_a_message_that_no_group_owes_needs_no_send() -> None:
    assert isinstance(decided(), NotNeeded)


def test_a_copy_carries_its_number_and_its_groups_and_keeps_everything_else() -> None:
    message = Message(
        "t", "i", b"\x00", {"x": "1", SEND_HEADER: "1", GROUPS_HEADER: '["old"]'}, "tag", "key"
    )
    copy = as_copy(message, 3, ('a"b', "ü"))
    assert (copy.content, copy.tag, copy.partition_key) == (b"\x00", "tag", "key")
    assert copy.headers == {"x": "1", SEND_HEADER: "3", GROUPS_HEADER: '["a\\"b", "ü"]'}
    assert GROUPS_HEADER not in as_copy(message, 3, None).headers


class Broker:
    """Stores every copy, and remembers the ways by which they came."""

    def __init__(self) -> None:
        self.ways: list[str | None] = []

    def publish(self, copies: list[Message], *, group: str | None = None) -> list[Receipt]:
        self.ways.append(group)
        return [Receipt(Outcome.SENT) for _ in copies]


@pytest.mark.parametrize(("in_time", "handed"), [(0, set()), (1, {0, 3}), (3, {0, 1, 2, 3})])
def test_no_way_begins_for_which_no_time_is_left(in_time: int, handed: set[int]) -> None:
    """Requests 0 and 3 go out together; `in_time`: how many ways begin before the time runs out."""
    broker: Any = Broker()
    taken = {
        n: (Request(n, Key("t", f"m{n}"), 2, (g,), "LOST", RECONCILE), Message("t", f"m{n}", b""))
        for n, g in enumerate(("a", "b", "c", "a"))
    }
    sends = {n: Send(request.groups, "group") for n, (request, _) in taken.items()}
    receipts = publish(broker, taken, sends, lambda: len(broker.ways) < in_time)
    assert broker.ways == ["a", "b", "c"][:in_time]
    assert receipts.keys() == handed, "one receipt for each that was handed to the broker"


def test_an_outcome_that_was_settled_too_late_counts_as_unknown() -> None:
    late = end_of_send(Outcome.UNKNOWN, Receipt(Outcome.SENT), Send(None, "topic"))
    assert late.state is RequestState.UNKNOWN and "too late" in str(late.error)
    good = Receipt(Outcome.REFUSED, error="too large", refused_for_good=True)
    refused = end_of_send(Outcome.REFUSED, good, Send(None, "topic"))
    assert refused.error == FOR_GOOD + "too large"


def _left(expired: bool) -> LeftBehind:
    return LeftBehind(7, "shop_a", KEY, 2, "token", expired)


def _stub(send_count: int, token: str | None = None) -> Stub:
    return Stub("shop_a", *KEY, "pending", send_count, 0, None, NOW, NOW, attempt_token=token)


def _attempt(outcome: str, by: str = "request 7") -> Attempt:
    return Attempt(*KEY, 2, None, by, NOW, NOW, outcome)


def test_recovery_reads_from_the_shard_how_far_the_worker_came() -> None:
    for expired in (True, False):
        for outcome in ("sent", "refused", "unknown"):
            assert end_of(_left(expired), _stub(2), [_attempt(outcome)])[0] == outcome  # type: ignore[index]
    assert end_of(_left(True), _stub(1), [])[0] is RequestState.OPEN  # type: ignore[index]
    assert end_of(_left(False), _stub(1), []) is None, "its worker may still take the number"
    assert end_of(_left(True), _stub(2, "t"), []) is None, "the attempt has not run out"
    assert end_of(_left(True), _stub(2, None), [])[0] is RequestState.UNKNOWN  # type: ignore[index]
    assert end_of(_left(True), _stub(3, "t"), [])[0] is RequestState.UNKNOWN  # type: ignore[index]
    assert end_of(_left(True), None, [])[0] is RequestState.NOT_NEEDED  # type: ignore[index]
    taken = end_of(_left(True), _stub(2), [_attempt("sent", "request 8")])
    assert taken is not None and taken[0] is RequestState.SUPERSEDED
