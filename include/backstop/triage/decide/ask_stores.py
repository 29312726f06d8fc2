"""Asks the stores about messages by key: their promises, whose turn it is in their ordering key, who owes them, and the logs.

What does not answer is noted and asked only once; it never counts as "no row".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from backstop.config.settings import Settings
from backstop.evidence.read import Clocks
from backstop.evidence.read_owing import read_owing
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Key, LogRow, Stub
from backstop.stores.protocol import STUB_COLUMNS
from backstop.verdicts import frames
from backstop.verdicts.evaluate import Engine, table
from backstop.verdicts.frames import micros

Delivery = tuple[str, str, str]
"""topic, message_id, consumer_group"""
_INSTANTS = frozenset(
    {
        "next_check_at",
        "created_at",
        "first_seen_at",
        "judged_at",
        "deliver_at",
        "attempted_at",
        "sent_at",
        "attempt_deadline",
    }
)


def stubs_of(
    settings: Settings, sources: Sources, keys: Sequence[Key]
) -> tuple[dict[Key, Stub], dict[Key, list[str]], dict[str, str]]:
    """Every shard is asked, because one id on two shards must not be replayed. (stubs, shards of each, what did not answer)"""
    found: dict[Key, Stub] = {}
    shards: dict[Key, list[str]] = {}
    missed: dict[str, str] = {}
    known = [key for key in keys if key.topic in settings.topics]
    for name in settings.producers if known else ():
        try:
            for key, stub in sources.shard(name).stubs(known).items():
                found.setdefault(key, stub)
                shards.setdefault(key, []).append(name)
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
            missed[name] = f"shard {name}"
    return found, shards, missed


def bad_clocks(
    settings: Settings,
    sources: Sources,
    cur: Any,
    shards: Iterable[str],
    groups: Collection[str],
    missed: Mapping[str, str],
) -> dict[str, str]:
    """By shard or "store <name>": whose clock is off, or did not answer."""
    clocks, bad = Clocks(cur), dict[str, str]()
    allowed = min(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    for name in sorted(shards):
        try:
            if name not in missed and not clocks.within(sources.shard(name), allowed):
                bad[name] = f"the clock of shard {name}"
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
            bad[name] = f"shard {name}"
    stores = {settings.groups[group].store: group for group in sorted(groups)}
    for store, group in stores.items():
        try:
            if not clocks.within(
                sources.logs_of(group), settings.policy_for(None, group).max_clock_skew
            ):
                bad[f"store {store}"] = f"the clock of store {store}"
        except Unavailable as error:
            sources.missed(f"store {store}", error)
            bad[f"store {store}"] = f"store {store}"
    return bad


def befores_of(
    sources: Sources, stubs: Mapping[Key, Stub], missed: dict[str, str]
) -> dict[Key, Key]:
    by_shard: dict[str, list[Key]] = {}
    for key, stub in stubs.items():
        if stub.ordering_key is not None:
            by_shard.setdefault(stub.shard, []).append(key)
    befores: dict[Key, Key] = {}
    for name, keys in by_shard.items():
        try:
            for key, near in sources.shard(name).neighbours(keys).items():
                if near.open_before is not None:
                    befores[key] = Key(key.topic, near.open_before)
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
            missed[name] = f"shard {name}"
    return befores


def owed_by(settings: Settings, cur: Any, stubs: Mapping[Key, Stub]) -> dict[Key, set[str]]:
    """Which groups owe each message, by the rule that reconcile uses; `cur`: of the control database."""
    owed: dict[Key, set[str]] = {key: set() for key in stubs}
    if not stubs:
        return owed
    rows = [
        {
            "stub_id": number,
            **{
                name: micros(getattr(stub, name)) if name in _INSTANTS else getattr(stub, name)
                for name in STUB_COLUMNS
            },
        }
        for number, stub in enumerate(stubs.values())
    ]
    owing = read_owing(cur, settings, {key.topic for key in stubs})
    with closing(Engine()) as engine:
        found = engine.run("deliveries", {**owing, "stub": table(frames.STUB, rows)})
    for topic, message_id, group in zip(
        *(found.column(name).to_pylist() for name in ("topic", "message_id", "consumer_group")),
        strict=True,
    ):
        owed[Key(topic, message_id)].add(group)
    return owed


def logs_of(
    settings: Settings,
    sources: Sources,
    by_group: Mapping[str, Collection[Key]],
    clocks: dict[str, str],
) -> tuple[dict[Delivery, LogRow], dict[str, datetime]]:
    """(log rows of each group's keys, log floor of each group); what is away is added to `clocks`."""
    found: dict[Delivery, LogRow] = {}
    floors: dict[str, datetime] = {}
    for group, keys in by_group.items():
        store = settings.groups[group].store
        if clocks.get(f"store {store}") == f"store {store}":
            continue  # it is away: each further question would wait for its time-out and tell nothing new
        try:
            for key, row in sources.logs_of(group).logs(group, list(keys)).items():
                found[key.topic, key.message_id, group] = row
            # After the logs: a purge raises the floor before it deletes.
            floors[group] = sources.logs_of(group).floor(group)
        except Unavailable as error:
            sources.missed(f"store {store}", error)
            clocks[f"store {store}"] = f"store {store}"
    return found, floors
