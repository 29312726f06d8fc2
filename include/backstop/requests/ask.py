"""Asks for a send: the one door to the broker for a repair. A request is for one send number of one
message."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.records import Counts, Key
from backstop.requests.policy import (
    TRIAGE as TRIAGE,
)  # whose the requests are that come through this door by machine
from backstop.requests.policy import Route, choose_route
from backstop.requests.policy import by_incident as by_incident
from backstop.requests.policy import waits_for_evidence as waits_for_evidence
from backstop.requests.policy import whose_turn as whose_turn
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load

_SQL = load("backstop.requests", "queries.sql")
FOR_GOOD = "refused for good: "
"""Begins the error of a request that asking again cannot help; reconcile makes a case of it."""
ERASED = FOR_GOOD + "its content was erased on request, and nothing of it is ever sent again"


@dataclass(frozen=True, slots=True)
class Ask:
    """Send number `send_number` (send_count + 1 as seen when this was decided) of one message is wanted."""

    shard: str
    topic: str
    message_id: str
    send_number: int
    groups: tuple[str, ...] | None
    """The groups it is for; null: all."""
    reason: str
    requested_by: str
    """'reconcile', or who else: 'case 7'."""
    route: Route = "topic"


def ramped_topics(settings: Settings) -> frozenset[str]:
    """The topics whose requests wait until a resend run releases them step by step."""
    return frozenset(topic for topic in settings.topics if settings.policy_for(topic).canary > 0)


def ask(
    cur: Any, asks: Iterable[Ask], run_id: int | None, ramped: Collection[str] = frozenset()
) -> Counts:
    """Writes requests in the caller's transaction; returns `requests` (new), `reopened`, `joined`,
    `already_asked`.

    A request that closed without taking its number (not_needed, superseded) is opened again as this one; an
    open one gets the groups added (null: all); a claimed or published one is left alone: its number is, or
    may be, taken. Requests of a `ramped` topic are held until a step of its ramp releases them. What a
    person gave up for a group only a person asks for again for that group; for the others the number is free.
    Reconcile does not ask again for what was refused for good without a number: its case waits for a person.
    """
    merged: dict[tuple[Key, int], Ask] = {}
    for one in asks:
        where = Key(one.topic, one.message_id), one.send_number
        merged[where] = _merge(merged[where], one) if where in merged else one
    if not merged:
        return Counts()
    # In key order, so that two writers cannot wait for each other's rows.
    rows = [
        {**_row(one), "held": one.topic in ramped}
        for _, one in sorted(merged.items(), key=lambda item: item[0])
    ]
    values = {"asks": json.dumps(rows), "run_id": run_id, "for_good": FOR_GOOD}
    cur.execute(_SQL["not_given_up_any_more"], values)
    cur.execute(_SQL["ask"], values)
    counts = Counts()
    for (happened,) in cur.fetchall():
        counts.add(happened)
    if len(rows) > sum(counts.values()):
        counts.add("already_asked", len(rows) - sum(counts.values()))
    return counts


def take_turns(cur: Any) -> None:
    """Waits for whoever else measures the blast radius and asks by it; until the caller's transaction ends the others wait for it."""
    cur.execute(_SQL["take_turns"])


def erased_among(cur: Any, keys: Sequence[Key]) -> set[Key]:
    """Those of these messages whose erasure is done. A restored producer database, or another program's table, may hold the
    content all the same: nothing of it is sent again."""
    values = {
        "topics": array_literal([key.topic for key in keys]),
        "ids": array_literal([key.message_id for key in keys]),
    }
    cur.execute(_SQL["erased"], values)
    return {Key(*row) for row in cur.fetchall()}


def route_for(
    sources: Sources, topic: str, wanted: Collection[str], verdicts: Mapping[str, str]
) -> Route | None:
    """By which way a copy of `topic` for the groups `wanted` may go; null: by none (see policy.choose_route).

    `verdicts`: of each group of the message whose verdict is known.
    """
    return choose_route(
        wanted,
        duplicates_of(sources.settings, topic),
        verdicts,
        own_retry_topic=sends_to_one_group(sources, topic),
    )


def sends_to_one_group(sources: Sources, topic: str) -> bool:
    """Whether a copy can go to one group alone: its broker can, and no other program's relay sends it. Opens the broker, and asks
    it nothing."""
    if sources.settings.is_rearmed(topic):
        return False
    broker = sources.broker(sources.settings.topics[topic].broker)
    return broker.capabilities.has_retry_topic_per_group


def duplicates_of(settings: Settings, topic: str) -> dict[str, str]:
    """What each group of the topic declared a second copy to do to it. Another program's relay sends no header that says for whom
    a copy is, and a group whose log is another program's does not read ours: such a guard takes a copy for its own."""
    rearmed = settings.is_rearmed(topic)
    declared: dict[str, str] = {
        group: settings.groups[group].duplicates for group in settings.groups_of(topic)
    }
    return {
        group: "declared_safe"
        if one == "guard" and (rearmed or not settings.keeps_own_log(group))
        else one
        for group, one in declared.items()
    }


def unread_guards(settings: Settings) -> list[tuple[str, str]]:
    """(topic, group) of guards that take a copy for other groups for their own: what their lost logs do not know is done again."""
    return [
        (topic, group)
        for topic in settings.topics
        for group, declared in duplicates_of(settings, topic).items()
        if declared != settings.groups[group].duplicates
    ]


def _merge(one: Ask, other: Ask) -> Ask:
    groups = None
    if one.groups is not None and other.groups is not None:
        groups = tuple(sorted({*one.groups, *other.groups}))
    reasons = sorted({*one.reason.split(", "), *other.reason.split(", ")})
    route: Route = (
        "group" if one.route == other.route == "group" and groups == one.groups else "topic"
    )
    return Ask(
        one.shard,
        one.topic,
        one.message_id,
        one.send_number,
        groups,
        ", ".join(reasons),
        one.requested_by,
        route,
    )


def _row(one: Ask) -> dict[str, object]:
    return {
        "shard": one.shard,
        "topic": one.topic,
        "message_id": one.message_id,
        "send_number": one.send_number,
        "groups": None if one.groups is None else list(one.groups),
        "reason": one.reason,
        "requested_by": one.requested_by,
        "route": one.route,
    }
