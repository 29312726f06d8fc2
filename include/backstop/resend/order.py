"""Keeps the order of a key: holds back, of what was to be sent, what others of its key stand before or have overtaken.

A message waits until everything before it in its key is confirmed or voided, so that two of one key are never under way
together, in whatever batches they were claimed. A copy goes to the key's queue: the key travels with the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstop.cases.open import open_case
from backstop.model.records import Key, Verdict
from backstop.requests.policy import Decision, Send, askers_of, is_by_person
from backstop.resend.claim import Request, TopicShard, Worker
from backstop.resend.order_policy import STUCK, CaseKind, decide_order
from backstop.runs.run import hold
from backstop.stores.protocol import Neighbours

_SUMMARIES: Mapping[CaseKind, str] = {
    "order_gap": "{n} lost messages of {topic} belong before others of key {key!r} that may have been sent already",
    "order_parked": "{n} messages of {topic} wait behind {blocker} of key {key!r}, which does not get through",
}
_PAGE = 200
"""Messages of a key that are judged at once."""
_LONGEST_LINE = 2_000
"""Stuck messages of a key that a person's request is let past in one claim."""


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A message that a person must decide about, and the other one that is in the way."""

    kind: CaseKind
    ordering_key: str
    blocker: str
    message: Key


@dataclass(frozen=True, slots=True)
class Line:
    """The open messages of a key, from the first: those that are stuck, then one that moves (null: none does)."""

    stuck: frozenset[str]
    moving: str | None

    def before(self, message_id: str) -> str | None:
        """The moving one, when this message stands behind it."""
        return None if message_id == self.moving or message_id in self.stuck else self.moving


def keep_order(
    worker: Worker,
    topic_shard: TopicShard,
    requests: Sequence[Request],
    decisions: Mapping[int, Decision],
) -> tuple[dict[int, Decision], list[OutOfOrder]]:
    """The decisions with what must wait postponed, and what a person must be asked; nothing is written.

    Raises StoreUnavailable when the shard does not answer.
    """
    kept, found = dict(decisions), list[OutOfOrder]()
    sends = [(r, d) for r in requests if isinstance(d := decisions[r.request_id], Send)]
    if not sends:
        return kept, found
    around = worker.judge.sources.shard(topic_shard.shard).neighbours(
        [request.key for request, _ in sends]
    )
    if not around:
        return kept, found
    heads: dict[str, set[Verdict]] = {}
    wanted = {
        Key(topic_shard.topic, n.open_before) for n in around.values() if n.open_before is not None
    }
    if wanted:
        judgement = worker.judge.judgement(sorted(wanted))
        worker.miss_all(judgement.unreachable)
        later = judgement.as_of + worker.policy(topic_shard.topic).recheck
        for judged in judgement.judged:
            heads.setdefault(judged.message_id, set()).add(judged.verdict)
    else:
        later = worker.instant() + worker.policy(topic_shard.topic).recheck
    every = worker.settings.groups_of(topic_shard.topic)
    # Of a copy that a machine asked for, too, nobody has said that it may overtake.
    people = {
        request.request_id
        for request, send in sends
        if all(
            map(
                is_by_person,
                askers_of(send.groups or every, request.requested_by, request.asked_by),
            )
        )
    }
    lines = _lines_of_people(
        worker, topic_shard, [r for r, _ in sends if r.request_id in people], around, heads
    )
    for request, send in sends:
        near = around.get(request.key)
        answer = decide_order(
            send,
            near,
            heads.get(near.open_before, ()) if near and near.open_before else (),
            by_person=request.request_id in people,
            gap=worker.policy(topic_shard.topic).ordering_gap,
            later=later,
            moving=lines[near.ordering_key].before(request.key.message_id)
            if near and near.ordering_key in lines and request.request_id in people
            else None,
        )
        kept[request.request_id] = answer.decision
        if near is not None and answer.case is not None:
            blocker = near.open_before if answer.case == "order_parked" else near.sent_after
            found.append(OutOfOrder(answer.case, near.ordering_key, blocker or "", request.key))
    return kept, found


def _lines_of_people(
    worker: Worker,
    topic_shard: TopicShard,
    requests: Sequence[Request],
    around: Mapping[Key, Neighbours],
    heads: Mapping[str, set[Verdict]],
) -> dict[str, Line]:
    """The line of each key in which a person's request stands behind a stuck message; of others the first one tells all.

    Raises StoreUnavailable when the shard does not answer.
    """
    near = [around[request.key] for request in requests if request.key in around]
    keys = {
        n.ordering_key
        for n in near
        if n.open_before and STUCK.intersection(heads.get(n.open_before, ()))
    }
    return {key: _line(worker, topic_shard, key) for key in sorted(keys)}


def _line(worker: Worker, topic_shard: TopicShard, ordering_key: str) -> Line:
    """Walks along the open messages of a key to the first that is, for one group at least, neither done nor stuck. In a line
    so long that the claim would run out meanwhile, what lies beyond waits."""
    store, stuck, last = worker.judge.sources.shard(topic_shard.shard), set[str](), None
    while page := store.open_in_line(topic_shard.topic, ordering_key, last, _PAGE):
        judgement = worker.judge.judgement(
            [Key(topic_shard.topic, message_id) for message_id in page]
        )
        worker.miss_all(judgement.unreachable)
        verdicts: dict[str, set[Verdict]] = {}
        for judged in judgement.judged:
            verdicts.setdefault(judged.message_id, set()).add(judged.verdict)
        for message_id in page:
            found = verdicts.get(message_id, set())
            if not found or found - STUCK - {Verdict.CONFIRMED, Verdict.VOIDED}:
                return Line(frozenset(stuck), message_id)
            stuck.add(message_id)
        last = page[-1]
        if len(stuck) >= _LONGEST_LINE:
            return Line(frozenset(stuck), last)
    return Line(frozenset(stuck), None)


def ask_people(worker: Worker, topic_shard: TopicShard, found: Sequence[OutOfOrder]) -> int:
    """One case for each key, in one transaction; returns how many."""
    by_key: dict[tuple[CaseKind, str], list[OutOfOrder]] = {}
    for one in found:
        by_key.setdefault((one.kind, one.ordering_key), []).append(one)
    if not by_key:
        return 0
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        for (kind, ordering_key), members in sorted(by_key.items()):
            open_case(
                cursor,
                kind=kind,
                topic=topic_shard.topic,
                group="*",
                subject=ordering_key,
                severity="warning",
                summary=_SUMMARIES[kind].format(
                    n=len(members),
                    topic=topic_shard.topic,
                    key=ordering_key,
                    blocker=members[0].blocker,
                ),
                evidence={"ordering_key": ordering_key, "in_the_way": members[0].blocker},
                members=[
                    (topic_shard.shard, topic_shard.topic, one.message.message_id, "*")
                    for one in members
                ],
                run_id=worker.run.run_id,
            )
    return len(by_key)
