"""Takes back the leases in a consumer database that ended while nobody completed, renewed or released them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.sources import guarded
from backstop.model.errors import StoreFailed
from backstop.stores.leases import HeldLease, Leases
from backstop.sweep.decide import Decision, Truth, decide
from backstop.sweep.tally import Tally, TallyKey

BATCH = 2000
"""Leases of one transaction: long enough to be quick, short enough to hold nobody up."""
SHOWN = 10_000
"""Of a dry run, which looks once and takes nothing."""


def sweep_database(
    leases: Leases,
    place: str,
    untouched: Mapping[str, float],
    tally: Tally,
    *,
    limit: int,
    dry_run: bool,
) -> None:
    """At most `limit` leases of the groups that `untouched` names (with the seconds after which one without an end counts as
    ended); safe beside another sweep and beside the workers. Raises StoreUnavailable after what was committed was tallied.
    """
    groups = list(untouched)
    # Nobody hears of each lease: the database decides as `decide` would, and counts.
    left = limit
    if not dry_run:
        try:
            with guarded(place, StoreFailed):
                left -= _take_back(leases, place, groups, tally, limit)
        except StoreFailed:
            left = limit - _take_back_apart(leases, place, untouched, tally, limit)
    for endless in (False, True) if dry_run else (True,):
        while left > 0:
            size = min(SHOWN if dry_run else BATCH, left)
            seen, taken = leases.settle(
                groups, untouched, size, endless, None if dry_run else _ended
            )
            for lease in seen:
                _count(tally, place, lease, dry_run or lease[:3] in taken, endless)
            left -= len(seen)
            if dry_run or len(seen) < size or not taken:
                break


def _take_back(leases: Leases, place: str, groups: Sequence[str], tally: Tally, limit: int) -> int:
    left = limit
    while left > 0:
        size = min(BATCH, left)
        taken = leases.take_back(groups, size)
        for some in taken:
            line = TallyKey(place, some.group, some.topic, some.owner_host or "?", Decision.RECLAIM)
            tally.add(line, some.message_id, "ended", some.leases)
        number = sum(some.leases for some in taken)
        left -= number
        if number < size:
            break
    return limit - left


def _take_back_apart(
    leases: Leases, place: str, untouched: Mapping[str, float], tally: Tally, limit: int
) -> int:
    """The same, lease by lease where the database refuses to change one: no other worker's lease waits for that."""
    taken_back = 0
    refused: list[tuple[HeldLease, StoreFailed]] = []

    def reclaim(some: Sequence[HeldLease]) -> list[tuple[str, str, str]]:
        with guarded(place, StoreFailed):
            return leases.reclaim(some)

    while taken_back < limit:
        size = min(SHOWN, limit - taken_back)
        seen, _ = leases.settle(list(untouched), untouched, size, False, None)
        known = {lease[:3] for lease, _ in refused}
        wanted = [lease for lease in _ended(seen) if lease[:3] not in known]
        taken = {key for some in apply_apart(wanted, reclaim, refused) for key in some}
        for lease in seen:
            if lease[:3] in taken:
                _count(tally, place, lease, True, False)
        taken_back += len(taken)
        if not taken or len(seen) < size:
            break
    if refused:
        tally.missed[f"{len(refused)} leases of {place}"] = refused[0][1].what
    return taken_back


def _ended(seen: Sequence[HeldLease]) -> list[HeldLease]:
    return [lease for lease in seen if decide(lease.is_expired, Truth.NO_LOG) is Decision.RECLAIM]


def _count(tally: Tally, place: str, lease: HeldLease, is_taken: bool, endless: bool) -> None:
    decision = Decision.RECLAIM if is_taken else Decision.KEEP
    why = f"untouched since {lease.touched}, no end" if endless else f"ended at {lease.ends}"
    tally.add(
        TallyKey(place, lease.group, lease.topic, lease.owner_host or "?", decision),
        lease.message_id,
        why,
    )
