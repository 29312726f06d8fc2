"""Does one part of a sweep with connections of its own: in a Spark task, or one after the other in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from backstop.config.connections import Connections
from backstop.config.policy import Policy
from backstop.config.settings import Settings
from backstop.evidence.sources import guarded
from backstop.leases.redis_exchange import RedisExchange
from backstop.model.errors import BackstopError, StoreFailed
from backstop.model.records import Counts, Key
from backstop.stores.open import open_leases
from backstop.sweep.ask_log import GroupLog
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.foreign.protocol import ForeignDecision, LogStanding
from backstop.sweep.parts import Part
from backstop.sweep.redis_bucket import Bucket
from backstop.sweep.sample_redis import sample_redis
from backstop.sweep.sweep_database import sweep_database
from backstop.sweep.sweep_redis import sweep_bucket
from backstop.sweep.tally import SweepDecision, Tally, TallyKey

FOREIGN_LIMIT = 100_000


def sweep_part(
    settings: Settings,
    connections: Connections,
    part: Part,
    groups: Collection[str] | None,
    goes_on: str,
    *,
    limit: int,
    dry_run: bool,
    tell: Callable[[SweepDecision], None] | None = None,
) -> Tally:
    """What was decided and done, with what did not answer in `missed`: one place that is away, or fails in any other way, holds
    up no other.

    `limit` leases at most, `goes_on`: where a walk over this place stopped the last time.
    """
    tally = Tally(tell)
    try:
        with guarded(part.place, StoreFailed):
            match part.kind:
                case "database":
                    with open_leases(settings, connections, part.name) as leases:
                        untouched = untouched_seconds(settings, part.name, groups)
                        sweep_database(
                            leases, part.place, untouched, tally, limit=limit, dry_run=dry_run
                        )
                case "front" | "guard":
                    with open_bucket(settings, connections, part) as (bucket, log):
                        try:
                            sweep_bucket(
                                bucket, part.place, log, tally, limit=limit, dry_run=dry_run
                            )
                        finally:
                            note_away(settings, log, tally)
                case "sample":
                    _sample(settings, connections, part, groups, goes_on, tally, dry_run)
                case "foreign":
                    _sweep_foreign(settings, connections, part, goes_on, tally, limit, dry_run)
    except BackstopError as error:
        tally.missed[part.place] = error.what
    return tally


def untouched_seconds(
    settings: Settings, store: str, groups: Collection[str] | None
) -> dict[str, float]:
    """The groups of a consumer store, and after how long each takes back a lease without an end."""
    return {
        group: settings.policy_for(None, group).untouched_for.total_seconds()
        for group, its in settings.groups.items()
        if its.store == store and (groups is None or group in groups)
    }


def overdue_after(policy: Policy) -> timedelta:
    """A lease that ended longer ago than this should have been taken back: two sweeps and a sweep's own time."""
    return 2 * policy.sweep_interval + timedelta(minutes=2)


def open_exchange(settings: Settings, connections: Connections, part: Part) -> RedisExchange:
    """The Redis that a part of kind front or guard is in; nothing is connected before its first use."""
    if part.kind == "guard":
        guard = settings.redis_guards[part.name]
        return RedisExchange(connections.url(guard.redis), cluster=guard.cluster)
    leases = settings.groups[part.name].leases
    assert leases is not None
    return RedisExchange(connections.url(leases.redis), cluster=leases.cluster)


@contextmanager
def open_bucket(
    settings: Settings, connections: Connections, part: Part
) -> Iterator[tuple[Bucket, GroupLog | None]]:
    """The bucket of a part of kind front or guard, and the log that decides about it; null: Redis decides alone."""
    with ExitStack() as opened:
        exchange = open_exchange(settings, connections, part)
        opened.callback(exchange.close)
        log = None
        if part.kind == "front":
            store = settings.groups[part.name].store
            leases = opened.enter_context(open_leases(settings, connections, store))
            log = GroupLog(part.name, leases)
        yield Bucket(exchange, part.name, part.bucket), log


def note_away(settings: Settings, log: GroupLog | None, tally: Tally) -> None:
    """Into `missed`, that the log did not answer."""
    if log is not None and log.missed:
        tally.missed[f"store {settings.groups[log.group].store}"] = log.missed


def _sample(
    settings: Settings,
    connections: Connections,
    part: Part,
    groups: Collection[str] | None,
    goes_on: str,
    tally: Tally,
    dry_run: bool,
) -> None:
    theirs = {
        name: its
        for name, its in settings.groups.items()
        if its.leases and its.leases.redis == part.name and (groups is None or name in groups)
    }
    exchange = RedisExchange(
        connections.url(part.name),
        cluster=any(its.leases is not None and its.leases.cluster for its in theirs.values()),
    )
    logs = {
        name: GroupLog(name, open_leases(settings, connections, its.store))
        for name, its in theirs.items()
    }
    try:
        tally.goes_on[part.place] = sample_redis(
            exchange, part.place, logs, goes_on, tally, dry_run=dry_run
        )
    finally:
        exchange.close()
        for log in logs.values():
            log.close()
    for name, log in logs.items():
        if log.missed:
            tally.missed[f"store {theirs[name].store}"] = log.missed


def _sweep_foreign(
    settings: Settings,
    connections: Connections,
    part: Part,
    goes_on: str,
    tally: Tally,
    limit: int,
    dry_run: bool,
) -> None:
    foreign = open_foreign(settings, connections, part.name)
    foreign.place = goes_on
    log = GroupLog(
        foreign.group, open_leases(settings, connections, settings.groups[foreign.group].store)
    )

    def states_of(keys: Sequence[Key]) -> Mapping[Key, LogStanding]:
        found = log.standing(keys)
        return {
            key: LogStanding(standing.state, standing.is_alive) for key, standing in found.items()
        }

    def told(one: ForeignDecision) -> None:
        if one.decision in ("keep", "repair", "reclaim"):
            tally.add(
                TallyKey(part.place, one.group, one.topic, "?", one.decision.upper()),
                one.message_id,
                one.why,
            )

    try:
        foreign.sweep(states_of, limit=min(limit, FOREIGN_LIMIT), dry_run=dry_run, tell=told)
    finally:
        # What was done, not what was decided: a record may have moved on in between.
        tally.counts = Counts(
            {name: number for name, number in foreign.done.items() if name != "looked" and number}
        )
        tally.goes_on[part.place] = foreign.place
        foreign.close()
        log.close()
