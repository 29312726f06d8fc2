"""Asks a person about gaps in ordering keys of topics that are only observed: no claim comes by to find them there.

    eligible deliveries of observed topics, as promoted | shards: what stands around each in its key | control: one case a key

A topic in mode repair is asked about when its request is claimed (resend/order.py), and so is what a run with no_send left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from backstop.cases.open import open_case
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, answers
from backstop.model.errors import Unavailable
from backstop.model.records import Counts, Key
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.stores.protocol import Neighbours

_SQL = load("backstop.reconcile", "queries.sql")
_PAGE = 5_000


def find_gaps(settings: Settings, sources: Sources, control: Any, run: Run) -> Counts:
    """Returns `case_order_gap`: messages that belong before others of their key which may have been sent; commits page by page.

    What a mass loss holds is not asked about a second time. Safe to run twice. Raises RunLost; a shard that does not answer is
    in `sources.unreachable`, and what is its own is found by the next run.
    """
    counts = Counts()
    observed = [
        name
        for name, topic in settings.topics.items()
        if topic.mode == "observe" and settings.policy_for(name).ordering_gap == "case"
    ]
    after, away = Key("", ""), set[str]()
    while observed:
        with control, control.cursor() as cursor:
            cursor.execute(
                _SQL["eligible_observed"],
                {
                    "run_id": run.run_id,
                    "topics": observed,
                    **after._asdict(),
                    "limit": _PAGE,
                },
            )
            rows = cursor.fetchall()
        if not rows:
            break
        after = Key(*rows[-1][1:])
        by_shard: dict[str, list[Key]] = defaultdict(list)
        for shard, topic, message_id in rows:
            by_shard[shard].append(Key(topic, message_id))
        for shard, keys in by_shard.items():
            if shard in away:
                continue
            try:
                around = sources.shard(shard).neighbours(keys)
            except Unavailable as error:
                sources.missed(f"shard {shard}", error)
                if not answers(partial(sources.shard, shard)):
                    away.add(shard)
                continue
            counts.add("case_order_gap", _ask_people(control, run, shard, around))
    return counts


def _ask_people(control: Any, run: Run, shard: str, around: Mapping[Key, Neighbours]) -> int:
    gaps: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for key, near in sorted(around.items()):
        if near.sent_after is not None:
            gaps[key.topic, near.ordering_key].append((key.message_id, near.sent_after))
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for (topic, ordering_key), found in sorted(gaps.items()):
            open_case(
                cursor,
                kind="order_gap",
                topic=topic,
                group="*",
                subject=ordering_key,
                severity="warning",
                summary=f"{len(found)} lost messages of {topic} belong before others of key {ordering_key!r} that may have been"
                " sent already; the topic is only observed",
                evidence={"ordering_key": ordering_key, "in_the_way": found[0][1]},
                members=[(shard, topic, message_id, "*") for message_id, _ in found],
                run_id=run.run_id,
            )
    return sum(len(found) for found in gaps.values())
