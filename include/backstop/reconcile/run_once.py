"""The duty reconcile: judge everything that is due, check what was judged, promote it; nothing is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.recover_attempts import recover_attempts
from backstop.evidence.sources import Sources
from backstop.model.errors import BackstopError, PromotionFailed, Unavailable
from backstop.model.records import Counts
from backstop.reconcile.anomalies import find_anomalies
from backstop.reconcile.count_due import count_due
from backstop.reconcile.promote import promote
from backstop.reconcile.require_reachable import require_all_reachable
from backstop.reconcile.revisit import revisit_cases
from backstop.runs.duty import Check, Duty, RunCheck, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER
from backstop.runs.scope import name_of, scope_of
from backstop.stores.protocol import Scope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReconcileInput:
    """`start_spark` is called only when something is due; `say` gets the name of each phase."""

    start_spark: Callable[[], SparkSession]
    say: Callable[[str], None] = lambda _: None


def due(work: Work[ReconcileInput]) -> int | None:
    """Stubs due in the run's scope. Reads only."""
    found = count_due(work.settings, work.connections, work.run.as_of, scope_of(work.run.scope))
    work.record(Counts(due=found.total))
    if found.total == 0:
        found.require_reachable()
    return found.total or None


def recover(work: Work[ReconcileInput]) -> Counts:
    """Ends attempts that nobody settled in time.

    A shard that fails here, or refuses some rows, is counted as `unrecovered`; the count of what is due, or the judge, finds it
    again and ends the run as incomplete.
    """
    with Sources(work.settings, work.connections) as sources:
        recovered = recover_attempts(sources)
    unrecovered = len(recovered.failed) + len(recovered.refused)
    numbers = Counts(recovered_attempts=recovered.attempts, unrecovered=unrecovered)
    return Counts({name: number for name, number in numbers.items() if number})


def judge(work: Work[ReconcileInput]) -> Counts:
    """Judges what is due, and stages the answers."""
    from backstop.reconcile.judge import judge

    return judge(
        work.input.start_spark(), *work.parts, scope_of(work.run.scope), say=work.input.say
    )


def promote_judged(work: Work[ReconcileInput]) -> None:
    """Applies what was judged and checked: control database first, then each shard."""
    failed: BackstopError | None = None
    try:
        work.record(promote(*work.parts))
    except (Unavailable, PromotionFailed) as error:
        failed = error  # raised after all else was done, and this is something else
    work.record(find_anomalies(*work.parts))
    if failed is not None:
        raise failed


def unread(work: Work[ReconcileInput]) -> Unavailable | None:
    try:
        require_all_reachable(work.control, work.run)
    except Unavailable as error:
        return error
    return None


RECONCILE = Duty(
    "reconcile",
    due=due,
    steps=(
        Step("recover", recover, in_dry_run=False, when_idle=True),
        # Confirms exhausted stubs whose work is done by now, and closes their cases.
        Step(
            "revisit",
            lambda work: revisit_cases(*work.parts),
            goes_on="always",
            in_dry_run=False,
            when_idle=True,
            counts_itself=True,
        ),
        Step("judge", judge),
        Check("stub_contract", in_dry_run=True),
        Check("log_contract", in_dry_run=True),
        Check("verdicts", in_dry_run=True),
        Step("promote", promote_judged, in_dry_run=False),
        Check("requests"),
    ),
    people=lambda _, dry_run: (
        False
    ),  # also a dry one stages verdicts, and writes what it saw of queues
    instead="`backstop where TOPIC ID` judges a message now. A dry run is the DAG reconcile's, or with the duties' login.",
    unread=unread,
    unaffected="What the run had promoted stays valid; nothing was decided from its silence, and nothing was sent.",
    next_step="Bring it back; the next run judges what is still due, and finishes a promotion that was begun.",
)


def run_once(
    settings: Settings,
    connections: Connections,
    start_spark: Callable[[], SparkSession],
    audit: RunCheck,
    *,
    scope: Scope | None = None,
    dry_run: bool = False,
    no_send: bool = False,
    dead_after: timedelta = DEAD_AFTER,
    say: Callable[[str], None] = lambda _: None,
) -> Counts:
    """The whole duty in this process, as `walk_duty`; safe to run twice and beside another run.

    A dry run judges and stages, and promotes nothing; with `no_send` all is promoted, but no resend is asked for.
    """
    scope = scope or Scope()
    return walk_duty(
        RECONCILE,
        settings,
        connections,
        ReconcileInput(start_spark, say),
        check=audit,
        scope=name_of(scope.topics, scope.created_from, scope.created_to),
        dry_run=dry_run,
        no_send=no_send,
        dead_after=dead_after,
    ).counts
