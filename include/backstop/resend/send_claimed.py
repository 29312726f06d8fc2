"""Brings one claim to its end: judge again, take the numbers, publish, settle, close.

    claimed | numbers taken | published | settled | closed      (control | producer | broker | producer |
    control)

A crash at any bar loses nothing and sends nothing twice: the claim, the attempt, or both run out, and
recovery reads from the send count and the attempts how far it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from time import monotonic
from typing import NamedTuple

from backstop.brokers.protocol import Broker
from backstop.evidence.sources import answers
from backstop.model.errors import (
    BrokerUnavailable,
    ContentErased,
    StoreFailed,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.records import Counts, RequestState
from backstop.requests.ask import ERASED
from backstop.requests.policy import NOT_CLAIMED, Decision, NotNeeded, Send
from backstop.resend.claim import Claimed, Worker, is_paused, take_numbers
from backstop.resend.judge_again import judge_again
from backstop.resend.order import ask_people, keep_order
from backstop.resend.publish import not_published, publish
from backstop.resend.settle import (
    End,
    end_requests,
    end_without_send,
    ends_of_sends,
    settle_attempts,
)
from backstop.stores.protocol import Settlement

_POSTPONED = "postponed"
FRESH_SECONDS = 10.0
"""For so long what a look came to may be acted on."""
_FIRST_CHUNK = 200
"""How many go out before the pause is read for the first time; then as many as take a second."""
_CHUNK_BYTES = 32 * 1024 * 1024
"""Contents of one chunk; a larger message goes out alone. Contents come with the numbers: a worker that ran out of memory then
would use up a number of each message without sending it."""
_SMALL = 4096
"""Bytes that each message up to this size counts for."""


class Looked(NamedTuple):
    """What one look came to, for the requests of one claim or of several."""

    at: float
    """This process's monotonic clock before the look."""
    decisions: Mapping[int, Decision]
    unreachable: Mapping[str, str]
    silent: set[str]
    """Brokers that were found silent since."""


def look_again(worker: Worker, claims: Sequence[Claimed]) -> Looked:
    """Judges all their requests at once; what does not answer is noted."""
    at = monotonic()
    decisions, judgement = judge_again(
        worker, [(claimed.topic_shard, claimed.requests) for claimed in claims]
    )
    worker.miss_all(judgement.unreachable)
    return Looked(at, decisions, judgement.unreachable, set())


def send_claimed(worker: Worker, claimed: Claimed, looked: Looked, counts: Counts) -> bool:
    """Does it; false when the claim's topic and shard should be left for this run, because its shard or broker is away or time
    ran out. A look that is not fresh any more is taken again, for this claim.

    Raises RunLost before anything is published once the run is not ours any more.
    """
    if monotonic() - looked.at > FRESH_SECONDS:
        looked = look_again(worker, [claimed])
    decisions: Mapping[int, Decision] = {
        r.request_id: looked.decisions[r.request_id] for r in claimed.requests
    }
    if away := _away(worker, claimed, looked):
        return hand_back(worker, claimed, counts, away)
    try:
        decisions, found = keep_order(worker, claimed.topic_shard, claimed.requests, decisions)
    except StoreUnavailable as error:
        worker.miss(f"shard {claimed.topic_shard.shard}", error.what)
        return hand_back(worker, claimed, counts, "the shard did not answer")
    if cases := ask_people(worker, claimed.topic_shard, found):
        counts.add("order_cases", cases)
    sends = _sends(decisions)
    reachable, sizes = True, dict[int, int]()
    if sends:
        if not _has_time(worker, claimed, claimed.until):
            worker.miss(
                f"topic {claimed.topic_shard.topic}",
                "judging a batch took longer than its claim lasts",
            )
            return hand_back(worker, claimed, counts, "no time was left after judging")
        broker_name = worker.broker_name(claimed.topic_shard.topic)
        broker = worker.judge.sources.broker(broker_name)
        try:
            # A broker that is away would refuse every message, and each refusal uses up a number.
            broker.clock()
        except BrokerUnavailable as error:
            worker.miss(f"broker {broker_name}", error.what)
            return hand_back(worker, claimed, counts, "the broker did not answer")
        try:
            sizes = _sizes(worker, claimed, sends)
        except StoreUnavailable as error:
            worker.miss(f"shard {claimed.topic_shard.shard}", error.what)
            return hand_back(worker, claimed, counts, "the shard did not answer")
        if monotonic() - looked.at > FRESH_SECONDS:
            # To keep the order took as long as the lines of its keys are; what was done meanwhile gets no copy.
            looked = look_again(worker, [claimed])
            if away := _away(worker, claimed, looked):
                return hand_back(worker, claimed, counts, away)
            decisions = {**decisions, **{number: looked.decisions[number] for number in sends}}
            sends = _sends(decisions)
    ends = {
        number: end_without_send(decisions[number]) for number in decisions.keys() - sends.keys()
    }
    if sends:
        left = dict(sends)
        while left:
            # A stop is honoured here: what has not taken its number goes back, and nothing more is published.
            if is_paused(worker, claimed.topic_shard.topic):
                counts.add("handed_back", len(left))
                ends |= dict.fromkeys(left, End(RequestState.OPEN, "the topic was paused"))
                break
            if not _has_time(worker, claimed, claimed.until):
                worker.miss(
                    f"topic {claimed.topic_shard.topic}",
                    "sending a batch took longer than its claim lasts",
                )
                counts.add("handed_back", len(left))
                ends |= dict.fromkeys(
                    left, End(RequestState.OPEN, "no time was left for it in this claim")
                )
                reachable = False
                break
            now = _next_chunk(worker, claimed, left, sizes)
            left = {number: send for number, send in left.items() if number not in now}
            began = monotonic()
            try:
                ends |= _send(worker, broker, claimed, decisions, now, counts)
            except StoreUnavailable as error:
                # Numbers may be taken and copies published: recovery will tell, once attempts and claim have
                # run out. Those that come after have taken none.
                worker.miss(f"shard {claimed.topic_shard.shard}", error.what)
                counts.add("left_claimed", len(now))
                ends |= {
                    number: End(RequestState.OPEN, "the shard went away before its turn")
                    for number in left
                }
                reachable = False
                break
            took = monotonic() - began
            # A rest that was smaller than allowed says nothing of how many could go out in a second.
            if len(now) >= worker.pace.get(broker_name, _FIRST_CHUNK) or took >= 1:
                worker.pace[broker_name] = paced(len(now), took)
            # Behind a slow broker the rest is claimed and judged anew.
            if left and monotonic() - looked.at > FRESH_SECONDS:
                counts.add("handed_back", len(left))
                ends |= dict.fromkeys(
                    left, End(RequestState.OPEN, "what it was judged by is too old by now")
                )
                break
    for end in ends.values():
        counts.add(_name(end))
    end_requests(worker, claimed, ends)
    return reachable


def _away(worker: Worker, claimed: Claimed, looked: Looked) -> str | None:
    """Which of the claim's own shard and broker the look did not reach; null: both answered."""
    name = worker.broker_name(claimed.topic_shard.topic)
    away = {f"shard {claimed.topic_shard.shard}"} & looked.unreachable.keys()
    # Where the broker answers for this topic, it was another one that could not be read.
    if f"broker {name}" in looked.unreachable and not _answers_for(worker, claimed, looked):
        away |= {f"broker {name}"}
    return f"did not answer: {', '.join(sorted(away))}" if away else None


def _answers_for(worker: Worker, claimed: Claimed, looked: Looked) -> bool:
    """Whether the broker answers, and for the claim's topic. One that is silent is waited for once in each look."""
    topic, sources = claimed.topic_shard.topic, worker.judge.sources
    name = worker.broker_name(topic)
    if name in looked.silent:
        return False
    try:
        sources.broker(name).queues(topic)
    except Unavailable:
        if not answers(partial(sources.broker, name)):
            looked.silent.add(name)
        return False
    return True


def _sends(decisions: Mapping[int, Decision]) -> dict[int, Send]:
    return {number: send for number, send in decisions.items() if isinstance(send, Send)}


def _send(
    worker: Worker,
    broker: Broker,
    claimed: Claimed,
    decisions: Mapping[int, Decision],
    sends: Mapping[int, Send],
    counts: Counts,
) -> dict[int, End]:
    """The ends of every request to send. Raises StoreUnavailable, after which only recovery knows, and
    RunLost."""
    topic_shard = claimed.topic_shard
    store = worker.judge.sources.shard(topic_shard.shard)
    attempt_until = monotonic() + worker.policy(topic_shard.topic).attempt_timeout.total_seconds()
    chunk = replace(claimed, requests=[r for r in claimed.requests if r.request_id in sends])
    taken, refused, unanswered = take_numbers(worker, store, chunk, decisions)
    ends = {
        number: end_without_send(sends[number])
        for number in sends.keys() - taken.keys() - refused.keys() - unanswered
    }
    if unanswered:
        counts.add("left_claimed", len(unanswered))
    erased = {number for number, error in refused.items() if isinstance(error, ContentErased)}
    ends |= dict.fromkeys(erased, end_without_send(NotNeeded(ERASED)))
    if refused := {number: error for number, error in refused.items() if number not in erased}:
        why = next(iter(refused.values())).what
        worker.miss(f"{len(refused)} stubs of shard {topic_shard.shard}", why)
        later = worker.instant() + worker.policy(topic_shard.topic).backoff_base
        ends |= {
            number: End(RequestState.OPEN, f"{NOT_CLAIMED}{error.what}", later)
            for number, error in refused.items()
        }
    if not taken:
        return ends
    counts.add("handed_out", len(taken))
    if worker.settings.rearms(topic_shard.shard):
        # Their relay sends them. The requests stay claimed, and end as their numbers do (recover).
        counts.add("rearmed", len(taken))
        return ends
    # The last look before the copies are out: after it, nothing of ours may stand between the decision and
    # the broker.
    worker.require_run()
    has_time = partial(_has_time, worker, claimed, min(claimed.until, attempt_until))
    receipts = publish(broker, taken, sends, has_time)
    if receipts:
        counts.add("published", len(receipts))
    late = not_published("the worker's claim had run out of time")
    receipts |= dict.fromkeys(taken.keys() - receipts.keys(), late)
    unsettled: list[tuple[Settlement, StoreFailed]] = []
    outcomes = settle_attempts(
        store,
        claimed.token,
        worker.broker_name(topic_shard.topic),
        worker.policy(topic_shard.topic).max_send_duration,
        {number: request for number, (request, _) in taken.items()},
        receipts,
        unsettled,
    )
    if unsettled:
        worker.miss(f"{len(unsettled)} attempts of shard {topic_shard.shard}", unsettled[0][1].what)
    return ends | ends_of_sends(outcomes, receipts, sends)


def _sizes(worker: Worker, claimed: Claimed, sends: Mapping[int, Send]) -> dict[int, int]:
    """The bytes of each large message to send, by request id. Raises StoreUnavailable."""
    by_key = {
        request.key: request.request_id
        for request in claimed.requests
        if request.request_id in sends
    }
    found = worker.judge.sources.shard(claimed.topic_shard.shard).sizes(by_key, above=_SMALL)
    return {by_key[key]: size for key, size in found.items()}


def _next_chunk(
    worker: Worker, claimed: Claimed, left: Mapping[int, Send], sizes: Mapping[int, int]
) -> dict[int, Send]:
    """As many as go out in about a second, by what the chunk before took; within _CHUNK_BYTES."""
    chosen = list(
        islice(left, worker.pace.get(worker.broker_name(claimed.topic_shard.topic), _FIRST_CHUNK))
    )
    total = accumulate(sizes.get(request_id, _SMALL) for request_id in chosen)
    fitting = sum(1 for size in total if size <= _CHUNK_BYTES)
    return {request_id: left[request_id] for request_id in chosen[: max(1, fitting)]}


def paced(number: int, seconds: float) -> int:
    """How many messages to publish before the pause is read again, when `number` took so many seconds (pure)."""
    if seconds <= 0:
        return number * 2
    return max(1, min(number * 2, int(number / seconds)))


def _has_time(worker: Worker, claimed: Claimed, until: float) -> bool:
    """Is more time left than a send may take?"""
    return (
        until - monotonic()
        > worker.policy(claimed.topic_shard.topic).max_send_duration.total_seconds()
    )


def hand_back(worker: Worker, claimed: Claimed, counts: Counts, why: str) -> bool:
    """Every request of the claim is open again: none of their numbers was taken. False: see `send_claimed`."""
    counts.add("handed_back", len(claimed.requests))
    end_requests(
        worker,
        claimed,
        dict.fromkeys([r.request_id for r in claimed.requests], End(RequestState.OPEN, why)),
    )
    return False


def _name(end: End) -> str:
    return _POSTPONED if end.state is RequestState.OPEN else str(end.state)
