"""Decides what becomes of the deliveries that a run found eligible, and collects what people must look at.

There are millions of either after a great mistake: they stay in the control database, and a part of them is here at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice
from typing import Any, TypeVar

from backstop.cases.open import Member
from backstop.config.settings import Settings
from backstop.evidence.forgotten import known_verdict
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Verdict
from backstop.reconcile.open_cases import CaseKey
from backstop.requests.ask import (
    Ask,
    duplicates_of,
    route_for,
    sends_to_one_group,
    waits_for_evidence,
    whose_turn,
)
from backstop.runs.run import Run
from backstop.sql.named import load
from backstop.stores.protocol import LAST_NUMBER

_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 5_000
MASS_LOSS = "mass_loss"
Delivery = tuple[str, str]
"""topic, consumer_group"""
T = TypeVar("T")


@dataclass(slots=True)
class Found:
    """The deliveries that a person must look at."""

    totals: Counter[CaseKey] = field(default_factory=Counter)
    """How many each case gets, also of those that are read in parts when it is opened: there may be millions."""
    members: dict[CaseKey, list[Member]] = field(default_factory=dict)
    """The others."""

    def add(self, kind: str, member: Member) -> None:
        case = (kind, member[1], member[3])
        self.totals[case] += 1
        self.members.setdefault(case, []).append(member)


def decide_all(
    settings: Settings,
    sources: Sources,
    cursor: Any,
    run: Run,
    held: Mapping[Delivery, object],
    restored: datetime | None,
    found: Found,
) -> Generator[Ask]:
    """The requests for all that is eligible. What needs a person is added to `found`; of a mass loss it is only counted."""
    for rows in _messages(cursor, run, None):
        verdicts, wanted, blocked = _sort_out(rows, held, restored)
        for kind, member in blocked:
            if kind == MASS_LOSS:
                found.totals[kind, member[1], member[3]] += 1
            else:
                found.add(kind, member)
        request, without_route = _ask_for(settings, sources, rows, verdicts, wanted)
        for member in without_route:
            found.add("no_route", member)
        if request is not None:
            yield request


def mass_loss(
    cursor: Any, run: Run, held: Mapping[Delivery, object], restored: datetime | None
) -> Generator[tuple[CaseKey, list[Member]]]:
    """The deliveries that the blast radius holds, in parts."""
    blocked = (
        ((kind, member[1], member[3]), member)
        for rows in (_messages(cursor, run, held) if held else ())
        for kind, member in _sort_out(rows, held, restored)[2]
        if kind == MASS_LOSS
    )
    return _by_case(blocked)


def findings(cursor: Any, run: Run) -> Generator[tuple[CaseKey, list[Member]]]:
    """The deliveries whose verdict asks for a person, in parts."""
    with cursor.connection.cursor(name="findings") as rows:
        rows.itersize = _BATCH
        rows.execute(_SQL["findings"], {"run_id": run.run_id})
        yield from _by_case(
            ((kind, topic, group), (shard, topic, message_id, group))
            for kind, topic, group, shard, message_id in rows
        )


def _by_case(
    found: Iterable[tuple[CaseKey, Member]],
) -> Generator[tuple[CaseKey, list[Member]]]:
    for batch in in_batches(found):
        parts: dict[CaseKey, list[Member]] = defaultdict(list)
        for case, member in batch:
            parts[case].append(member)
        yield from parts.items()


def _messages(
    cursor: Any, run: Run, pairs: Collection[Delivery] | None
) -> Iterator[list[tuple[Any, ...]]]:
    """The eligible deliveries of these topics and groups (None: of all), message by message; on the server until they are read."""
    values = {
        "run_id": run.run_id,
        "topics": None if pairs is None else [topic for topic, _ in pairs],
        "groups": None if pairs is None else [group for _, group in pairs],
    }
    with cursor.connection.cursor(name="eligible") as rows:
        rows.itersize = _BATCH
        rows.execute(_SQL["eligible"], values)
        for _, its in groupby(rows, key=lambda row: (row[1], row[2])):
            yield list(its)


def _sort_out(
    rows: Sequence[tuple[Any, ...]], held: Container[Delivery], restored: datetime | None
) -> tuple[dict[str, str], dict[str, str], list[tuple[str, Member]]]:
    """One message's eligible deliveries -> the verdict of each group; why it is wanted by each that may get it; and the deliveries
    that a person must look at, by the kind of their case."""
    shard, topic, message_id = rows[0][:3]
    verdicts: dict[str, str] = {}
    for row in rows:
        known = {row[6]: (row[5], row[9]), **row[7]}
        verdicts |= {
            group: known_verdict(verdict, log_updated_at, restored)
            for group, (verdict, log_updated_at) in known.items()
        }
    blocked: list[tuple[str, Member]] = []
    wanted: dict[str, str] = {}
    for row in rows:
        group = row[6]
        if verdicts[group] == Verdict.DEAD_LETTERED:  # forgotten: one that is known is not eligible
            blocked.append(("stalled", (shard, topic, message_id, group)))
        elif (topic, group) in held:
            blocked.append((MASS_LOSS, (shard, topic, message_id, group)))
        elif not row[10]:
            wanted[group] = row[4]
    return verdicts, wanted, blocked


def _ask_for(
    settings: Settings,
    sources: Sources,
    rows: Sequence[tuple[Any, ...]],
    verdicts: Mapping[str, str],
    wanted: Mapping[str, str],
) -> tuple[Ask | None, list[Member]]:
    """The request for a message, or the deliveries that no copy can reach alone; neither where it waits."""
    shard, topic, message_id, send_count = rows[0][:4]
    # A topic that left the configuration since the run judged it is nobody's to repair; and no number follows the last one.
    if (
        topic not in settings.topics
        or settings.topics[topic].mode != "repair"
        or not wanted
        or send_count >= LAST_NUMBER
    ):
        return None, []
    broker = f"broker {settings.topics[topic].broker}"
    if (
        broker in sources.unreachable
    ):  # to open it once more for each message would tell nothing new
        return None, []
    try:
        route = route_for(sources, topic, frozenset(wanted), verdicts)
    except Unavailable as error:
        # Its stubs stay due: the next run asks.
        sources.missed(broker, error)
        return None, []
    if route is None:
        if waits_for_evidence(
            wanted, duplicates_of(settings, topic), verdicts, never_sent=rows[0][8]
        ):
            return None, []
        if len(wanted) == 1 or not sends_to_one_group(sources, topic):
            return None, [(shard, topic, message_id, group) for group in wanted]
        # Each of them has a way of its own, which a number serves once: a later run asks for the others.
        first = whose_turn(wanted, send_count + 1)
        wanted, route = {first: wanted[first]}, "group"
    everybody = set(wanted) == set(settings.groups_of(topic))
    reasons = ", ".join(sorted(set(wanted.values())))
    request = Ask(
        shard=shard,
        topic=topic,
        message_id=message_id,
        send_number=send_count + 1,
        groups=None if everybody and route == "topic" else tuple(sorted(wanted)),
        reason=reasons,
        requested_by="reconcile",
        route=route,
    )
    return request, []


def in_batches(all_of_them: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(all_of_them)
    while batch := list(islice(rest, _BATCH)):
        yield batch
