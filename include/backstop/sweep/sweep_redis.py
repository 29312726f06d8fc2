"""Settles the leases in one bucket of Redis that ended: in front of the database as the log says, alone by themselves.

Redis is corrected by compare-and-set on the record that was seen, after the database was asked, never before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from backstop.model.records import Key
from backstop.runs.without_collector import without_collector
from backstop.sweep.ask_log import Answer, GroupLog
from backstop.sweep.decide import Decision, Truth, decide
from backstop.sweep.redis_bucket import MISSING, Bucket, SeenRecords
from backstop.sweep.tally import Differs, Tally, TallyKey

BATCH = 5000
"""Records read, asked of the log and settled together: some tens of milliseconds."""
NO_LOG = Answer(Truth.NO_LOG)
OPEN_MS = 3_600_000
"""How long a record that was taken back, or kept for a live lease, stays in Redis."""


class Outcome(NamedTuple):
    """What is decided about a record, and what is done to it: see lua/settle.lua; empty: it is left as it is."""

    decision: Decision
    action: str


def sweep_bucket(
    bucket: Bucket, place: str, log: GroupLog | None, tally: Tally, *, limit: int, dry_run: bool
) -> None:
    """At most `limit` records. `log` null: Redis alone holds this group's leases. Raises StoreUnavailable."""
    looked, kept = 0, 0
    while looked < limit:
        with without_collector():
            seen = bucket.expired(kept, min(BATCH, limit - looked))
            if not seen:
                return
            looked += len(seen)
            kept += settle_ended(bucket, place, log, seen, tally, dry_run=dry_run)


def settle_ended(
    bucket: Bucket,
    place: str,
    log: GroupLog | None,
    seen: SeenRecords,
    tally: Tally,
    *,
    dry_run: bool,
) -> int:
    """Asks the log, decides, and changes each record only as it was seen, however long ago that is. Returns how many of them
    stay in the bucket's index. Raises StoreUnavailable."""
    answers = _ask(log, seen.keys)
    cases = list(zip(seen.states, seen.are_expired, answers, strict=True))
    # Thousands of records are of a few cases: each case is decided once.
    decided = {case: _decided(*case, alone=log is None) for case in set(cases)}
    outcomes = [decided[case] for case in cases]
    actions = [outcome.action for outcome in outcomes]
    moved = set() if dry_run else bucket.settle(seen, actions, open_ms=OPEN_MS)
    _count(bucket, place, seen, outcomes, moved, tally)
    if tally.tell or any(outcome.decision is Decision.REPAIR for outcome in decided.values()):
        _list(bucket, place, seen, answers, outcomes, moved, tally, dry_run=dry_run)
    changed = 0 if dry_run else len(actions) - actions.count("") - len(moved)
    return len(seen) - changed


def _count(
    bucket: Bucket,
    place: str,
    seen: SeenRecords,
    outcomes: Sequence[Outcome],
    moved: Collection[int],
    tally: Tally,
) -> None:
    """Equal findings together."""
    topics = [key.topic for key in seen.keys]
    findings = list(zip(seen.states, topics, seen.hosts, outcomes, strict=True))
    counted = Counter(findings)
    counted.subtract(findings[number] for number in moved)
    if moved:
        tally.counts.add("moved_on", len(moved))
    examples = {
        finding: key.message_id
        for number, (finding, key) in enumerate(zip(findings, seen.keys, strict=True))
        if number not in moved
    }
    for finding, example in examples.items():
        state, topic, host, outcome = finding
        if state in MISSING:
            tally.counts.add(MISSING[state], counted[finding])
        elif not tally.tell:
            line = _line(place, bucket, topic, host, outcome)
            tally.add(line, example, "", counted[finding])


def _list(
    bucket: Bucket,
    place: str,
    seen: SeenRecords,
    answers: Sequence[Answer],
    outcomes: Sequence[Outcome],
    moved: Collection[int],
    tally: Tally,
    *,
    dry_run: bool,
) -> None:
    """Each by itself: for who listens to a dry run, and those on which Redis and the log disagreed."""
    for number, (key, state, ends, host, answer, outcome) in enumerate(
        zip(seen.keys, seen.states, seen.ends, seen.hosts, answers, outcomes, strict=True)
    ):
        if number in moved or state in MISSING:
            continue
        if tally.tell:
            why = f"ended {_ago(ends)}; the log says {answer.state or answer.truth.value}"
            tally.add(_line(place, bucket, key.topic, host, outcome), key.message_id, why)
        if outcome.decision is Decision.REPAIR:
            tally.differs.append(
                Differs(
                    place,
                    bucket.keys.group,
                    key.topic,
                    key.message_id,
                    "CONSUMING",
                    answer.state,
                    not dry_run,
                )
            )


def _line(place: str, bucket: Bucket, topic: str, host: str, outcome: Outcome) -> TallyKey:
    return TallyKey(place, bucket.keys.group, topic, host or "?", outcome.decision)


def _ask(log: GroupLog | None, keys: Sequence[Key]) -> list[Answer]:
    if log is None:
        return [NO_LOG] * len(keys)
    found = log.ask(keys)
    return [found[key] for key in keys]


def _decided(state: str, is_expired: bool, answer: Answer, *, alone: bool) -> Outcome:
    """Of a record in this state."""
    decision = decide(is_expired, answer.truth)
    if state in MISSING:
        # It lived its time out, or is not ours to read: only the index is corrected.
        return Outcome(decision, "I")
    if decision is Decision.RECLAIM and alone:
        return Outcome(decision, "E")
    if decision is not Decision.KEEP:
        # The database answers until it is told anew: which content is done, only the log knows.
        return Outcome(decision, "X")
    if state != "C":
        return Outcome(decision, "I")
    if not is_expired:
        return Outcome(decision, "R")
    if answer.truth is Truth.ALIVE:
        left = answer.seconds_left
        return Outcome(decision, f"K{OPEN_MS // 2 if left is None else max(1, round(left * 1000))}")
    return Outcome(decision, "")


def _ago(ends: int) -> str:
    return f"at {time.strftime('%H:%M:%S', time.gmtime(ends / 1000))} UTC by Redis' clock"
