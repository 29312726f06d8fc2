"""The sweep duty: count what ended, then part by part look, decide and settle; safe to run twice and beside another.

`run_duty` is the whole of it in one process; a Spark task is one `sweep_part` beside others, and `sweep_all` takes the
function that spreads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.records import Counts
from backstop.runs.duty import Check, Duty, RunCheck, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER, Run, add_counts
from backstop.runs.scope import name_of, topics_of
from backstop.sweep.count_ended import Counted, count_ended
from backstop.sweep.open_stores import OpenStores
from backstop.sweep.parts import Part, parts_of
from backstop.sweep.record import places, record_look, record_tally
from backstop.sweep.sweep_part import sweep_part
from backstop.sweep.tally import SweepDecision, Tally
from backstop.sweep.tell_people import tell_of_failing, tell_of_leaks

LIMIT = 1_000_000
"""Leases of one part in one run: the next run takes the rest."""

Spread = Callable[[Sequence[Part], Mapping[str, str]], Iterable[Tally]]
"""Does these parts, given where walks go on, and yields what each did."""


def scope_of_groups(groups: Collection[str] | None) -> str:
    """The name of a sweep's scope: its groups stand where other duties' topics do. Null: everything."""
    return name_of(sorted(groups) if groups else None)


def groups_of_scope(scope: str) -> list[str] | None:
    return topics_of(scope)


def count_before(settings: Settings, connections: Connections, control: Any, run: Run) -> Counted:
    """What there is to do. But in a dry run it is recorded as the look before, and the cases of messages that fail again and
    again are opened and closed."""
    groups = groups_of_scope(run.scope)
    counted = count_ended(settings, connections, control, groups)
    if not run.dry_run:
        record_look(control, run, "before", counted)
        counts, missed = tell_of_failing(settings, connections, control, run, groups)
        counted.missed |= missed
        add_counts(control, run, counts)
    return counted


def sweep_all(
    settings: Settings, connections: Connections, control: Any, run: Run, spread: Spread
) -> Counts:
    """Every part of the run's scope, databases before what stands in front of them; then who leaks, and the look after.

    Raises Unavailable, after all else was done, when something did not answer; RunLost when the run is not ours any more.
    """
    groups = groups_of_scope(run.scope)
    counts = Counts()
    missed: dict[str, str] = {}
    parts = parts_of(settings, groups)
    for first in (True, False):
        for tally in spread(
            [part for part in parts if (part.kind == "database") is first], places(control)
        ):
            missed |= tally.missed
            counts += tally.counts
            if not run.dry_run:
                record_tally(control, run, tally)
    if not run.dry_run:
        counts += tell_of_leaks(settings, control, run)
        after = count_ended(settings, connections, control, groups)
        after.goes_on.clear()  # the sweep itself says where it goes on
        record_look(control, run, "after", after)
        missed |= after.missed
    Counted(missed=missed).require_reachable()
    return counts


def in_this_process(
    settings: Settings,
    connections: Connections,
    run: Run,
    tell: Callable[[SweepDecision], None] | None = None,
) -> Spread:
    """Does the parts one after the other."""

    def spread(parts: Sequence[Part], walks: Mapping[str, str]) -> Iterator[Tally]:
        with OpenStores(settings, connections) as stores:
            for number, part in enumerate(parts):
                run.phase.advance(number, len(parts))
                yield sweep_part(
                    stores,
                    part,
                    groups_of_scope(run.scope),
                    walks.get(part.place, ""),
                    limit=LIMIT,
                    dry_run=run.dry_run,
                    tell=tell,
                )

    return spread


@dataclass(frozen=True, slots=True)
class SweepInput:
    """`tell` gets what a dry run would do with each lease."""

    tell: Callable[[SweepDecision], None] | None = None


def count_due(work: Work[SweepInput]) -> int | None:
    """Leases that ended; 0 when only a sample is due, null when neither."""
    counted = count_before(*work.parts)
    work.record(Counts(due=counted.leases))
    if counted.leases or counted.is_sample_due:
        return counted.leases
    counted.require_reachable()
    return None


def sweep(work: Work[SweepInput]) -> Counts:
    """Part after part in this process."""
    tell = work.input.tell if work.run.dry_run else None
    spread = in_this_process(work.settings, work.connections, work.run, tell)
    return sweep_all(*work.parts, spread)


SWEEP = Duty(
    "sweep",
    due=count_due,
    steps=(
        Check("leases_before"),
        Step("sweep", sweep, goes_on="always", counts_itself=True),
        Check("leases_after"),
    ),
    unaffected="Leases that were taken back stay so; nothing else was changed.",
    next_step="Bring it back; the next sweep goes on.",
)


def run_duty(
    settings: Settings,
    connections: Connections,
    *,
    groups: Collection[str] | None = None,
    dry_run: bool = False,
    tell: Callable[[SweepDecision], None] | None = None,
    dead_after: timedelta = DEAD_AFTER,
    audit: RunCheck | None = None,
) -> Counts:
    """The whole duty in this process, as `walk_duty`. `groups` null: all. Nothing ended: nothing else is done."""
    parts_of(settings, groups)  # refuses a group that there is not, before a run is opened
    return walk_duty(
        SWEEP,
        settings,
        connections,
        SweepInput(tell),
        scope=scope_of_groups(groups),
        dry_run=dry_run,
        dead_after=dead_after,
        check=audit,
    ).counts
