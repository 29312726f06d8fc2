"""Counts, in milliseconds, what a sweep would have to do: leases that ended, by place, and whether a sample is due."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import guarded
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import milliseconds
from backstop.model.errors import BackstopError, StoreFailed, StoreUnavailable
from backstop.sql.named import load
from backstop.stores.leases import Leases
from backstop.stores.open import open_leases
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.foreign.protocol import ForeignLeases
from backstop.sweep.parts import Part, parts_of
from backstop.sweep.redis_bucket import count_expired
from backstop.sweep.sweep_part import overdue_after, untouched_seconds

_SQL = load("backstop.sweep", "queries.sql")
AT_MOST = 100_000
"""Counting further would cost, and changes nothing of what is done."""
FOREIGN_AT_MOST = 1
SAMPLE_EVERY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Ended:
    """What was found at one place."""

    place: str
    leases: int
    oldest: datetime | None = None
    overdue: int = 0
    without_time: int = 0
    """Logs that are CONSUMED and do not say when."""


@dataclass(slots=True)
class Counted:
    """What there is to do."""

    places: list[Ended] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    is_sample_due: bool = False
    goes_on: dict[str, str] = field(default_factory=dict)
    """Where the walk over a store of another program goes on: a count that finds nothing passes over what it saw."""

    @property
    def leases(self) -> int:
        return sum(place.leases for place in self.places)

    def require_reachable(self) -> None:
        """Raises Unavailable with what did not answer."""
        if self.missed:
            raise StoreUnavailable(
                "Not everything answered: "
                + "; ".join(f"{name}: {why}" for name, why in sorted(self.missed.items())),
                unaffected="Leases in other places were taken back; the others stay as they are.",
                next_step="Bring back what is named; the next sweep goes on.",
            )


def count_ended(
    settings: Settings, connections: Connections, control: Any, groups: Collection[str] | None
) -> Counted:
    """What every place of these groups (null: all) holds that ended; one that does not answer is named in `missed`."""
    counted = Counted()
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["sampled_lately"], {"seconds": SAMPLE_EVERY.total_seconds()})
        sampled = bool(cursor.fetchone()[0])
        cursor.execute(_SQL["places"])
        places = dict(cursor.fetchall())
    for part in dict.fromkeys(part._replace(bucket=0) for part in parts_of(settings, groups)):
        if part.kind == "sample":
            counted.is_sample_due |= groups is None and not sampled
            continue
        try:
            with guarded(part.place, StoreFailed):
                if part.kind == "foreign":
                    place = places.get(part.place, "")
                    counted.places.append(
                        _count_foreign(settings, connections, part, place, counted.goes_on)
                    )
                else:
                    counted.places.append(_count(settings, connections, part, groups))
        except BackstopError as error:
            counted.missed[part.place] = error.what
    return counted


def any_ended(settings: Settings, leases: Leases, store: str) -> bool:
    """Whether a lease of the groups of a consumer store ended."""
    untouched = untouched_seconds(settings, store, None)
    return leases.count(list(untouched), 1, 0.0).leases > 0 or leases.count_endless(untouched) > 0


def any_guard_ended(exchange: RedisExchange, group: str) -> bool:
    """The same for a group whose leases are in Redis alone."""
    return count_expired(exchange, group, 0)[0] > 0


def any_foreign_ended(foreign: ForeignLeases) -> bool:
    """The same for records of another program. It walks: the next call goes on where this one ended."""
    return foreign.count(FOREIGN_AT_MOST) > 0


def _count_foreign(
    settings: Settings, connections: Connections, part: Part, place: str, goes_on: dict[str, str]
) -> Ended:
    foreign = open_foreign(settings, connections, part.name)
    foreign.place = place
    try:
        ended = Ended(part.place, foreign.count(FOREIGN_AT_MOST))
        goes_on[part.place] = foreign.place
        return ended
    finally:
        foreign.close()


def _count(
    settings: Settings, connections: Connections, part: Part, groups: Collection[str] | None
) -> Ended:
    if part.kind == "database":
        untouched = untouched_seconds(settings, part.name, groups)
        late = max(overdue_after(settings.policy_for(None, group)) for group in untouched)
        with open_leases(settings, connections, part.name) as leases:
            ended = leases.count(list(untouched), AT_MOST, late.total_seconds())
            endless = leases.count_endless(untouched)
            without_time = leases.count_without_time(list(untouched))
        return Ended(part.place, ended.leases + endless, ended.oldest, ended.overdue, without_time)
    if part.kind == "guard":
        its = settings.redis_guards[part.name]
        exchange, policy = (
            RedisExchange(connections.url(its.redis), cluster=its.cluster),
            settings.policy_for(),
        )
    else:
        front = settings.groups[part.name].leases
        assert front is not None
        exchange = RedisExchange(connections.url(front.redis), cluster=front.cluster)
        policy = settings.policy_for(None, part.name)
    try:
        leases_ended, overdue = count_expired(
            exchange, part.name, milliseconds(overdue_after(policy))
        )
    finally:
        exchange.close()
    return Ended(part.place, leases_ended, None, overdue)
