"""Reads what the stores know of single messages, for decisions about their dead letters, in the order that makes it safe:

    stubs of every shard, clocks, who owes them, whose turn it is in their ordering key, logs, the logs' floors

The caller has read the dead letters and the control database's decisions before. So whatever changes meanwhile can only make a
decision wait or find the work done. What does not answer is noted and asked only once; it never counts as "no row".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from backstop.config.settings import Settings
from backstop.evidence.read import Clocks
from backstop.evidence.read_owing import read_owing
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Key, LogRow, Stub
from backstop.sql.arrow import arrow_schema
from backstop.stores.protocol import STUB_COLUMNS
from backstop.verdicts import frames
from backstop.verdicts.evaluate import Engine
from backstop.verdicts.frames import micros

Delivery = tuple[str, str, str]
"""topic, message_id, consumer_group"""
_INSTANTS = frozenset(
    {
        "next_check_at",
        "created_at",
        "created_latest",
        "first_seen_at",
        "judged_at",
        "deliver_at",
        "attempted_at",
        "sent_at",
        "attempt_deadline",
    }
)


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """What the stores answered about some messages."""

    stubs: Mapping[Key, Stub]
    shards: Mapping[Key, list[str]]
    """Every shard that has the message: more than one breaks the contract."""
    owed: Mapping[Key, set[str]]
    """The groups that owe it."""
    earlier: Mapping[Key, Key]
    """The first open message before it in its ordering key."""
    logs: Mapping[Delivery, LogRow]
    floors: Mapping[tuple[str, str], datetime]
    """By topic and group: the largest `updated_at` of a log ever purged."""
    missed: Mapping[str, str]
    """By shard: what did not answer."""
    doubted: Mapping[str, str]
    """By shard, "store <name>" or "group <name>": what did not answer there, or whose clock is off."""


def read_messages(
    sources: Sources, control: Any, deliveries: Collection[tuple[Key, str | None]]
) -> StoreAnswers:
    """`deliveries`: messages, each with the group of its dead letter (null: unknown). Logs are read of these groups, and of all that
    owe the messages. Commits the control connection, which it only reads; what does not answer is in `sources`, too."""
    settings = sources.settings
    keys = list(dict.fromkeys(key for key, _ in deliveries))
    groups = {group for _, group in deliveries if group is not None and group in settings.groups}
    stubs, shards, missed = _read_stubs(settings, sources, keys)
    with control, control.cursor() as cur:
        at = {stub.shard for stub in stubs.values()}
        doubted = _compare_clocks(settings, sources, cur, at, groups, missed)
        owed = _find_owing(settings, cur, stubs)
    earlier = _find_earlier(sources, stubs, missed)
    by_group: dict[str, dict[Key, None]] = {}
    for key, of in deliveries:
        for group in sorted({of or "", *owed.get(key, ())}):
            if group in settings.groups:
                by_group.setdefault(group, {})[key] = None
    logs, floors = _read_logs(settings, sources, by_group, doubted)
    return StoreAnswers(stubs, shards, owed, earlier, logs, floors, missed, doubted)


def _read_stubs(
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


def _compare_clocks(
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


def _find_earlier(
    sources: Sources, stubs: Mapping[Key, Stub], missed: dict[str, str]
) -> dict[Key, Key]:
    by_shard: dict[str, list[Key]] = {}
    for key, stub in stubs.items():
        if stub.ordering_key is not None:
            by_shard.setdefault(stub.shard, []).append(key)
    earlier: dict[Key, Key] = {}
    for name, keys in by_shard.items():
        try:
            for key, near in sources.shard(name).neighbours(keys).items():
                if near.open_before is not None:
                    earlier[key] = Key(key.topic, near.open_before)
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
            missed[name] = f"shard {name}"
    return earlier


def _find_owing(settings: Settings, cur: Any, stubs: Mapping[Key, Stub]) -> dict[Key, set[str]]:
    """Which groups owe each message, by the rule that reconcile uses; `cur`: of the control database."""
    owed: dict[Key, set[str]] = {key: set() for key in stubs}
    if not stubs:
        return owed
    columns: dict[str, list[Any]] = {"stub_id": list(range(len(stubs)))}
    for name in STUB_COLUMNS:
        values = [getattr(stub, name) for stub in stubs.values()]
        columns[name] = list(map(micros, values)) if name in _INSTANTS else values
    owing = read_owing(cur, settings, {key.topic for key in stubs})
    with closing(Engine()) as engine:
        stub_table = pa.table(columns, schema=arrow_schema(frames.STUB))
        found = engine.run("deliveries", {**owing, "stub": stub_table})
    for topic, message_id, group in zip(
        *(found.column(name).to_pylist() for name in ("topic", "message_id", "consumer_group")),
        strict=True,
    ):
        owed[Key(topic, message_id)].add(group)
    return owed


def _read_logs(
    settings: Settings,
    sources: Sources,
    by_group: Mapping[str, Collection[Key]],
    doubted: dict[str, str],
) -> tuple[dict[Delivery, LogRow], dict[tuple[str, str], datetime]]:
    """(log rows of each group's keys, log floor of each topic and group); what is away is added to `doubted`."""
    found: dict[Delivery, LogRow] = {}
    floors: dict[tuple[str, str], datetime] = {}
    for group, keys in by_group.items():
        store = settings.groups[group].store
        if doubted.get(f"store {store}") == f"store {store}":
            continue  # it is away: each further question would wait for its time-out and say nothing new
        try:
            for key, row in sources.logs_of(group).logs(group, list(keys)).items():
                found[key.topic, key.message_id, group] = row
            # After the logs: a purge raises the floor before it deletes.
            for topic in dict.fromkeys(key.topic for key in keys):
                floors[topic, group] = sources.logs_of(group).floor(group, topic)
        except (
            StoreFailed
        ) as error:  # of this group alone: the other groups of the store are still asked
            sources.missed(f"store {store}", error)
            doubted[f"group {group}"] = f"store {store}"
        except Unavailable as error:
            sources.missed(f"store {store}", error)
            doubted[f"store {store}"] = f"store {store}"
    return found, floors
