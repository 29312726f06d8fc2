"""Makes cases of what ordered consumption asks people about: parked keys, queues that a limit stopped, downstreams that are away.

One case for each parked key, which opens again each time the key is parked again, and closes once the key is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from backstop.cases.close import Cause, close_by_cause
from backstop.cases.open import open_case
from backstop.cases.parked_discards import keep_discards
from backstop.evidence.sources import Sources, guarded
from backstop.leases.books import read_counts
from backstop.model.error_kind import error_kind
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import ORDERING_KEY_BYTES, TOPIC_BYTES, Counts
from backstop.sql.named import load
from backstop.stores.open import open_mariadb_books, open_parking
from backstop.stores.postgresql.parking import (
    Away,
    ConsumerBooks,
    Discard,
    FullQueue,
    ParkedKey,
    PostgresParking,
    QueueOwner,
)
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")
KEY, FULL, AWAY = "key_parked", "parking_full", "downstream_away"
GO_ON = "none stands at a limit any more: they go on, or their consumers were stopped"
BACK = "none waits any more: what they need is back, or their consumers were stopped"
"""A consumer that stops takes back what it said."""
MOST_KEYS = 10_000
"""Parked keys of one database of which one watch makes cases."""
NO_DECISION = "discard_without_decision"
STANDS = "release_stands"
_MOST_DISCARDS = 1_000
_MOST_UNDECIDED = 10_000
_SHOWN = 20
T = TypeVar("T", ParkedKey, FullQueue, Away)


@dataclass(slots=True)
class Parked:
    """What the consumer databases said; groups that are not among `looked` could not be asked."""

    keys: list[ParkedKey] = field(default_factory=list)
    full: list[FullQueue] = field(default_factory=list)
    away: list[Away] = field(default_factory=list)
    books: list[ConsumerBooks] = field(default_factory=list)
    owners: list[QueueOwner] = field(default_factory=list)
    odd: int = 0
    """Rows that no consumer writes, which are left out."""
    looked: list[str] = field(default_factory=list)
    undecided: list[Discard] = field(default_factory=list)
    """Discards of which the log of decisions says nothing."""


def look_for_parked(sources: Sources, conn: Any) -> Parked:
    """Asks each consumer database; commits what people discarded there into the control database. What does not answer is in
    `sources.unreachable`."""
    settings, seen = sources.settings, Parked()
    by_store: dict[str, list[str]] = defaultdict(list)
    for name, group in settings.groups.items():
        if settings.keeps_own_log(name):
            by_store[group.store].append(name)
    for store, groups in by_store.items():
        subject = f"store {store}"
        try:
            with ExitStack() as stack, guarded(subject, StoreFailed):
                if not settings.parks_keys(groups[0]):
                    kept = open_mariadb_books(settings, sources.connections, store)
                    stack.callback(kept.close)
                    seen.books += [_readable(one) for one in kept.books(groups)]
                    seen.looked += groups
                    continue
                parked = stack.enter_context(open_parking(settings, sources.connections, store))
                undecided = _carry_discards(conn, parked, groups)
                keys, full, away = (
                    parked.parked_keys(groups, MOST_KEYS),
                    parked.full_queues(groups),
                    parked.away(groups),
                )
                books, owners = parked.books(groups), parked.owners(groups)
        except Unavailable as error:
            sources.missed(subject, error)
            continue
        before = len(keys) + len(full) + len(away)
        keys, full, away = _nameable(keys), _nameable(full), _nameable(away)
        if odd := before - len(keys) - len(full) - len(away):
            seen.odd += odd
            sources.missed(subject, _odd_names(store, odd))
        seen.keys += keys
        seen.full += full
        seen.away += away
        seen.books += [_readable(one) for one in books]
        seen.owners += owners
        seen.undecided += undecided
        seen.looked += groups
    return seen


def _nameable(found: Sequence[T]) -> list[T]:
    """Without what no consumer of ours writes, and no case can be named after: an index holds no such name."""
    return [
        one
        for one in found
        if len(one.topic.encode()) <= TOPIC_BYTES
        and len(getattr(one, "key", "").encode()) <= ORDERING_KEY_BYTES
    ]


def _odd_names(store: str, number: int) -> StoreFailed:
    return StoreFailed(
        f"{number} rows of parked keys, stopped queues or waiting consumers in store {store} have longer names than any consumer writes.",
        unaffected="No case was opened about them; everything else was read.",
        next_step="Find out whose login wrote them (parked_key, parking_full, downstream_away), and delete them.",
    )


def _readable(books: ConsumerBooks) -> ConsumerBooks:
    return books._replace(counts=read_counts(books.counts))


def _carry_discards(conn: Any, parked: PostgresParking, groups: Sequence[str]) -> list[Discard]:
    """Returns those that nobody decided, which stay."""
    undecided: list[Discard] = []
    while discards := parked.discards(groups, _MOST_DISCARDS, len(undecided)):
        with conn, conn.cursor() as cursor:
            kept = set(keep_discards(cursor, discards))
        parked.forget_discards(list(kept))
        undecided += [one for one in discards if one not in kept]
        if len(discards) < _MOST_DISCARDS or len(undecided) > _MOST_UNDECIDED:
            break
    return undecided


def judge_discards(seen: Parked) -> list[Answer]:
    """One answer for each group that was asked. Pure."""
    return [
        _judged_discards(group, [one for one in seen.undecided if one.group == group])
        for group in seen.looked
    ]


def _judged_discards(group: str, odd: Sequence[Discard]) -> Answer:
    if not odd:
        return Answer(NO_DECISION, "*", group, None)
    shown = "; ".join(
        f"{one.message_id[:200]!r} of {one.topic[:200]!r}, as if by {one.by[:200]!r}"
        for one in odd[:3]
    )
    return Answer(
        NO_DECISION,
        "*",
        group,
        Finding(
            "critical",
            f"{len(odd)} discards of {group} are nobody's decision",
            f"Rows of parked_discard of which the log of decisions says nothing: {shown}. They were written into the group's database"
            " beside Backstop, and change nothing: the verdicts of these messages are as before. Do: find out whose login wrote them,"
            " delete the rows, and decide the messages by their cases.",
        ),
    )


def judge_releases(seen: Parked) -> list[Answer]:
    """One answer for each group that was asked. Pure."""
    return [
        _judged_releases(group, [key for key in seen.keys if key.group == group and key.stands])
        for group in seen.looked
    ]


def _judged_releases(group: str, standing: Sequence[ParkedKey]) -> Answer:
    if not standing:
        return Answer(STANDS, "*", group, None)
    shown = "; ".join(f"{key.key[:200]!r} of {key.topic[:200]!r}" for key in standing[:3])
    return Answer(
        STANDS,
        "*",
        group,
        Finding(
            "warning",
            f"{len(standing)} released keys of {group} wait for a consumer",
            f"A person released them, and no living consumer owns their queues: {shown}. Nothing is lost: their contents are kept, and"
            " followers are kept behind them. Do: start an ordered consumer of this group for the topic. It releases them in order, also"
            " where the broker has their queue no more.",
        ),
    )


def tell_of_parked(cursor: Any, seen: Parked, as_of: datetime, run_id: int) -> Counts:
    """Opens and closes the cases, in the caller's transaction."""
    waiting = [key for key in seen.keys if key.state == "PARKED"]
    counts = Counts(parked_keys=len(waiting), parking_full=len(seen.full))
    _open_keys(cursor, seen, waiting, as_of, run_id)
    # One that is being released is not over: it may be parked again.
    still: set[Cause] = {(KEY, key.topic, key.group, key.key) for key in seen.keys}
    # Beyond so many nobody knows which keys are free.
    if len(seen.keys) + seen.odd < MOST_KEYS:
        counts.add(
            "parked_over",
            close_by_cause(cursor, KEY, still, "its messages are done or discarded", seen.looked),
        )
    full, away = _by_topic(seen.full), _by_topic(seen.away)
    for (topic, group), queues in full.items():
        open_case(
            cursor,
            kind=FULL,
            topic=topic,
            group=group,
            subject="queues",
            severity="critical",
            summary=_full_summary(topic, group, queues),
            members=[],
            run_id=run_id,
            evidence={"queues": [one._asdict() for one in queues[:_SHOWN]], "stopped": len(queues)},
        )
    for (topic, group), members in away.items():
        open_case(
            cursor,
            kind=AWAY,
            topic=topic,
            group=group,
            subject="handlers",
            severity="warning",
            summary=_away_summary(topic, group, members),
            members=[],
            run_id=run_id,
            evidence={
                "consumers": [
                    {"member": one.member, "since": one.since} for one in members[:_SHOWN]
                ],
                "waiting": len(members),
            },
        )
    found = {(FULL, *key, "queues") for key in full}
    counts.add("parking_full_over", close_by_cause(cursor, FULL, found, GO_ON, seen.looked))
    found = {(AWAY, *key, "handlers") for key in away}
    counts.add("downstream_away", len(away))
    counts.add("downstream_back", close_by_cause(cursor, AWAY, found, BACK, seen.looked))
    return Counts({name: number for name, number in counts.items() if number})


def _open_keys(
    cursor: Any, seen: Parked, waiting: Sequence[ParkedKey], as_of: datetime, run_id: int
) -> None:
    cursor.execute(_SQL["newest_parked"], {"groups": seen.looked})
    newest = {row[:3]: row[3:] for row in cursor.fetchall()}
    for key in waiting:
        state, decision, decided_at, parked_at, messages, is_begun = newest.get(
            (key.topic, key.group, key.key), (None,) * 6
        )
        # The answer was about what the case says: given again, it must not be about another head.
        if state == "open" and is_begun:
            continue
        if parked_at == key.parked_at.isoformat():
            if state == "open" and messages == str(key.messages):
                continue
            # What was answered since it was read is on its way.
            if state == "decided" and (decision == "leave" or decided_at >= as_of):
                continue
        open_case(
            cursor,
            kind=KEY,
            topic=key.topic,
            group=key.group,
            subject=key.key,
            severity="warning",
            summary=f"{key.messages} messages of key {key.key!r} wait in {key.group}: its head {key.head!r} failed {_times(key)}:"
            f" {error_kind(key.error)}",
            evidence={
                "head": key.head,
                "messages": key.messages,
                "bytes": key.bytes,
                "queue": key.queue_id,
                "error": error_kind(key.error),
                "times_parked": key.times_parked,
                "parked_at": key.parked_at.isoformat(),
                "last_number": key.last_number,
            },
            members=[],
            run_id=run_id,
            reopens=True,
        )


def _times(key: ParkedKey) -> str:
    return (
        "each time it was tried"
        if key.times_parked == 1
        else f"again, {key.times_parked} times parked"
    )


def _by_topic(found: Sequence[Any]) -> dict[tuple[str, str], list[Any]]:
    by_topic: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in found:
        by_topic[one.topic, one.group].append(one)
    return by_topic


def _full_summary(topic: str, group: str, queues: Sequence[FullQueue]) -> str:
    shown = "; ".join(
        f"queue {one.queue_id} at key {one.key!r}: {one.reached}" for one in queues[:3]
    )
    return (
        f"{len(queues)} queues of {topic} stand still in {group}: a limit of parked {queues[0].reached} is reached: {shown}."
        " Nothing is dropped. They go on by themselves once parked keys are answered, or with higher limits"
    )


def _away_summary(topic: str, group: str, members: Sequence[Away]) -> str:
    error = error_kind(members[0].error)
    return (
        f"{len(members)} consumers of {group} wait in {topic}: many keys fail at once, the last with {error}."
        " Nothing is parked and no attempt is counted; they go on by themselves when it is back"
    )
