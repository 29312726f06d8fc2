"""Messages that no group took: a case for each topic when they are set aside, and pending again when a group comes that owes them.

    control: which topics have any, and which groups they had then | shards: no_taker -> pending | control: looked at

Stubs that are set aside are due for no run. They are looked at when what the topic's groups take has changed, and only then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

from backstop.cases.close import close_by_cause
from backstop.cases.open import open_case
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.judge_by_key import Judge, Judgement
from backstop.evidence.owed_since import read_owed_since
from backstop.evidence.sources import guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Counts, Key, StubStatus
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.stores.open import open_stub_audit
from backstop.stores.protocol import StubOutcome
from backstop.verdicts.frames import policy_rows

KIND = "no_taker"
_SQL = load("backstop.reconcile", "queries.sql")
_WINDOW = timedelta(hours=1)
"""Of the time in which stubs were closed: what one query walks."""
_PAGE = 5_000
_BATCH = 1_000


def ask_about_untaken(settings: Settings, cursor: Any, run: Run) -> Counts:
    """One case for each topic of which the run sets messages aside; in the caller's transaction. Returns `case_no_taker`: how many
    messages they are."""
    counts = Counts()
    cursor.execute(_SQL["untaken"], {"run_id": run.run_id})
    for topic, number, examples, judged_by in cursor.fetchall():
        # Settings may change between the judge and the promotion, which are processes of their own: a group that came with them may
        # owe what was set aside without it. So may one of a topic that these settings lack.
        is_known = topic in settings.topics
        is_as_judged = is_known and judged_by == settings.version
        cursor.execute(
            _SQL["note_untaken"],
            {
                "topic": topic,
                "since": run.as_of,
                "groups_hash": _hash(settings, cursor, topic) if is_as_judged else "",
                "run_id": run.run_id,
            },
        )
        if not is_known:
            continue
        open_case(
            cursor,
            kind=KIND,
            topic=topic,
            group="*",
            subject="",
            severity="warning",
            summary=f"The last run that found any set aside {number} messages of {topic} that no group owes: give the topic the"
            " group that should take them, or correct its tags or its active_from",
            evidence={"messages": number, "examples": examples},
            members=[],
            run_id=run.run_id,
        )
        counts.add(f"case_{KIND}", number)
    return counts


def find_takers(
    settings: Settings, connections: Connections, control: Any, run: Run, missed: dict[str, str]
) -> Counts:
    """Messages of the run's topics that a group owes by now are pending again; returns how many. A topic of which none is left
    has no case any more. What does not answer is noted in `missed`, and its topics are looked at by the next run."""
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["topics_untaken"], {"topics": topics_of(run.scope)})
        found = [row for row in cursor.fetchall() if row[0] in settings.topics]
        now = {topic: _hash(settings, cursor, topic) for topic, *_ in found}
    for topic, since, groups_hash, noted_by in found:
        if groups_hash == now[topic]:
            continue
        away = dict[str, str]()
        with Judge(settings, connections, control) as judge:
            taken, left = _take_up(settings, connections, judge, topic, since, run.as_of, away)
        if taken:
            counts.add("taken_up", taken)
        missed |= away
        if not away:
            with control, control.cursor() as cursor:
                hold(cursor, run)
                _looked_at(cursor, topic, noted_by, now[topic], left)
    return counts


def _looked_at(cursor: Any, topic: str, noted_by: int, groups_hash: str, left: int) -> None:
    """`noted_by`: the run that had set messages aside last; one beside this may have set aside others since."""
    cursor.execute(
        _SQL["looked_at_untaken" if left else "none_untaken"],
        {"topic": topic, "groups_hash": groups_hash, "noted_by": noted_by},
    )
    cursor.execute(_SQL["topics_untaken"], {"topics": None})
    still = {(KIND, other, "*", "") for other, *_ in cursor.fetchall()}
    close_by_cause(cursor, KIND, still, "each of its messages has a group that takes it now")


def _take_up(
    settings: Settings,
    connections: Connections,
    judge: Judge,
    topic: str,
    since: datetime,
    until: datetime,
    missed: dict[str, str],
) -> tuple[int, int]:
    """(messages that are pending again, messages that still nobody owes)"""
    taken = left = 0
    for shard in settings.producers:
        refused: list[tuple[StubOutcome, StoreFailed]] = []
        try:
            untaken = _untaken(settings, connections, shard, topic, since, until)
            while keys := list(islice(untaken, _BATCH)):
                seen = judge.judgement(keys)
                if why := seen.unreachable.get(f"shard {shard}"):
                    missed[f"untaken stubs of shard {shard}"] = (
                        why  # its silence owes nothing and proves nothing
                    )
                    break
                owed = _owed(seen, shard)
                promote = partial(judge.sources.shard(shard).promote, as_of=seen.as_of)
                taken += sum(apply_apart(owed, promote, refused)) if owed else 0
                left += len(keys) - len(owed)
        except Unavailable as error:
            missed[f"untaken stubs of shard {shard}"] = error.what
        if refused:
            missed[f"{len(refused)} untaken stubs of shard {shard}"] = refused[0][1].what
    return taken, left


def _owed(seen: Judgement, shard: str) -> Sequence[StubOutcome]:
    return [
        StubOutcome(stub.key, str(stub.status), StubStatus.PENDING, stub.send_count, None)
        for row in seen.outcomes
        for stub in [seen.stubs[Key(str(row["topic"]), str(row["message_id"]))]]
        if row["deliveries"] and stub.status == StubStatus.NO_TAKER and stub.shard == shard
    ]


def _untaken(
    settings: Settings,
    connections: Connections,
    shard: str,
    topic: str,
    since: datetime,
    until: datetime,
) -> Iterator[Key]:
    with (
        guarded(f"shard {shard}", StoreFailed),
        closing(open_stub_audit(settings, connections, shard)) as stubs,
    ):
        # Its clock may be behind or ahead.
        start, end = since - _WINDOW, until + _WINDOW
        while start < end:
            after = ("-infinity", "")
            while page := stubs.no_taker_between(topic, start, start + _WINDOW, after, _PAGE):
                yield from (key for key, _ in page)
                after = (page[-1][1], page[-1][0].message_id)
            start += _WINDOW


def _hash(settings: Settings, cursor: Any, topic: str) -> str:
    """Of all that says which messages the topic's groups owe."""
    its = settings.topics[topic]
    rows = policy_rows(settings, read_owed_since(cursor, settings, [topic]), {topic})
    owed = [
        {
            **{name: row[name] for name in ("consumer_group", "active_from", "active_until")},
            "tags": its.groups[str(row["consumer_group"])].tags,
            "starts": {
                str(queue): (start.epoch, start.offset)
                for queue, start in its.groups[str(row["consumer_group"])].start_offsets.items()
            },
        }
        for row in rows
    ]
    return sha256(json.dumps(owed, default=str, sort_keys=True).encode()).hexdigest()
