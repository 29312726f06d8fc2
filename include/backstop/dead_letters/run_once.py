"""The triage duty from end to end in this process, for the command line and the tests; the DAG wires the same steps one by one.

    settle replays | drain | classify | audit | promote causes | decide and apply | audit
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.dead_letters.apply import Decided, decide_and_apply
from backstop.dead_letters.classify import classify_letters
from backstop.dead_letters.drain import drain_all
from backstop.dead_letters.promote_causes import promote_causes
from backstop.dead_letters.settle_replays import settle_replays
from backstop.errors import StoreUnavailable, Unavailable
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.run import DEAD_AFTER, Run, add_counts, close_run, keep_alive, open_run
from backstop.runs.scope import name_of

DUTY = "triage"


def run_duty(
    settings: Settings, connections: Connections, *, topics: Collection[str] | None = None, dry_run: bool = False,
    audit: Callable[[Run, str], None] | None = None, tell: Callable[[Decided], None] | None = None,
    dead_after: timedelta = DEAD_AFTER,
) -> Counts:  # fmt: skip
    """`topics` null: all. `audit` runs a suite of data checks. A dry run tells what would become of letters that are stored
    and classified already, and changes nothing.

    Raises RunRefused while another run of the scope lives, AuditFailed when a check does not hold, Unavailable after all else
    was done; the run is closed with it.
    """
    control = connect(settings, connections)
    try:
        scope = name_of(sorted(topics) if topics else None)
        run = open_run(control, DUTY, scope, settings, dry_run=dry_run, dead_after=dead_after)
        counts = Counts()
        try:
            with keep_alive(lambda: connect(settings, connections), run):
                missed = _steps(settings, connections, control, run, counts, audit, tell or (lambda _: None))
        except BaseException as error:
            if not control.closed:
                control.rollback()
                close_run(control, run, "failed", Counts(), error=str(error))
            raise
        # What each step did is in the run's counts where it was committed.
        close_run(control, run, "incomplete" if missed else "done", Counts(), error=str(missed) if missed else None)
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise StoreUnavailable(
            f"The control database ({settings.control}) did not answer: {str(error).strip() or 'no reason'}.",
            kept="Dead letters that were not stored are still with the broker; decisions stay.",
            next_step="Bring it back; the next run goes on.",
        ) from error
    finally:
        control.close()
    if missed:
        raise missed
    return counts


def _steps(
    settings: Settings, connections: Connections, control: Any, run: Run, counts: Counts,
    audit: Callable[[Run, str], None] | None, tell: Callable[[Decided], None],
) -> Unavailable | None:  # fmt: skip
    """Adds to `counts`; returns what did not answer. Every step is done whatever was away in the one before."""
    missed: list[Unavailable] = []

    def step(work: Callable[[], Counts]) -> None:
        try:
            done = work()
        except Unavailable as error:
            missed.append(error)
        else:
            for name, number in done.items():
                counts.add(name, number)

    def check(suite: str) -> None:
        if audit is not None and not run.dry_run:
            audit(run, suite)

    if not run.dry_run:
        step(lambda: _settled(control, run))
        step(lambda: drain_all(settings, connections, control, run))
        check("letters_drained")
        step(lambda: classify_letters(control, settings, connections, run))
        check("causes")
        step(lambda: promote_causes(control, run))
    step(lambda: decide_and_apply(settings, connections, control, run, tell=tell))
    check("letters_decided")
    if len(missed) <= 1:
        return missed[0] if missed else None
    return Unavailable(
        " ".join(dict.fromkeys(error.what for error in missed)), kept=missed[-1].kept, next_step=missed[-1].next_step
    )


def _settled(control: Any, run: Run) -> Counts:
    counts = settle_replays(control, run)
    add_counts(control, run, counts)
    return counts
