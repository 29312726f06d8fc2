"""The reconcile duty from end to end, for the command line and the tests; the DAG wires the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import BackstopError, StoreUnavailable
from backstop.reconcile.anomalies import find_anomalies
from backstop.reconcile.begin import begin
from backstop.reconcile.count_due import count_due
from backstop.reconcile.promote import promote
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.run import DEAD_AFTER, Run, close_run, keep_alive, open_run
from backstop.runs.scope import name_of
from backstop.stores.protocol import Scope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Audit = Callable[[Run, str], None]
"""Runs one suite of data checks over a run and raises AuditFailed when it does not hold."""


def run_once(
    settings: Settings, connections: Connections, start_spark: Callable[[], SparkSession], audit: Audit,
    *, scope: Scope | None = None, dry_run: bool = False, no_send: bool = False, dead_after: timedelta = DEAD_AFTER,
    say: Callable[[str], None] = lambda _: None,
) -> Counts:  # fmt: skip
    """Judges everything due in `scope` and promotes it; safe to run twice and beside another run.

    A dry run judges and stages, and promotes nothing; with `no_send` all is promoted, but no resend is asked for.
    `start_spark` is called only when something is due. Raises what went wrong after the run was closed with it.
    """
    control = connect(settings, connections)
    scope = scope or Scope()
    try:
        run = open_run(
            control, "reconcile", name_of(scope.topics, scope.created_from, scope.created_to), settings,
            dry_run=dry_run, dead_after=dead_after, no_send=no_send,
        )  # fmt: skip
        try:
            with keep_alive(lambda: connect(settings, connections), run):
                counts, missed = _steps(settings, connections, control, run, scope, start_spark, audit, say)
        except BaseException as error:
            # Over a connection that broke nothing can be said: the run is taken over once it has been silent for long enough.
            if not control.closed:
                control.rollback()
                close_run(control, run, "failed", Counts(), error=str(error))
            raise
        close_run(control, run, "incomplete" if missed else "done", counts, error=str(missed) if missed else None)
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise StoreUnavailable(
            f"The control database ({settings.control}) did not answer: {str(error).strip() or 'no reason'}.",
            kept="What the run had promoted stays valid; nothing was decided from its silence, and nothing was sent.",
            next_step="Bring it back; the next run judges what is still due, and finishes a promotion that was begun.",
        ) from error
    finally:
        control.close()
    if missed:
        raise missed
    return counts


def _steps(
    settings: Settings, connections: Connections, control: Any, run: Run, scope: Scope,
    start_spark: Callable[[], SparkSession], audit: Audit, say: Callable[[str], None],
) -> tuple[Counts, BackstopError | None]:  # fmt: skip
    counts = begin(settings, connections, control, run)
    missed: BackstopError | None = None
    due = count_due(settings, connections, run.as_of, scope)
    counts.add("due", due.total)
    if due.total:
        from backstop.reconcile.judge import judge
        from backstop.reconcile.require_reachable import require_all_reachable

        counts += judge(start_spark(), settings, connections, control, run, scope, say=say)
        for suite in ("stubs_at_the_door", "logs_at_the_door", "verdicts"):
            audit(run, suite)
        if not run.dry_run:
            counts += promote(settings, connections, control, run)
            counts += find_anomalies(settings, connections, control, run)
            audit(run, "requests")
        try:
            require_all_reachable(control, run)
        except BackstopError as error:
            missed = error
    elif due.unreachable:
        try:
            due.require_reachable()
        except BackstopError as error:
            missed = error
    return counts, missed
