"""The duty triage: empty dead-letter queues, find causes, decide; the resends that it requests go out by the duty resend."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import timedelta

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.records import Counts
from backstop.runs.duty import Check, Duty, RunCheck, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER
from backstop.runs.scope import name_of
from backstop.triage.causes.classify import classify_dead_letters
from backstop.triage.causes.promote_causes import promote_causes
from backstop.triage.count_due import count_due, unread_logs
from backstop.triage.decide.apply import Decided, decide_and_apply
from backstop.triage.decide.postpone import postpone_unchanged
from backstop.triage.decide.settle_replays import settle_replays
from backstop.triage.drain.drain import drain_all


@dataclass(frozen=True, slots=True)
class TriageInput:
    """`tell` gets each decision."""

    tell: Callable[[Decided], None] = lambda _: None


def due(work: Work[TriageInput]) -> int | None:
    """Queues with dead letters, and dead letters to classify and to decide.

    What is only due for another look is looked at here: while people are asked, a look that finds all as it was is the rule.
    """
    found = count_due(work.settings, work.connections, work.control, work.run)
    if not work.run.dry_run and found.total == found.to_decide > 0:
        unchanged = postpone_unchanged(work.settings, work.connections, work.control, work.run)
        work.record(Counts(unchanged=unchanged))
        found = replace(found, to_decide=max(0, found.to_decide - unchanged))
    work.record(Counts(due=found.total))
    if not found.total:
        found.require_reachable()
    return found.total or None


def classify(work: Work[TriageInput]) -> Counts:
    return classify_dead_letters(work.control, work.settings, work.connections, work.run)


TRIAGE = Duty(
    "triage",
    due=due,
    counts_first=False,
    # Something that is away stops no step: each does all else.
    steps=(
        Step(
            "settle_replays",
            lambda work: settle_replays(work.settings, work.control, work.run),
            in_dry_run=False,
        ),
        Step(
            "drain",
            lambda work: drain_all(*work.parts),
            goes_on="when_away",
            in_dry_run=False,
            counts_itself=True,
        ),
        # What is stored already is classified and decided, whatever was drained just now.
        Check("dead_letters_drained", goes_on="always"),
        Step("classify", classify, goes_on="when_away", in_dry_run=False, counts_itself=True),
        Check("causes"),
        Step(
            "promote",
            lambda work: promote_causes(work.control, work.run),
            in_dry_run=False,
            counts_itself=True,
        ),
        Step(
            "decide_and_apply",
            lambda work: decide_and_apply(*work.parts, tell=work.input.tell),
            goes_on="when_away",
            counts_itself=True,
        ),
        Check("dead_letters_decided"),
    ),
    unread=lambda work: unread_logs(work.control, work.run),
    unaffected="Dead letters that were not stored are still with the broker; decisions stay.",
)


def run_duty(
    settings: Settings,
    connections: Connections,
    *,
    topics: Collection[str] | None = None,
    dry_run: bool = False,
    audit: RunCheck | None = None,
    tell: Callable[[Decided], None] | None = None,
    dead_after: timedelta = DEAD_AFTER,
) -> Counts:
    """The whole duty in this process, as `walk_duty`; `topics` null: all. A dry run tells what would become of dead letters that
    are stored and classified already, and changes nothing."""
    given = TriageInput() if tell is None else TriageInput(tell)
    scope = name_of(sorted(topics) if topics else None)
    return walk_duty(
        TRIAGE,
        settings,
        connections,
        given,
        scope=scope,
        dry_run=dry_run,
        dead_after=dead_after,
        check=audit,
    ).counts
