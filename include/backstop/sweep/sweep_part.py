"""Does one part of a sweep: in a Spark task, or one after the other in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from backstop.config.policy import Policy
from backstop.config.settings import Settings
from backstop.evidence.sources import guarded
from backstop.model.errors import BackstopError, StoreFailed
from backstop.model.records import Counts, Key
from backstop.sweep.ask_log import GroupLog
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.foreign.protocol import ForeignDecision, LogStanding
from backstop.sweep.open_stores import OpenStores
from backstop.sweep.parts import Part
from backstop.sweep.sample_redis import sample_redis
from backstop.sweep.sweep_database import sweep_database
from backstop.sweep.sweep_redis import sweep_bucket
from backstop.sweep.tally import SweepDecision, Tally, TallyKey

FOREIGN_LIMIT = 100_000


def sweep_part(
    stores: OpenStores,
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
                    untouched = untouched_seconds(stores.settings, part.name, groups)
                    leases = stores.leases(part.name)
                    sweep_database(
                        leases, part.place, untouched, tally, limit=limit, dry_run=dry_run
                    )
                case "front" | "guard":
                    bucket, log = stores.bucket(part), stores.log_behind(part)
                    try:
                        sweep_bucket(bucket, part.place, log, tally, limit=limit, dry_run=dry_run)
                    finally:
                        note_away(stores.settings, log, tally)
                case "sample":
                    _sample(stores, part, groups, goes_on, tally, dry_run)
                case "foreign":
                    _sweep_foreign(stores, part, goes_on, tally, limit, dry_run)
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


def note_away(settings: Settings, log: GroupLog | None, tally: Tally) -> None:
    """Into `missed`, that the log did not answer."""
    if log is not None and log.missed:
        tally.missed[f"store {settings.groups[log.group].store}"] = log.missed


def _sample(
    stores: OpenStores,
    part: Part,
    groups: Collection[str] | None,
    goes_on: str,
    tally: Tally,
    dry_run: bool,
) -> None:
    theirs = {
        name: its.leases
        for name, its in stores.settings.groups.items()
        if its.leases and its.leases.redis == part.name and (groups is None or name in groups)
    }
    is_cluster = any(leases.cluster for leases in theirs.values())
    exchange = stores.exchange(part.name, cluster=is_cluster)
    logs = {name: stores.log(name) for name in theirs}
    tally.goes_on[part.place] = sample_redis(
        exchange, part.place, logs, goes_on, tally, dry_run=dry_run
    )
    for log in logs.values():
        note_away(stores.settings, log, tally)


def _sweep_foreign(
    stores: OpenStores, part: Part, goes_on: str, tally: Tally, limit: int, dry_run: bool
) -> None:
    foreign = open_foreign(stores.settings, stores.connections, part.name)
    foreign.place = goes_on
    log = stores.log(foreign.group)

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
