"""Keeps what consumers' books say and who owns each queue, and answers whether the books balance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from backstop.leases.books import difference
from backstop.sql.named import load
from backstop.stores.postgresql.parking import ConsumerBooks
from backstop.watch.parked import Parked
from backstop.watch.sample_groups import History
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")
RULE = "books_differ"


def keep_owners(cursor: Any, seen: Parked, history: History, as_of: datetime) -> None:
    """Replaces what was kept of the groups that were asked; in the caller's transaction."""
    cursor.execute(_SQL["forget_owners"], {"groups": seen.looked})
    cursor.execute(_SQL["forget_books"], {"groups": seen.looked})
    for one in seen.books:
        cursor.execute(
            _SQL["save_books"],
            {
                **one._asdict(),
                "counts": json.dumps(one.counts),
                "difference": _difference(one),
                "taken_at": as_of,
            },
        )
    lags = {
        (topic, group, look.queue_id): (look.stored - look.passed, look.backlog_seconds)
        for (topic, group), looks in history.queues.items()
        for look in looks
    }
    for owner in seen.owners:
        waiting, age = lags.get((owner.topic, owner.group, owner.queue_id), (None, None))
        cursor.execute(
            _SQL["save_owner"],
            {
                "topic": owner.topic,
                "group": owner.group,
                "queue_id": owner.queue_id,
                "owner": owner.owner,
                "state": owner.state_now,
                "since": owner.since,
                "waiting": waiting,
                "age": age,
                "taken_at": as_of,
            },
        )


def judge_books(seen: Parked) -> list[Answer]:
    """One answer for each group that was asked. Pure."""
    return [
        _judged(group, [one for one in seen.books if one.group == group and _difference(one)])
        for group in seen.looked
    ]


def _difference(one: ConsumerBooks) -> int:
    return difference(one.counts, one.in_process)


def _judged(group: str, odd: Sequence[ConsumerBooks]) -> Answer:
    if not odd:
        return Answer(RULE, "*", group, None)
    shown = "; ".join(f"{one.member}: {_difference(one)}" for one in odd[:5]) + (
        "; ..." if len(odd) > 5 else ""
    )
    return Answer(
        RULE,
        "*",
        group,
        Finding(
            "critical",
            f"The books of {group}'s consumers do not balance",
            f"Messages that came in and are neither out nor in process (below zero: accounted for twice): {shown}. The log's unique"
            " key still stops every effect from happening twice, and reconcile finds what is lost. Do: restart these consumers, and"
            " report it with their rows of the table consumer_books in the group's database.",
        ),
    )
