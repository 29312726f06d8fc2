"""Judges the messages of claimed requests again, by a fresh look on the primaries: what does each request come to?

Of thousands of messages most are in the same situation; each situation is decided once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from backstop.evidence.judge_by_key import Judgement
from backstop.model.errors import Unavailable
from backstop.model.read_json import read_json
from backstop.requests.ask import (
    ERASED,
    duplicates_of,
    erased_among,
    sends_to_one_group,
    unread_guards,
)
from backstop.requests.policy import (
    RECONCILE,
    SEVERAL_SHARDS,
    TOO_OLD,
    TRIAGE,
    Decision,
    NotNeeded,
    Postpone,
    Send,
    askers_of,
    decide,
    is_by_incident,
    is_by_person,
    may_repeat,
)
from backstop.resend.claim import Request, TopicShard, Worker
from backstop.resend.ramp_policy import A_PERSONS
from backstop.sql.named import load
from backstop.verdicts.frames import instant, micros

_SQL = load("backstop.resend", "situations.sql")
_QUERIES = load("backstop.resend", "queries.sql")
_REQUEST = pa.schema(
    [
        ("place", pa.int32()),
        ("request_id", pa.int64()),
        ("topic", pa.string()),
        ("message_id", pa.string()),
        ("send_number", pa.int32()),
        ("groups", pa.list_(pa.string())),
        ("requested_by", pa.string()),
        ("asker", pa.string()),
        ("asked_by", pa.string()),
    ]
)
_TOPIC_SHARD = pa.schema([("place", pa.int32()), ("shard", pa.string()), ("too_old", pa.int64())])


def judge_again(
    worker: Worker, topic_shards: Sequence[tuple[TopicShard, Sequence[Request]]]
) -> tuple[dict[int, Decision], Judgement]:
    """What each request comes to, judged together; decisions by request id.

    Raises nothing for what does not answer: see the judgement's `unreachable`; what needs it is postponed.
    """
    judgement = worker.judge.judgement(
        [request.key for _, requests in topic_shards for request in requests]
    )
    topic_shards, emptied = _without_held(worker, topic_shards)
    decisions: dict[int, Decision] = {}
    by_place = [_Decider(worker, topic_shard, judgement) for topic_shard, _ in topic_shards]
    for situation in _situations(worker, topic_shards, judgement):
        decisions |= dict.fromkeys(
            situation["request_ids"], by_place[situation["place"]].decide(situation)
        )
    requests = [request for _, some in topic_shards for request in some]
    decisions |= dict.fromkeys(emptied, NotNeeded(A_PERSONS))
    decisions |= _a_persons(worker, requests, decisions)
    return decisions | _erased(worker, requests, decisions), judgement


def _without_held(
    worker: Worker, topic_shards: Sequence[tuple[TopicShard, Sequence[Request]]]
) -> tuple[Sequence[tuple[TopicShard, Sequence[Request]]], list[int]]:
    """Requests that several asked for without the groups of reconcile's that its blast radius holds by now: only a person sends to
    these. And the numbers of those that no group is left of, which stay as they are."""
    ids = [
        one.request_id
        for _, some in topic_shards
        for one in some
        if one.asked_by is not None or one.requested_by == TRIAGE
    ]
    if not ids:
        return topic_shards, []
    with worker.control, worker.control.cursor() as cursor:
        cursor.execute(_QUERIES["held_groups"], {"ids": ids})
        held: dict[int, list[str]] = dict(cursor.fetchall())
    if not held:
        return topic_shards, []
    emptied: list[int] = []

    def narrowed(one: Request, every: Sequence[str]) -> Request:
        without = held.get(one.request_id)
        if without is None:
            return one
        wanted = every if one.groups is None else one.groups
        if groups := tuple(group for group in wanted if group not in without):
            return one._replace(groups=groups)
        emptied.append(one.request_id)
        return one

    rest = [
        (where, [narrowed(one, worker.settings.groups_of(where.topic)) for one in some])
        for where, some in topic_shards
    ]
    return rest, emptied


def _a_persons(
    worker: Worker, requests: Sequence[Request], decisions: Mapping[int, Decision]
) -> dict[int, Decision]:
    """Of the copies that reconcile alone asked for, those that its blast radius holds by now: their requests close, and a person's
    answer opens them."""
    sends = [
        one.request_id
        for one in requests
        if isinstance(send := decisions[one.request_id], Send)
        and askers_of(
            send.groups or worker.settings.groups_of(one.key.topic), one.requested_by, one.asked_by
        )
        == {RECONCILE}
    ]
    if not sends:
        return {}
    pairs = unread_guards(worker.settings)
    values = {
        "ids": sends,
        "topics": [topic for topic, _ in pairs],
        "groups": [group for _, group in pairs],
    }
    with worker.control, worker.control.cursor() as cursor:
        cursor.execute(_QUERIES["a_persons"], values)
        return {number: NotNeeded(A_PERSONS) for (number,) in cursor.fetchall()}


def _erased(
    worker: Worker, requests: Sequence[Request], decisions: Mapping[int, Decision]
) -> dict[int, Decision]:
    """Of the requests to send, those whose message was erased: they close."""
    sends = {
        request.request_id: request.key
        for request in requests
        if isinstance(decisions[request.request_id], Send)
    }
    if not sends:
        return {}
    with worker.control, worker.control.cursor() as cursor:
        erased = erased_among(cursor, list(sends.values()))
    return {number: NotNeeded(ERASED) for number, key in sends.items() if key in erased}


def _situations(
    worker: Worker,
    topic_shards: Sequence[tuple[TopicShard, Sequence[Request]]],
    judgement: Judgement,
) -> list[dict[str, Any]]:
    """Rows of situations.sql."""
    requests = [request for _, some in topic_shards for request in some]
    if not requests:
        return []
    places = [place for place, (_, some) in enumerate(topic_shards) for _ in some]
    request_ids, keys, numbers, groups, _, requested_by, _, asked_by = zip(*requests, strict=True)
    asker = {who: _asker(who) for who in set(requested_by)}
    columns = [
        places,
        request_ids,
        *zip(*keys, strict=True),
        numbers,
        groups,
        requested_by,
        [asker[who] for who in requested_by],
        [None if by is None else json.dumps(by, sort_keys=True) for by in asked_by],
    ]
    too_old = [
        micros(judgement.as_of - worker.policy(topic_shard.topic).replay_horizon)
        for topic_shard, _ in topic_shards
    ]
    stubs = judgement.stub_table
    found: list[dict[str, Any]] = worker.judge.engine.query(
        _SQL["situations"],
        {
            "request": pa.table(columns, schema=_REQUEST),
            "topic_shard": pa.table(
                [
                    list(range(len(topic_shards))),
                    [topic_shard.shard for topic_shard, _ in topic_shards],
                    too_old,
                ],
                schema=_TOPIC_SHARD,
            ),
            "stub": stubs.append_column("stub_place", pa.array(range(stubs.num_rows))),
            "delivery": judgement.numbered[0],
        },
    ).to_pylist()
    return found


def _asker(requested_by: str) -> str:
    """Who asks, as far as `decide` cares."""
    if is_by_incident(requested_by):
        return "an incident"
    if may_repeat(requested_by):
        return "a person"
    return "a list" if is_by_person(requested_by) else requested_by


class _Decider:
    """Decides the situations of one topic in one shard."""

    def __init__(self, worker: Worker, topic_shard: TopicShard, judgement: Judgement) -> None:
        self._topic_shard, self._as_of, self._policy = (
            topic_shard,
            judgement.as_of,
            worker.policy(topic_shard.topic),
        )
        self._verdicts = judgement.numbered[1]
        self._duplicates = duplicates_of(worker.settings, topic_shard.topic)
        self._rearms = worker.settings.rearms(topic_shard.shard)
        try:
            self._own_retry_topic = sends_to_one_group(worker.judge.sources, topic_shard.topic)
        except Unavailable as error:
            judgement.unreachable.setdefault(
                f"broker {worker.broker_name(topic_shard.topic)}", error.what
            )
            self._own_retry_topic = False

    def decide(self, situation: Mapping[str, Any]) -> Decision:
        shards, groups, later = (
            situation["shards"] or [],
            situation["groups"],
            self._as_of + self._policy.recheck,
        )
        replay_from = instant(situation["replay_from"])
        if len(shards) > 1:
            if replay_from is not None and self._as_of >= replay_from + self._policy.replay_horizon:
                return NotNeeded(TOO_OLD)
            return Postpone(later, f"{SEVERAL_SHARDS}{', '.join(shards)}")
        if shards != [self._topic_shard.shard]:
            return NotNeeded(f"shard {self._topic_shard.shard} has no such stub")
        if situation["is_later"]:
            return Postpone(later, "an earlier number of the same message is under way")
        assert replay_from is not None  # created_at is NOT NULL
        decision = decide(
            None if groups is None else tuple(groups),
            situation["requested_by"],
            [self._verdicts[number] for number in situation["verdict_numbers"] or ()],
            as_of=self._as_of,
            replay_from=replay_from,
            policy=self._policy,
            duplicates=self._duplicates,
            own_retry_topic=self._own_retry_topic,
            never_sent=situation["never_sent"],
            send_number=situation["send_number"],
            asked_by=read_json(situation["asked_by"]) if situation["asked_by"] else None,
        )
        return Send(None, "topic") if self._rearms and isinstance(decision, Send) else decision
