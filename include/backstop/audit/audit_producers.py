"""Asks every producer's database, and of what it finds the control database: numbers, sends under way, who has a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from backstop.audit.day import Day, patience
from backstop.audit.erased import INVARIANT, erased_messages
from backstop.audit.record import KEPT, Breach, Look
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, open_guarded
from backstop.model.errors import Unavailable
from backstop.model.records import Key
from backstop.sql.named import load
from backstop.stores.audit import StubAudit
from backstop.stores.open import open_stub_audit

_SQL = load("backstop.audit", "queries.sql")
PAGE = 5_000


def audit_producers(
    settings: Settings, connections: Connections, control: Any, day: Day
) -> list[Look]:
    """One look for each invariant and shard; a shard that does not answer says so in each of them."""
    looks: list[Look] = []
    overdue = {topic: _overdue_since(settings, topic, day) for topic in settings.topics}
    for shard in settings.producers:
        place = f"shard {shard}"
        try:
            stubs = open_guarded(place, open_stub_audit, settings, connections, shard)
        except Unavailable as error:
            looks += [Look(invariant, place, missed=error.what) for invariant in _ASKED]
            continue
        with closing(stubs):
            looks += [
                _answered(invariant, place, partial(ask, stubs, control, day, overdue))
                for invariant, ask in _ASKED.items()
            ]
    sent = _answered(
        "sent_requests_were_handed_out",
        "control",
        lambda: _sent_requests(settings, connections, control, day),
    )
    return [*looks, sent]


_Ask = Callable[[StubAudit, Any, Day, dict[str, datetime]], Look]
_ASKED: dict[str, _Ask] = {
    "numbers_within_count": lambda stubs, _, day, __: _numbers(stubs, day),
    "sends_end": lambda stubs, _, day, __: _named(stubs.never_ended(day.patient_since, KEPT + 1)),
    "stubs_are_looked_at": lambda stubs, _, day, __: _named(
        stubs.never_looked_at(day.patient_since, day.farthest_look, KEPT + 1)
    ),
    "withdrawals_are_decisions": lambda stubs, control, day, topics: _withdrawals(
        stubs, control, day, topics
    ),
    "exhausted_stub_has_case": lambda stubs, control, *_: _without_case(
        control, lambda after: stubs.exhausted(after, PAGE)
    ),
    INVARIANT: lambda stubs, control, *_: _not_erased(stubs, control),
    "overdue_stub_has_case": lambda stubs, control, _, overdue: _without_case(
        control, lambda after: stubs.overdue(overdue, after, PAGE)
    ),
}
"""By invariant: what a shard is asked."""


def _answered(invariant: str, place: str, ask: Callable[[], Look]) -> Look:
    try:
        look = ask()
    except Unavailable as error:
        return Look(invariant, place, missed=error.what)
    look.invariant, look.place = invariant, place
    return look


def _numbers(stubs: StubAudit, day: Day) -> Look:
    """Hour by hour: no statement walks more than one."""
    look, start = Look("", by_database=True), day.start
    while start < day.end:
        end = min(start + timedelta(hours=1), day.end)
        for key in stubs.numbers_beyond(start, end, KEPT + 1):
            _add(look, key)
        start = end
    return look


def _withdrawals(stubs: StubAudit, control: Any, day: Day, topics: Iterable[str]) -> Look:
    """Whoever has a login to the producer's database may void a stub, or have a voided one go on, beside every case."""
    look = Look("")
    for topic in topics:
        after = ("-infinity", "")
        while page := stubs.voided_between(topic, day.start, day.end, after, PAGE):
            look.rows_read += len(page)
            _ask_control(look, control, "without_withdrawal", [key for key, _ in page])
            after = (page[-1][1], page[-1][0].message_id)
    last = Key("", "")
    while True:
        with control, control.cursor() as cursor:
            values = {"shard": stubs.shard, "after_topic": last.topic, "after_id": last.message_id}
            cursor.execute(_SQL["withdrawn"], {**values, "limit": PAGE})
            keys = [Key(*row) for row in cursor.fetchall()]
        look.rows_read += len(keys)
        for key in stubs.not_voided(keys) if keys else ():
            _add(look, key)
        if len(keys) < PAGE:
            return look
        last = keys[-1]


def _ask_control(look: Look, control: Any, query: str, keys: Sequence[Key]) -> None:
    """Adds those of these messages that the query answers."""
    with control, control.cursor() as cursor:
        cursor.execute(
            _SQL[query],
            {"topics": [k.topic for k in keys], "message_ids": [k.message_id for k in keys]},
        )
        for row in cursor.fetchall():
            _add(look, Key(*row))


def _not_erased(stubs: StubAudit, control: Any) -> Look:
    """Stubs that a restore brought back with what was erased."""
    look = Look("")
    for page in erased_messages(control):
        look.rows_read += len(page)
        for key in stubs.not_erased(page):
            _add(look, key)
    return look


def _named(keys: Sequence[Key]) -> Look:
    """At most one more than is kept is asked for: then there are more than are listed."""
    return Look(
        "", by_database=True, breaches=[_breach(key) for key in keys[:KEPT]], more=len(keys[KEPT:])
    )


def _without_case(control: Any, page_after: Callable[[Key], list[Key]]) -> Look:
    look, after = Look(""), Key("", "")
    while True:
        page = page_after(after)
        look.rows_read += len(page)
        _ask_control(look, control, "without_case", page)
        if len(page) < PAGE:
            return look
        after = page[-1]


def _sent_requests(settings: Settings, connections: Connections, control: Any, day: Day) -> Look:
    """Requests that took their number, whose stub knows nothing of it. One that no shard has any more was purged."""
    look = Look("sent_requests_were_handed_out")
    with Sources(settings, connections) as sources:
        for page in _pages(control, day):
            look.rows_read += len(page)
            numbers: dict[Key, int] = {}
            for _, topic, message_id, number in page:
                numbers[Key(topic, message_id)] = max(
                    number, numbers.get(Key(topic, message_id), 0)
                )
            for shard in settings.producers:
                for key, stub in sources.shard(shard).stubs(numbers).items():
                    if stub.send_count < numbers[key]:
                        _add(look, key)
    return look


def _pages(control: Any, day: Day) -> Iterator[list[tuple[int, str, str, int]]]:
    after = 0
    while True:
        with control, control.cursor() as cursor:
            values = {"day_from": day.start, "day_to": day.end, "after": after, "limit": PAGE}
            cursor.execute(_SQL["sent_requests"], values)
            page = cursor.fetchall()
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1][0]


def _overdue_since(settings: Settings, topic: str, day: Day) -> datetime:
    policies = [settings.policy_for(topic, group) for group in (None, *settings.groups_of(topic))]
    return day.as_of - max(policy.overdue_horizon for policy in policies) - patience(settings)


def _add(look: Look, key: Key) -> None:
    if len(look.breaches) < KEPT:
        look.breaches.append(_breach(key))
    else:
        look.more += 1


def _breach(key: Key) -> Breach:
    return Breach(f"{key.topic}/{key.message_id}", key.topic, key.message_id)
