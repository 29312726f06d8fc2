"""Judges the messages of claimed requests again, by a fresh look on the primaries: what does each request come to?

Of thousands of messages in a batch most are in the same situation; each situation is decided once.
"""

from __future__ import annotations

from collections.abc import Sequence

from backstop.evidence.judge_by_key import Judgement
from backstop.model.errors import Unavailable
from backstop.requests.ask import duplicates_of, sends_to_one_group
from backstop.requests.policy import (
    Decision,
    NotNeeded,
    Postpone,
    decide,
    is_by_incident,
    is_by_person,
)
from backstop.resend.claim import Lot, Request, Worker


def judge_again(
    worker: Worker, lot: Lot, requests: Sequence[Request]
) -> tuple[dict[int, Decision], Judgement]:
    """What each request comes to; decisions by request id.

    Raises nothing for what does not answer: see the judgement's `unreachable`; what needs it is postponed.
    """
    judgement = worker.judge.judgement([request.key for request in requests])
    told, shards_of, replay_from = judgement.told, judgement.shards_of, judgement.replay_from
    duplicates, policy = duplicates_of(worker.settings, lot.topic), worker.policy(lot.topic)
    try:
        own_retry_topic = sends_to_one_group(worker.judge.sources, lot.topic)
    except Unavailable as error:
        judgement.unreachable.setdefault(f"broker {worker.broker_name(lot.topic)}", error.what)
        own_retry_topic = False
    later, too_old = judgement.as_of + policy.recheck, judgement.as_of - policy.replay_horizon
    lowest: dict[tuple[str, str], int] = {}
    for request in requests:
        lowest[request.key] = min(request.send_number, lowest.get(request.key, request.send_number))
    decisions: dict[int, Decision] = {}
    decided: dict[object, Decision] = {}
    for request in requests:
        shards = shards_of.get(request.key, [])
        if len(shards) > 1:
            decisions[request.request_id] = Postpone(
                later, f"broken contract: on several shards: {', '.join(shards)}"
            )
        elif shards != [lot.shard]:
            decisions[request.request_id] = NotNeeded(f"shard {lot.shard} has no such stub")
        elif request.send_number != lowest[request.key]:
            decisions[request.request_id] = Postpone(
                later, "an earlier number of the same message is under way"
            )
        else:
            counted_from, deliveries = replay_from[request.key], told.get(request.key, ())
            # Everything that `decide` reads of a message: two with the same of it are decided alike.
            asker = "a person" if is_by_person(request.requested_by) else request.requested_by
            asker = "an incident" if is_by_incident(asker) else asker
            never_sent = request.key in judgement.never_sent
            situation = (request.groups, asker, deliveries, counted_from <= too_old, never_sent)
            if situation not in decided:
                decided[situation] = decide(
                    request.groups,
                    request.requested_by,
                    deliveries,
                    as_of=judgement.as_of,
                    replay_from=counted_from,
                    policy=policy,
                    duplicates=duplicates,
                    own_retry_topic=own_retry_topic,
                    never_sent=never_sent,
                )
            decisions[request.request_id] = decided[situation]
    return decisions, judgement
