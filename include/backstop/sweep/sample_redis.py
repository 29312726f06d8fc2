"""Compares a sample of what Redis says in front of the database with the database, and corrects Redis.

A walk over the keyspace in bounded steps, that goes on where the last sweep stopped: it shows drift that no lease's end would
show (a DONE that the database does not know, after a restore), and meets every key of a small Redis within some sweeps. Of a
large one it is a sample: what a restore needs is a flush of the front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import BUCKETS, RedisKeys
from backstop.model.errors import ContractBroken, StoreUnavailable
from backstop.model.records import Key
from backstop.sweep.ask_log import UNREAD, Answer, GroupLog
from backstop.sweep.decide import Decision, Truth, decide, decide_done
from backstop.sweep.redis_bucket import MISSING, Bucket
from backstop.sweep.sweep_redis import OPEN_MS
from backstop.sweep.tally import Differs, Tally, TallyKey

STEPS, STEP = 10, 500
"""SCAN's steps of one sweep and keys looked at in each: milliseconds of the server's time."""


def sample_redis(
    exchange: RedisExchange,
    place: str,
    groups: Mapping[str, GroupLog],
    goes_on: str,
    tally: Tally,
    *,
    dry_run: bool,
) -> str:
    """Looks at one sample of the server's keys; returns where the next one goes on. Raises StoreUnavailable."""
    nodes = exchange.nodes()
    number, _, cursor = goes_on.partition(":")
    at = int(number) if number.isdigit() and int(number) < len(nodes) else 0
    next_cursor, names = _walk(nodes[at], int(cursor) if cursor.isdigit() else 0)
    for group, log in groups.items():
        for bucket in range(BUCKETS):
            _compare(Bucket(exchange, group, bucket), names, place, log, tally, dry_run)
    return f"{at}:{next_cursor}" if next_cursor else f"{(at + 1) % len(nodes)}:0"


def _walk(node: Any, cursor: int) -> tuple[int, list[bytes]]:
    names: set[bytes] = set()
    try:
        for _ in range(STEPS):
            cursor, found = node.scan(cursor, match="*:m:*", count=STEP, _type="string")
            names.update(found)
            if cursor == 0:
                break
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Redis, which holds the leases, did not answer: {type(error).__name__}.",
            unaffected="Nothing was changed in it.",
            next_step="Bring it back; the next sweep goes on.",
        ) from None
    return cursor, sorted(names)


def _compare(
    bucket: Bucket, names: Sequence[bytes], place: str, log: GroupLog, tally: Tally, dry_run: bool
) -> None:
    seen = bucket.read([name for name in names if _is_of(bucket.keys, bucket.number, name)])
    readable = [
        key for key, state in zip(seen.keys, seen.states, strict=True) if state not in MISSING
    ]
    found = log.ask(readable) if readable else {}
    answers = [found.get(key, UNREAD) for key in seen.keys]
    actions = [_correction(*one) for one in zip(seen.states, answers, strict=True)]
    tally.counts.add("sampled", len(readable))
    moved = set() if dry_run else bucket.settle(seen, actions, open_ms=OPEN_MS)
    for number, (key, state, host, answer, action) in enumerate(
        zip(seen.keys, seen.states, seen.hosts, answers, actions, strict=True)
    ):
        if not action:
            continue
        if number in moved:
            tally.counts.add("moved_on")
            continue
        said = "DONE" if state == "D" else "CONSUMING"
        line = TallyKey(place, bucket.keys.group, key.topic, host or "?", Decision.REPAIR)
        tally.add(
            line, key.message_id, f"Redis says {said}, the log says {answer.state or 'nothing'}"
        )
        tally.differs.append(
            Differs(place, bucket.keys.group, *key, said, answer.state, not dry_run)
        )


def _correction(state: str, answer: Answer) -> str:
    """What corrects the record: see lua/settle.lua. Empty: it agrees, or nobody can say."""
    if state == "D":
        return "X" if decide_done(answer.truth) is Decision.REPAIR else ""
    # A lease that is alive in Redis though its work is done costs others a wait; one that ended is the sweep's anyway.
    if state == "C" and answer.truth is Truth.DONE:
        return "X" if decide(True, answer.truth) is Decision.REPAIR else ""
    return ""


def _is_of(keys: RedisKeys, bucket: int, name: bytes) -> bool:
    try:
        key: Key = keys.message(name)
    except ContractBroken:
        return False
    return keys.bucket_and_key(*key) == (bucket, name)
