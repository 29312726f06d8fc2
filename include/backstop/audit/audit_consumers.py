"""Asks the consumers' databases: a confirmed stub has its logs, leases end, nothing was purged too soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from backstop.audit.day import Day, patience
from backstop.audit.erased import INVARIANT, erased_messages
from backstop.audit.record import KEPT, Breach, Look
from backstop.config.connections import Connections
from backstop.config.constraints import longest_way_back
from backstop.config.settings import Settings
from backstop.evidence.read_logs import read_logs
from backstop.evidence.read_owing import read_owing
from backstop.evidence.sources import Sources, guarded, open_guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Key, LogState
from backstop.sql.named import load
from backstop.stores.audit import StubAudit
from backstop.stores.open import open_leases, open_stub_audit
from backstop.verdicts.evaluate import Engine
from backstop.verdicts.frames import instant

_SQL = load("backstop.audit", "queries.sql")
PAGE = 5_000
_HOUR = timedelta(hours=1)
SAMPLE = 50_000
"""Confirmed stubs of one topic and shard that are looked up in the logs. Of a larger day each hour has a share, the last ones
also what those before did not use; a cut is written down."""


def audit_consumers(
    settings: Settings, connections: Connections, control: Any, day: Day
) -> list[Look]:
    """One look for each invariant and place. Another program's logs have no leases, no floor and no errors: where there are no
    others, these looks are over nothing."""
    own = [group for group in settings.groups if settings.keeps_own_log(group)]
    looks = [
        *_confirmed(settings, connections, control, day),
        *(_leases(settings, connections, store) for store in settings.own_consumers()),
        *(_erased(settings, connections, control, group) for group in own),
        *(_floor(settings, connections, group, day) for group in own),
    ]
    done = {look.invariant for look in looks}
    return looks + [
        Look(invariant, "consumers")
        for invariant in ("leases_end", "erased_stays_erased", "floor_is_old")
        if invariant not in done
    ]


def _confirmed(
    settings: Settings, connections: Connections, control: Any, day: Day
) -> Iterator[Look]:
    engine = Engine()
    try:
        with Sources(settings, connections) as sources:
            for shard in settings.producers:
                look = Look("confirmed_stub_has_logs", f"shard {shard}")
                try:
                    with closing(
                        open_guarded(look.place, open_stub_audit, settings, connections, shard)
                    ) as stubs:
                        for topic in settings.topics:
                            cut = 0
                            for page in _sample(stubs, topic, day):
                                if page.keys:
                                    look.rows_read += len(page.keys)
                                    _look_up(sources, engine, control, shard, page.keys, look)
                                cut += page.cut
                            if cut:
                                look.cut.append(
                                    f"{topic}: of {cut} hours only the first stubs ({SAMPLE} a day)"
                                )
                except Unavailable as error:
                    look.missed = error.what
                if sources.unreachable:
                    look.missed = "; ".join(
                        f"{name}: {why}" for name, why in sorted(sources.unreachable.items())
                    )
                yield look
    finally:
        engine.close()


class _Page(NamedTuple):
    keys: list[Key]
    cut: bool = False
    """The last of an hour, which has more."""


def _sample(stubs: StubAudit, topic: str, day: Day) -> Iterator[_Page]:
    """The day's confirmed stubs, hour by hour; of an hour that has more than its share, the first ones."""
    left, start = SAMPLE, day.start
    for hours_left in range(ceil((day.end - day.start) / _HOUR), 0, -1):
        end, after = min(start + _HOUR, day.end), ("-infinity", "")
        share = left // hours_left
        while True:
            # One more than may be looked up tells whether there are more.
            limit = min(PAGE, share)
            page = stubs.confirmed_between(topic, start, end, after, limit + 1)
            taken, more = page[:limit], len(page) > limit
            share, left = share - len(taken), left - len(taken)
            yield _Page([key for key, _ in taken], cut=more and share == 0)
            if not more or share == 0:
                break
            after = (taken[-1][1], taken[-1][0].message_id)
        start = end


def _look_up(
    sources: Sources, engine: Engine, control: Any, shard: str, keys: list[Key], look: Look
) -> None:
    """Deliveries of these stubs whose group has no log of the work, although none of that age was purged. The floor is read
    after the logs, because a purge raises it before it deletes."""
    settings = sources.settings
    stubs = sources.shard(shard).stub_table(keys)
    # Somebody may have changed it since the page was read: only what is confirmed now is asked for.
    stubs = stubs.filter(pc.equal(stubs.column("status"), "confirmed"))
    topics = set(stubs.column("topic").to_pylist())
    with control, control.cursor() as cursor:
        owing = read_owing(cursor, settings, topics)
    numbered = stubs.add_column(0, "stub_id", pa.array(range(stubs.num_rows), pa.int64()))
    owed = engine.run("deliveries", {**owing, "stub": numbered})
    # What a lake lacks, it may lack still.
    logs, answered = read_logs(sources, owed, sources.settings.lake_stores())
    told = {row["consumer_group"] for row in answered.to_pylist() if row["answered"]}
    done = {
        (row["topic"], row["message_id"], row["consumer_group"])
        for row in logs.to_pylist()
        if row["log_state"] == LogState.CONSUMED
    }
    floors = {group: sources.logs_of(group).floor(group) for group in told}
    with control, control.cursor() as cursor:
        cursor.execute(
            _SQL["discarded"],
            {"topics": [k.topic for k in keys], "message_ids": [k.message_id for k in keys]},
        )
        done |= set(cursor.fetchall())
    for row in owed.to_pylist():
        delivery = (row["topic"], row["message_id"], row["consumer_group"])
        created = instant(row["created_at"])
        if (
            delivery in done
            or row["consumer_group"] not in told
            or created is None
            or created < floors[row["consumer_group"]]
        ):
            continue
        if len(look.breaches) < KEPT:
            look.breaches.append(Breach("/".join(delivery), *delivery))
        else:
            look.more += 1


def _leases(settings: Settings, connections: Connections, store: str) -> Look:
    """Leases that ended long ago and that no sweep took back."""
    look = Look("leases_end", f"store {store}")
    groups = [group for group, owner in settings.groups.items() if owner.store == store]
    if not groups:
        return look
    try:
        with guarded(look.place, StoreFailed), open_leases(settings, connections, store) as leases:
            ended = leases.count(groups, KEPT, patience(settings).total_seconds())
    except Unavailable as error:
        look.missed = error.what
        return look
    look.rows_read = ended.leases
    if ended.overdue:
        look.breaches, look.more = [Breach(store)], ended.overdue - 1
    return look


def _erased(settings: Settings, connections: Connections, control: Any, group: str) -> Look:
    """Logs that quote a message which was erased on request: one was restored, or a copy failed afterwards."""
    look = Look(INVARIANT, f"group {group}")
    try:
        with Sources(settings, connections) as sources:
            for page in erased_messages(control):
                look.rows_read += len(page)
                for key, row in sources.logs_of(group).logs(group, page).items():
                    if row.last_error and len(look.breaches) < KEPT:
                        look.breaches.append(Breach("/".join((*key, group)), *key, group))
                    elif row.last_error:
                        look.more += 1
    except Unavailable as error:
        look.missed = error.what
    return look


def _floor(settings: Settings, connections: Connections, group: str, day: Day) -> Look:
    """A floor newer than the longest way back of a copy: something was purged that a copy may still come for."""
    look = Look("floor_is_old", f"group {group}", rows_read=1)
    ways = (
        longest_way_back(settings.policy_for(topic, group)) for topic in settings.topics_of(group)
    )
    way = min(ways, default=timedelta(0))
    try:
        with Sources(settings, connections) as sources:
            floor = sources.logs_of(group).floor(group)
    except Unavailable as error:
        look.missed = error.what
        return look
    if way and floor > day.as_of - way + settings.policy_for(None, group).max_clock_skew:
        look.breaches = [Breach(group, consumer_group=group)]
    return look
