"""Claims requests in the control database, and takes the send numbers of those to send from the shards.

    due requests -> claimed until a deadline | judged again (judge_again.py) -> send_count moves, or superseded |

The bars are commits, first of the control database, then of the producer's. A worker that dies in between
loses nothing: its claim runs out, and the send count tells whether the number was taken.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from backstop.config.policy import Policy
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.judge_by_key import Judge
from backstop.model.errors import StoreFailed, StoreUnavailable
from backstop.model.records import Key, Message
from backstop.requests.policy import (
    RECONCILE,
    Decision,
    Send,
    expected_queue_delay,
    jitter,
)
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.stores.protocol import Claim, StubStore

_SQL = load("backstop.resend", "queries.sql")
_LONGEST_WAIT = 1.0
"""Seconds between two looks at the pause while the rate has no room."""


@dataclass(frozen=True, slots=True)
class TopicShard:
    """One topic in one shard: its requests are claimed together."""

    topic: str
    shard: str


class Request(NamedTuple):
    """A resend request in a worker's hands. A tuple, because a run makes one for each message."""

    request_id: int
    key: Key
    send_number: int
    groups: tuple[str, ...] | None
    reason: str
    requested_by: str
    held: bool = False
    """Only in a dry run: it waits for a step of its topic's ramp."""
    asked_by: Mapping[str, str] | None = None
    """See policy.asker_of."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one claim got. `until` is this process's monotonic clock, never later than the stored deadline."""

    topic_shard: TopicShard
    token: str
    requests: Sequence[Request]
    not_before: float
    """The same clock when the topic's rate has room for them; without requests: when to ask again (0: nothing is due)."""
    until: float


@dataclass(slots=True)
class Worker:
    """What a worker holds: settings, its connection to the control database, its judge, and the run it works
    for."""

    settings: Settings
    control: Any
    judge: Judge
    run: Run
    only: tuple[str, ...] | None = None
    """The ids that the run is limited to; null: whatever is due."""
    pace: dict[str, int] = field(default_factory=dict)
    """By broker: how many messages are published between two looks at the pause."""
    delays: dict[str, float] = field(default_factory=dict)
    """Expected queue delay in seconds by topic, as of the present round."""
    missed: dict[str, str] = field(default_factory=dict)
    """What did not answer ("shard shop_a", "broker embedded", "store billing_db"), and why."""

    def miss(self, subject: str, why: str) -> None:
        """Something did not answer: what needs it is left for the next run."""
        self.missed.setdefault(subject, why)

    def miss_all(self, unreachable: Mapping[str, str]) -> None:
        for subject, why in unreachable.items():
            self.miss(subject, why)

    def require_run(self) -> None:
        """Proves that the run is still ours; RunLost otherwise."""
        with self.control, self.control.cursor() as cursor:
            hold(cursor, self.run)

    def instant(self) -> datetime:
        """The control database's clock."""
        with self.control, self.control.cursor() as cursor:
            cursor.execute(_SQL["clock"])
            now: datetime = cursor.fetchone()[0]
            return now

    def policy(self, topic: str) -> Policy:
        return self.settings.policy_for(topic)

    def broker_name(self, topic: str) -> str:
        return self.settings.topics[topic].broker


def is_paused(worker: Worker, topic: str) -> bool:
    """Whether a person has stopped the topic, or everything."""
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["paused"], {"topic": topic})
        return bool(cursor.fetchone()[0])


def find_due(worker: Worker, cut: datetime, *, with_held: bool = False) -> dict[TopicShard, int]:
    """How many requests are due of each topic in each shard, oldest first; only topics in mode repair, of the run's scope,
    not paused; those that a ramp holds only when asked for."""
    topics = worker.settings.repaired(topics_of(worker.run.scope))
    with worker.control, worker.control.cursor() as cursor:
        cursor.execute(
            _SQL["due_topic_shards"],
            {
                "cut": cut,
                "topics": topics,
                "with_held": with_held,
                "ids": _ids(worker),
            },
        )
        return {TopicShard(topic, shard): number for topic, shard, number in cursor.fetchall()}


def claim_requests(worker: Worker, topic_shard: TopicShard, cut: datetime, limit: int) -> Claimed:
    """At most `limit` due requests of the topic in the shard, and their share of the topic's rate; committed.

    The rate is one row a topic and broker: the instant up to which it is spoken for. Workers queue for that
    row, take as many requests as one second allows and move the instant by what they took, so that any number
    of workers keeps to it. A share that is not used (nothing to send after all) is not given back: the rate
    is a limit, not a target.
    """
    policy, token = worker.policy(topic_shard.topic), str(uuid.uuid4())
    limit = min(limit, max(1, int(policy.rate_limit)))
    subject = "resend rate " + json.dumps(
        [worker.broker_name(topic_shard.topic), topic_shard.topic]
    )
    claim_seconds = policy.claim_timeout.total_seconds()
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["begin_rate"], {"subject": subject})
        cursor.execute(_SQL["lock_rate"], {"subject": subject})
        wait = float(cursor.fetchone()[0])
        # A claim that would spend its time waiting is not taken: others are before us, and we ask again.
        # One second at most, so that a pause is seen before the turn comes.
        if wait > min(_LONGEST_WAIT, claim_seconds / 4):
            cursor.execute(_SQL["paused"], {"topic": topic_shard.topic})
            if cursor.fetchone()[0]:
                return Claimed(topic_shard, token, (), 0.0, 0.0)
            return Claimed(topic_shard, token, (), monotonic() + min(wait, _LONGEST_WAIT), 0.0)
        now = monotonic()
        cursor.execute(
            _SQL["claim"],
            {
                "cut": cut,
                "topic": topic_shard.topic,
                "shard": topic_shard.shard,
                "limit": limit,
                "token": token,
                "seconds": claim_seconds,
                "ids": _ids(worker),
            },
        )
        requests = [_request(row) for row in cursor.fetchall()]
        cursor.execute(
            _SQL["use_rate"], {"subject": subject, "seconds": len(requests) / policy.rate_limit}
        )
    return Claimed(
        topic_shard, token, requests, now + wait if requests else 0.0, now + claim_seconds
    )


def read_due_requests(
    worker: Worker, topic_shard: TopicShard, cut: datetime, after: int, limit: int
) -> list[Request]:
    """The same for a dry run: nothing is claimed, so nothing has to be given back."""
    with worker.control, worker.control.cursor() as cursor:
        cursor.execute(
            _SQL["due_requests"],
            {
                "cut": cut,
                "topic": topic_shard.topic,
                "shard": topic_shard.shard,
                "after": after,
                "limit": limit,
                "ids": _ids(worker),
            },
        )
        return [_request(row) for row in cursor.fetchall()]


class Numbers(NamedTuple):
    """What became of the numbers of messages to send, by request id; one that is in none of these had moved on."""

    taken: dict[int, tuple[Request, Message]]
    """Now ours, and what to publish."""
    refused: dict[int, StoreUnavailable]
    """The shard refuses to change their row, or it holds nothing that can be sent (now, or ever): nobody has their number."""
    unanswered: set[int]
    """The shard went away, or refused too many, when others had their number: recovery finds out about these."""


def take_numbers(
    worker: Worker, store: StubStore, claimed: Claimed, decisions: Mapping[int, Decision]
) -> Numbers:
    """Moves the send count of every message to send; one commit of the shard, or several around rows that it refuses.

    Raises StoreUnavailable if nothing is known of any of them: then some may be taken, and recovery finds out.
    """
    policy, topic = worker.policy(claimed.topic_shard.topic), claimed.topic_shard.topic
    attempt_seconds, delay = policy.attempt_timeout.total_seconds(), worker.delays.get(topic, 0.0)
    broker = worker.broker_name(topic)
    wanted, claims = {}, []
    policies: dict[tuple[str, ...] | None, list[Policy]] = {}
    waits = {
        number: policy.backoff(number).total_seconds()
        for number in {request.send_number for request in claimed.requests}
    }
    for request in claimed.requests:
        if isinstance(decision := decisions[request.request_id], Send):
            wanted[request.key] = request
            if decision.groups not in policies:
                # Each group was judged by its own: whoever has sends left is sent to.
                groups = decision.groups or worker.settings.groups_of(topic) or (None,)
                policies[decision.groups] = [
                    worker.settings.policy_for(topic, group) for group in groups
                ]
            claims.append(
                Claim(
                    key=request.key,
                    send_number=request.send_number,
                    token=claimed.token,
                    groups=decision.groups,
                    requested_by=f"request {request.request_id}",
                    attempt_seconds=attempt_seconds,
                    next_check_seconds=waits[request.send_number]
                    * jitter(request.send_number, request.key, policy)
                    + delay,
                    max_sends=max(one.max_sends for one in policies[decision.groups]),
                    max_refusals=max(one.max_refusals for one in policies[decision.groups]),
                    only_when_due=request.requested_by == RECONCILE,
                    broker=broker,
                )
            )
    refused: list[tuple[Claim, StoreFailed]] = []
    won: dict[Key, Message] = {}
    asked, unanswered = set[Key](), set[Key]()

    def take(some: Sequence[Claim]) -> None:
        won.update(store.claim(some))
        asked.update(claim.key for claim in some)

    try:
        apply_apart(claims, take, refused)
    except StoreUnavailable as error:
        if not won and not refused:
            raise
        # What it took before is committed, and goes out.
        worker.miss(f"shard {claimed.topic_shard.shard}", error.what)
        unanswered = wanted.keys() - asked - {claim.key for claim, _ in refused}
    failed: dict[Key, StoreUnavailable] = {claim.key: error for claim, error in refused}
    if left := asked - won.keys():
        try:
            failed |= store.unsendable(left)
        except StoreUnavailable as error:
            failed |= dict.fromkeys(left, error)
    return Numbers(
        {wanted[key].request_id: (wanted[key], message) for key, message in won.items()},
        {wanted[key].request_id: error for key, error in failed.items()},
        {wanted[key].request_id for key in unanswered},
    )


def measure_queue_delays(worker: Worker, topics: Iterable[str]) -> None:
    """Remembers how long a new copy of each topic will wait behind its slowest group, from what reconcile
    recorded."""
    with worker.control, worker.control.cursor() as cursor:
        for topic in topics:
            cap = worker.policy(topic).queue_delay_cap
            cursor.execute(
                _SQL["waiting"],
                {
                    "topic": topic,
                    "broker": worker.broker_name(topic),
                    "window": cap.total_seconds(),
                },
            )
            waiting = [(lag, rate) for _, lag, rate in cursor.fetchall()]
            worker.delays[topic] = expected_queue_delay(waiting, cap).total_seconds()


def _request(row: Sequence[Any]) -> Request:
    request_id, topic, message_id, send_number, groups, reason, requested_by, asked_by, held = row
    asked, key = None if groups is None else tuple(groups), Key(topic, message_id)
    return Request(request_id, key, send_number, asked, reason, requested_by, held, asked_by)


def _ids(worker: Worker) -> list[str] | None:
    return None if worker.only is None else list(worker.only)
