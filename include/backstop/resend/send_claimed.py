"""Brings one claim to its end: judge again, take the numbers, publish, settle, close.

    claimed | numbers taken | published | settled | closed      (control | producer | broker | producer |
    control)

A crash at any bar loses nothing and sends nothing twice: the claim, the attempt, or both run out, and
recovery reads from the send count and the attempts how far it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from backstop.brokers.protocol import Broker
from backstop.errors import BrokerUnavailable, StoreUnavailable
from backstop.records import Counts, RequestState
from backstop.resend.claim import Claimed, Worker, judge_again, take_numbers
from backstop.resend.policy import Decision, Send
from backstop.resend.publish import not_published, publish
from backstop.resend.settle import End, end_of_send, end_requests, end_without_send, settle_attempts

_POSTPONED = "postponed"


def send_claimed(worker: Worker, claimed: Claimed, counts: Counts) -> bool:
    """Does it; false when the lot should be left for this run, because its shard or broker is away or time
    ran out.

    Raises RunLost before anything is published once the run is not ours any more.
    """
    decisions, judgement = judge_again(worker, claimed.lot, claimed.requests)
    worker.miss_all(judgement.unreachable)
    broker_name = worker.broker_name(claimed.lot.topic)
    away = {f"shard {claimed.lot.shard}", f"broker {broker_name}"} & judgement.unreachable.keys()
    if away:
        return _hand_back(worker, claimed, decisions, counts, f"did not answer: {', '.join(sorted(away))}")
    sends = {number: decision for number, decision in decisions.items() if isinstance(decision, Send)}
    ends = {number: end_without_send(decisions[number]) for number in decisions.keys() - sends.keys()}
    reachable = True
    if sends:
        broker = worker.judge.sources.broker(broker_name)
        if not _has_time(worker, claimed, claimed.until):
            worker.miss(f"topic {claimed.lot.topic}", "judging a batch took longer than its claim lasts")
            return _hand_back(worker, claimed, decisions, counts, "no time was left after judging")
        try:
            # A broker that is away would refuse every message, and each refusal uses up a number.
            broker.clock()
        except BrokerUnavailable as error:
            worker.miss(f"broker {broker_name}", error.what)
            return _hand_back(worker, claimed, decisions, counts, "the broker did not answer")
        worker.require_run()
        try:
            ends |= _send(worker, broker, claimed, decisions, sends, counts)
        except StoreUnavailable as error:
            # Numbers may be taken and copies published: recovery will tell, once attempts and claim have run
            # out.
            worker.miss(f"shard {claimed.lot.shard}", error.what)
            counts.add("left_claimed", len(sends))
            reachable = False
    for end in ends.values():
        counts.add(_name(end))
    end_requests(worker, claimed, ends)
    return reachable


def _send(
    worker: Worker, broker: Broker, claimed: Claimed, decisions: Mapping[int, Decision],
    sends: Mapping[int, Send], counts: Counts,
) -> dict[int, End]:  # fmt: skip
    """The ends of every request to send. Raises StoreUnavailable, after which only recovery knows, and
    RunLost."""
    lot = claimed.lot
    store = worker.judge.sources.shard(lot.shard)
    attempt_until = monotonic() + worker.policy(lot.topic).attempt_timeout.total_seconds()
    taken = take_numbers(worker, store, claimed, decisions)
    ends = {number: end_without_send(sends[number]) for number in sends.keys() - taken.keys()}
    if not taken:
        return ends
    counts.add("handed_out", len(taken))
    contents = store.contents([request.key for request in taken.values()])
    # The last look before the copies are out: after it, nothing of ours may stand between the decision and
    # the broker.
    worker.require_run()
    if _has_time(worker, claimed, min(claimed.until, attempt_until)):
        receipts = publish(broker, taken, sends, contents)
        counts.add("published", sum(request.key in contents for request in taken.values()))
    else:
        receipts = {number: not_published("the worker's claim had run out of time") for number in taken}
    outcomes = settle_attempts(
        store, claimed.token, worker.broker_name(lot.topic), worker.policy(lot.topic).max_send_duration, taken, receipts
    )
    for number, outcome in outcomes.items():
        ends[number] = end_of_send(outcome, receipts[number], sends[number])
    return ends


def _has_time(worker: Worker, claimed: Claimed, until: float) -> bool:
    """Is more time left than a send may take?"""
    return until - monotonic() > worker.policy(claimed.lot.topic).max_send_duration.total_seconds()


def _hand_back(
    worker: Worker, claimed: Claimed, decisions: Mapping[int, Decision], counts: Counts, why: str
) -> bool:
    """Every request of the claim is open again: none of their numbers was taken."""
    counts.add("handed_back", len(decisions))
    end_requests(worker, claimed, {number: End(RequestState.OPEN, why) for number in decisions})
    return False


def _name(end: End) -> str:
    return _POSTPONED if end.state is RequestState.OPEN else str(end.state)
