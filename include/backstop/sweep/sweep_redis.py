"""Settles the leases in one bucket of Redis that ended: in front of the database as the log says, alone by themselves.

Redis is corrected by compare-and-set on the record that was seen, after the database was asked, never before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from backstop.sweep.ask_log import Answer, GroupLog
from backstop.sweep.decide import Decision, Truth, decide
from backstop.sweep.redis_bucket import Bucket, Seen
from backstop.sweep.tally import Differs, Tally, TallyKey

BATCH = 1000
NO_LOG = Answer(Truth.NO_LOG)
OPEN_MS = 3_600_000
"""How long a record that was taken back, or kept for a live lease, stays in Redis."""


def sweep_bucket(
    bucket: Bucket, place: str, log: GroupLog | None, tally: Tally, *, limit: int, dry_run: bool
) -> None:
    """At most `limit` records. `log` null: Redis alone holds this group's leases. Raises StoreUnavailable."""
    looked, kept = 0, 0
    while looked < limit:
        seen = bucket.expired(kept, min(BATCH, limit - looked))
        if not seen:
            return
        looked += len(seen)
        kept += settle_ended(bucket, place, log, seen, tally, dry_run=dry_run)


def settle_ended(
    bucket: Bucket,
    place: str,
    log: GroupLog | None,
    seen: Sequence[Seen],
    tally: Tally,
    *,
    dry_run: bool,
) -> int:
    """Asks the log, decides, and changes each record only as it was seen, however long ago that is. Returns how many of them
    stay in the bucket's index. Raises StoreUnavailable."""
    answers = _ask(log, seen)
    decisions = [
        decide(one.is_expired, answer.truth) for one, answer in zip(seen, answers, strict=True)
    ]
    actions = [
        _action(*each, alone=log is None) for each in zip(seen, answers, decisions, strict=True)
    ]
    chosen = [number for number, action in enumerate(actions) if action]
    moved: set[int] = set()
    if not dry_run:
        moved = {
            chosen[m]
            for m in bucket.settle(
                [seen[n] for n in chosen], [actions[n] for n in chosen], open_ms=OPEN_MS
            )
        }
    alike: dict[tuple[str, str, Decision], tuple[str, int]] = {}
    """By topic, host and decision: one of the messages, and how many."""
    for number, (one, answer, decision) in enumerate(zip(seen, answers, decisions, strict=True)):
        if number in moved:
            tally.counts.add("moved_on")
            continue
        if one.record is None:
            tally.counts.add("unreadable" if one.text else "vanished")
            continue
        finding = one.key.topic, one.record.owner_host or "?", decision
        if tally.tell:
            why = f"ended {_ago(one)}; the log says {answer.state or answer.truth.value}"
            tally.add(_line(place, bucket, *finding), one.key.message_id, why)
        else:
            example, times = alike.get(finding, (one.key.message_id, 0))
            alike[finding] = example, times + 1
        if decision is Decision.REPAIR:
            tally.differs.append(
                Differs(place, bucket.keys.group, *one.key, "CONSUMING", answer.state, not dry_run)
            )
    for finding, (example, times) in alike.items():
        tally.add(_line(place, bucket, *finding), example, "", times)
    return len(seen) - (0 if dry_run else len(chosen) - len(moved))


def _line(place: str, bucket: Bucket, topic: str, host: str, decision: Decision) -> TallyKey:
    return TallyKey(place, bucket.keys.group, topic, host, decision)


def _ask(log: GroupLog | None, seen: Sequence[Seen]) -> list[Answer]:
    if log is None:
        return [NO_LOG] * len(seen)
    found = log.ask([one.key for one in seen])
    return [found[one.key] for one in seen]


def _action(seen: Seen, answer: Answer, decision: Decision, *, alone: bool) -> str:
    """What is done to the record: see lua/settle.lua. Empty: it is left as it is."""
    if seen.record is None:
        return "I"  # it lived its time out, or is not ours to read: only the index is corrected
    if decision is Decision.RECLAIM and alone:
        return "E"
    if decision is not Decision.KEEP:
        return "X"  # the database answers until it is told anew: which content is done, only the log knows
    if seen.record.state != "C":
        return "I"
    if not seen.is_expired:
        return "R"
    if answer.truth is Truth.ALIVE:
        return f"K{OPEN_MS // 2 if answer.seconds_left is None else max(1, round(answer.seconds_left * 1000))}"
    return ""


def _ago(seen: Seen) -> str:
    assert seen.record is not None
    return (
        f"at {time.strftime('%H:%M:%S', time.gmtime(seen.record.ends / 1000))} UTC by Redis' clock"
    )
