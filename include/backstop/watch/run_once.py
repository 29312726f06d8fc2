"""The watch duty: looks, asks the rules, writes alerts, and beats outside as long as every duty succeeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.kept_bytes import read_kept_bytes
from backstop.evidence.sources import Sources
from backstop.model.errors import (
    BackstopError,
    BrokerUnavailable,
    ConfigurationError,
    HeartbeatLost,
    StoreUnavailable,
)
from backstop.model.records import Counts
from backstop.runs.duty import Duty, Step, Work, walk_duty
from backstop.runs.run import hold
from backstop.watch.add_up import add_up, count_answers
from backstop.watch.blocked import look_for_blocked, tell_of_blocked
from backstop.watch.due_trigger import judge_silence, judge_unseen, read_silence, read_unseen
from backstop.watch.duties import DutyAge, overdue, read_ages
from backstop.watch.heartbeat import beat, with_heartbeat
from backstop.watch.judge import judge
from backstop.watch.owners import judge_books, keep_owners
from backstop.watch.parked import (
    judge_discards,
    judge_releases,
    look_for_parked,
    tell_of_parked,
)
from backstop.watch.retire import retired
from backstop.watch.sample_groups import forget, read_history, sample_shards, take_sample
from backstop.watch.samples import Answer, Finding
from backstop.watch.size import judge_size
from backstop.watch.tell import read_yardsticks, tell


@dataclass(frozen=True, slots=True)
class Watched:
    """What one watch did: its counts, and the duties that are overdue, each with a sentence."""

    counts: Counts = field(default_factory=Counts)
    overdue: dict[str, str] = field(default_factory=dict)


def look(work: Work[Watched]) -> None:
    """One look, its alerts, and the heartbeat: committed before anything is raised.

    StoreUnavailable or BrokerUnavailable when something did not answer, HeartbeatLost when the heartbeat's URL did not take it.
    """
    connections, control, run = work.connections, work.control, work.run
    settings = with_heartbeat(work.settings, connections)
    with Sources(settings, connections) as sources:
        with control, control.cursor() as cursor:
            hold(cursor, run)
            history = read_history(cursor, settings, run.as_of)
            take_sample(sources, cursor, run.as_of, history)
            blocks = look_for_blocked(sources, cursor, history, run.as_of)
            sample_shards(sources, cursor, run.as_of)
            forget(cursor, settings, run.as_of)
            yardsticks = read_yardsticks(cursor)
        seen = {
            topic: looks
            for topic, looks in history.topics.items()
            if looks and looks[-1].taken_at == run.as_of
        }
        history.topics = seen
        history.groups = {
            key: looks
            for key, looks in history.groups.items()
            if looks and looks[-1].taken_at == run.as_of
        }
        answers = judge(sources, history, yardsticks)
        parked = look_for_parked(sources, control)
        missed = _missed(sources)
    with control, control.cursor() as cursor:
        ages, now = read_ages(cursor, settings)
        silence = read_silence(cursor)
        nobody_looks = [
            judge_silence(settings, *silence),
            *judge_unseen(settings, *silence, read_unseen(cursor)),
        ]
        sizes = judge_size(settings, read_kept_bytes(cursor))
    late = overdue(ages)
    trouble = _beat(settings, connections, late, ages, now)
    if settings.heartbeat is not None:
        late = [*late, trouble]
    with control, control.cursor() as cursor:
        hold(cursor, run)
        blocked = tell_of_blocked(sources, cursor, blocks, run.as_of, run.run_id)
        keep_owners(cursor, parked, history, run.as_of)
        waiting = tell_of_parked(cursor, parked, run.as_of, run.run_id)
        counts = tell(
            cursor,
            [
                *answers,
                *late,
                *nobody_looks,
                *sizes,
                *judge_books(parked),
                *judge_discards(parked),
                *judge_releases(parked),
                *retired(cursor, settings, run.as_of),
            ],
        )
        count_answers(cursor, sources)
        add_up(cursor)
    for name, number in (*blocked.items(), *waiting.items()):
        counts.add(name, number)
    counts.add("topics", len(history.topics))
    counts.add("groups", len(history.groups))
    work.input.overdue.update(
        {
            one.topic: one.finding.title
            for one in late
            if one.finding is not None and one.rule == "duty_overdue"
        }
    )
    counts.add("overdue", len(work.input.overdue))
    work.input.counts.update(counts)
    work.record(counts)
    if error := missed or _heartbeat_lost(trouble):
        raise error


WATCH = Duty(
    "watch",
    steps=(Step("watch", look),),
    unaffected="What the watch found before is stored with its alerts; no heartbeat was sent.",
    next_step="Bring it back; the next watch looks again.",
)


def run_once(settings: Settings, connections: Connections) -> Watched:
    """The whole duty in this process, as `walk_duty`."""
    return walk_duty(WATCH, settings, connections, Watched()).input


def _beat(
    settings: Settings,
    connections: Connections,
    late: Sequence[Answer],
    ages: Sequence[DutyAge],
    now: datetime,
) -> Answer:
    """Beats when every duty is in time, else asks the URL for failures, if there is one."""
    if settings.heartbeat is None:
        return Answer("heartbeat", "*", "*", None)
    missing = [one.finding.title for one in late if one.finding is not None]
    reference = settings.heartbeat.fail_url if missing else settings.heartbeat.url
    if reference is None:
        return Answer("heartbeat", "*", "*", None)  # silence is the alarm
    lines = missing or [
        f"{age.duty}: succeeded {(now - age.last_success).total_seconds():.0f} s ago"
        if age.last_success
        else f"{age.duty}: newly installed"
        for age in ages
    ]
    try:
        said = beat(connections.url(reference), "\n".join(lines), settings.heartbeat.timeout)
    except ConfigurationError as error:
        said = error.what
    if said is None:
        return Answer("heartbeat", "*", "*", None)
    return Answer(
        "heartbeat",
        "*",
        "*",
        Finding(
            "warning",
            "The heartbeat's URL does not take the heartbeat",
            f"Asked at {reference}: {said}. Whoever watches from outside now hears silence although Backstop's duties were looked at."
            " Do: see whether that service is up and the URL still valid.",
        ),
    )


def _heartbeat_lost(trouble: Answer) -> BackstopError | None:
    if trouble.finding is None:
        return None
    return HeartbeatLost(
        f"{trouble.finding.title}: {trouble.finding.body.split('. ')[0]}.",
        unaffected="What the watch found was stored with its alerts.",
        next_step="See whether the service that takes the heartbeat is up and its URL still valid.",
    )


def _missed(sources: Sources) -> BackstopError | None:
    if not sources.unreachable:
        return None
    kind = (
        BrokerUnavailable
        if all(name.startswith("broker ") for name in sources.unreachable)
        else StoreUnavailable
    )
    why = "; ".join(
        f"{name}: {said.rstrip('.')}" for name, said in sorted(sources.unreachable.items())
    )
    return kind(
        f"The watch could not ask {why}.",
        unaffected="What they would have shown is unknown, so no alert was closed for it; everything else was looked at.",
        next_step="Bring back or correct what is named; `backstop check` says what does not answer.",
    )
