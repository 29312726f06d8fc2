"""Gathers what a decision needs of open dead letters: the dead letters themselves, then what the control database has about them,
then what producers' and consumers' databases know (`evidence.read_by_key` has the order).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstop.config.settings import Settings
from backstop.evidence.forgotten import is_forgotten, restored_at
from backstop.evidence.on_two_shards import met_on_two_shards
from backstop.evidence.read_by_key import Delivery, StoreAnswers, read_messages
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Key, LogState, Stub, StubStatus, Verdict
from backstop.requests.ask import route_for
from backstop.requests.policy import Route
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.triage.decide.decide import GIVEN_UP, Facts

_SQL = load("backstop.triage.decide", "decide.sql")


@dataclass(frozen=True, slots=True)
class OpenDeadLetter:
    """An open dead letter as a decision sees it: no content."""

    dead_letter_id: int
    broker: str
    queue: str
    group: str | None
    topic: str | None
    message_id: str | None
    cause_text: str
    error: str
    deliveries: int | None
    died_at: datetime | None
    drained_at: datetime
    invalid: str | None
    category: str | None
    fingerprint: str | None
    shown: str | None
    left_in_case: int | None
    barred: str | None
    classified_at: datetime | None
    decided_at: datetime | None
    case_id: int | None

    @property
    def key(self) -> Key | None:
        return (
            None
            if self.topic is None or self.message_id is None
            else Key(self.topic, self.message_id)
        )

    @property
    def delivery(self) -> Delivery | None:
        if self.topic is None or self.message_id is None or self.group is None:
            return None
        return self.topic, self.message_id, self.group


@dataclass(slots=True)
class Evidence:
    """What was read for one batch: the facts of each dead letter, and what a replay or a case needs beside them."""

    as_of: datetime
    facts: dict[int, Facts] = field(default_factory=dict)
    verdicts: dict[Key, dict[str, str]] = field(default_factory=dict)
    """Of each message's groups, those that are known to be done, parked or dead-lettered: they decide the route."""
    befores: dict[Key, Key] = field(default_factory=dict)
    """The first open message before this one in its ordering key."""


def read_dead_letters(cur: Any, query: str, values: Mapping[str, Any]) -> list[OpenDeadLetter]:
    """The dead letters that a query selects: the name of one of decide.sql, or the text of one like them."""
    cur.execute(_SQL["letter_columns"] + "\n" + _SQL.get(query, query), values)
    return [OpenDeadLetter(*row) for row in cur.fetchall()]


def gather_evidence(
    control: Any, settings: Settings, sources: Sources, letters: Sequence[OpenDeadLetter]
) -> Evidence:
    """Commits the control connection, which it only reads. What does not answer is in the facts, and in `sources`."""
    keys = list(dict.fromkeys(letter.key for letter in letters if letter.key is not None))
    values = {
        "topics": array_literal([key.topic for key in keys]),
        "ids": array_literal([key.message_id for key in keys]),
    }
    with control, control.cursor() as cur:
        as_of: datetime = _fetch(cur, "clock")[0][0]
        discarded = {
            (t, i, g): _said(by, why, case)
            for t, i, g, by, why, case in _fetch(cur, "discards", values)
        }
        withdrawn = {
            Key(t, i): _said(by, why, case)
            for t, i, by, why, case in _fetch(cur, "withdrawals", values)
        }
        replays = {(t, i, g): n for t, i, g, n in _fetch(cur, "replays", values)}
        asked: dict[Key, list[tuple[int, str]]] = {}
        for topic, message_id, number, state in _fetch(cur, "requests", values):
            asked.setdefault(Key(topic, message_id), []).append((number, state))
        open_letters = _fetch(cur, "open_deliveries", values)
        given_up = set(_fetch(cur, "given_up", values))
        restored = restored_at(cur)
    stores = read_messages(
        sources,
        control,
        [(letter.key, letter.group) for letter in letters if letter.key is not None],
    )
    twice: set[Key] = set()
    if stores.missed:
        with control, control.cursor() as cur:
            twice = met_on_two_shards(cur, keys)
    seen = _Seen(
        stores,
        discarded,
        withdrawn,
        replays,
        asked,
        left={(t, i, g): case for t, i, g, case, _ in open_letters if case is not None},
        barred={(t, i, g): why for t, i, g, _, why in open_letters if why is not None},
        given_up=given_up,
        restored=restored,
        twice=twice,
    )
    dead = {(t, i, g) for t, i, g, *_ in open_letters}
    evidence = Evidence(as_of, befores=dict(stores.earlier))
    for key, groups in stores.owed.items():
        evidence.verdicts[key] = _verdicts(key, groups, seen, dead)
    routes = _Routes(sources)
    for letter in letters:
        evidence.facts[letter.dead_letter_id] = _facts(sources, letter, evidence, seen, routes)
    return evidence


@dataclass(frozen=True, slots=True)
class _Seen:
    """What each store, and the control database, answered about one batch of dead letters."""

    stores: StoreAnswers
    discarded: Mapping[Delivery, dict[str, Any]]
    withdrawn: Mapping[Key, dict[str, Any]]
    replays: Mapping[Delivery, int]
    asked: Mapping[Key, list[tuple[int, str]]]
    left: Mapping[Delivery, int]
    barred: Mapping[Delivery, str]
    given_up: set[Delivery]
    restored: datetime | None
    twice: Collection[Key]
    """Messages that a run met on two shards: the other promise may be in one that does not answer."""

    def forgotten(self, delivery: Delivery) -> bool:
        """Whether a letter of the delivery may be forgotten, as far as its log tells."""
        log = self.stores.logs.get(delivery)
        return log is not None and is_forgotten(log.updated_at, self.restored)


def _facts(
    sources: Sources, letter: OpenDeadLetter, evidence: Evidence, seen: _Seen, routes: _Routes
) -> Facts:
    settings, stores = sources.settings, seen.stores
    key, delivery = letter.key, letter.delivery
    stub = stores.stubs.get(key) if key is not None else None
    discarded = seen.discarded.get(delivery) if delivery is not None else None
    shards = tuple(stores.shards.get(key, ())) if key is not None else ()
    unread = _unread(settings, letter, stub, seen)
    if (
        discarded is None
        and not stores.missed  # a shard that is away may have the message, too, and not withdrawn
        and key is not None
        and stub is not None
        and stub.status == StubStatus.VOIDED
        and len(shards) == 1
    ):
        discarded = seen.withdrawn.get(
            key, {"decided_by": "triage", "why": "its stub is voided", "case_id": None}
        )
    unaddressable = _unaddressable(settings, letter, stores.owed)
    if key is None or delivery is None:
        return Facts(
            as_of=evidence.as_of,
            category=letter.category,
            barred=letter.barred,
            left=letter.left_in_case,
            discarded=discarded,
            unaddressable=unaddressable,
            unread=unread,
        )
    topic, _, group = delivery
    resend_given_up = delivery in seen.given_up or (*key, "*") in seen.given_up
    known = group in settings.groups_of(topic)
    route = None
    if known:
        try:
            route = routes.find(topic, group, evidence.verdicts.get(key, {}))
        except (
            Unavailable
        ) as error:  # it cannot be opened: the letters of other brokers are decided all the same
            broker = settings.topics[topic].broker
            sources.missed(f"broker {broker}", error)
            unread = unread or f"broker {broker}"
    return Facts(
        as_of=evidence.as_of,
        category=letter.category,
        barred=letter.barred
        or seen.barred.get(delivery)
        or (GIVEN_UP if resend_given_up else None),
        unaddressable=unaddressable,
        discarded=discarded,
        log=stores.logs.get(delivery),
        unread=unread,
        stub=stub,
        shards=shards,
        log_floor=stores.floors.get((topic, group)),
        left=letter.left_in_case or seen.left.get(delivery),
        replays=seen.replays.get(delivery, 0),
        observed=known and settings.topics[topic].mode != "repair",
        route=route,
        duplicates=settings.groups[group].duplicates if known else "no",
        asked=_asked(stub, seen.asked.get(key, ())),
        forgotten=seen.forgotten(delivery),
    )


class _Routes:
    """The way of a copy, found once for all messages of a topic whose groups have the same verdicts."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._found: dict[tuple[str, str, frozenset[tuple[str, str]]], Route | None] = {}

    def find(self, topic: str, group: str, verdicts: Mapping[str, str]) -> Route | None:
        """Null: there is none. Raises Unavailable."""
        alike = topic, group, frozenset(verdicts.items())
        if alike not in self._found:
            self._found[alike] = route_for(self._sources, topic, frozenset({group}), verdicts)
        return self._found[alike]


def _unaddressable(
    settings: Settings, letter: OpenDeadLetter, owed: Mapping[Key, set[str]]
) -> str | None:
    key = letter.key
    if letter.message_id is None:
        return "no_id"
    if letter.topic is None:
        return "no_topic"
    if letter.topic not in settings.topics:
        return "unknown_topic"
    if letter.group is None or letter.group not in settings.groups_of(letter.topic):
        return "unknown_group"
    if key is not None and key in owed and letter.group not in owed[key]:
        return "not_owed"
    return "invalid" if letter.invalid is not None else None


def _unread(
    settings: Settings, letter: OpenDeadLetter, stub: Stub | None, seen: _Seen
) -> str | None:
    """What stands in the way of deciding this letter. A stub that no shard has is certain only when every shard answered; so is one
    that is closed, or that a run met twice: it may be open in the shard that is silent."""
    if letter.key is None or letter.key.topic not in settings.topics:
        return None
    missed, doubted = seen.stores.missed, seen.stores.doubted
    away = [why for name, why in missed.items() if stub is None or name == stub.shard]
    if stub is not None and (
        stub.status not in (StubStatus.PENDING, StubStatus.EXHAUSTED) or letter.key in seen.twice
    ):
        away = away or list(missed.values())
    if stub is not None and stub.shard in doubted:
        away.append(doubted[stub.shard])
    if letter.group in settings.groups:
        logs = (f"store {settings.groups[letter.group].store}", f"group {letter.group}")
        away += [doubted[name] for name in logs if name in doubted]
    return away[0] if away else None


def _asked(stub: Stub | None, requests: Iterable[tuple[int, str]]) -> str | None:
    """Why no request can be made or joined now: one is claimed, or another number of it has not ended."""
    for number, state in requests:
        if state == "claimed":
            return "a send of it is under way"
        if stub is not None and number != stub.send_count + 1:
            return "another send of it was asked for"
    return None


def _verdicts(
    key: Key,
    groups: Iterable[str],
    seen: _Seen,
    dead: set[tuple[str, str, str | None]],
) -> dict[str, str]:
    said: dict[str, str] = {}
    for group in groups:
        delivery = (key.topic, key.message_id, group)
        row = seen.stores.logs.get(delivery)
        if row is not None and row.invalid is None and row.state == LogState.CONSUMED:
            said[group] = str(Verdict.CONFIRMED)
        elif delivery in dead or (key.topic, key.message_id, None) in dead:
            said[group] = str(Verdict.DEAD_LETTERED)
        elif row is not None and row.state == LogState.PARKED:
            said[group] = str(Verdict.PARKED)
        elif seen.forgotten(delivery):
            said[group] = str(Verdict.DEAD_LETTERED)
    return said


def _fetch(cur: Any, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    cur.execute(_SQL[query], values)
    return list(cur.fetchall())


def _said(by: str, why: str, case_id: int | None) -> dict[str, Any]:
    return {"decided_by": by, "why": why, "case_id": case_id}
