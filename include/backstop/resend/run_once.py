"""The resend duty: recover, then claim, publish and settle batch by batch until nothing is due.

`run_once` is one run in one process; a Spark partition is one `drain_requests` beside others; `run_duty` is the whole duty.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.control.speaker import person
from backstop.evidence.judge_by_key import Judge
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.requests.policy import Decision, NotNeeded, Postpone, Send
from backstop.resend.ask_for_ids import Listed, ask_for_ids
from backstop.resend.claim import (
    Claimed,
    Request,
    TopicShard,
    Worker,
    claim_requests,
    find_due,
    measure_queue_delays,
    read_due_requests,
)
from backstop.resend.count_due import count_due
from backstop.resend.judge_again import judge_again
from backstop.resend.order import keep_order
from backstop.resend.ramp import advance_batches
from backstop.resend.recover import recover
from backstop.resend.send_claimed import FRESH_SECONDS, hand_back, look_again, send_claimed
from backstop.runs.duty import Check, Duty, Step, Work, control_answers, walk_duty
from backstop.runs.run import DEAD_AFTER, Run, add_counts
from backstop.runs.scope import topics_of
from backstop.runs.without_collector import without_collector
from backstop.sql.named import load

_SQL = load("backstop.resend", "queries.sql")
_MOST_AT_ONCE = 20_000
"""Requests that one look judges: most of what a look costs, it costs once."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of ids of one topic that a person wants sent, and nothing else."""

    topic: str
    ids: tuple[str, ...]
    who: str
    why: str
    listed_in: str | None = None
    """The run of Airflow that it came with."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a dry run says of one request."""

    request: Request
    shard: str
    decision: Decision

    def __str__(self) -> str:
        key, number = self.request.key, self.request.send_number
        match self.decision:
            case Send(groups, route):
                to = "all groups" if groups is None else ", ".join(groups)
                does = f"would go to {to} by the {route} as send {number} ({self.request.reason})"
            case NotNeeded(why):
                does = f"would be closed as not needed: {why}"
            case Postpone(until, why):
                does = f"would wait until {until.isoformat(timespec='seconds')}: {why}"
        held = "; it is held until a step of the ramp releases it" if self.request.held else ""
        return f"{key.topic} {key.message_id} ({self.shard}): {does}{held}"


def run_once(
    settings: Settings,
    connections: Connections,
    run: Run,
    *,
    dry_run: bool = False,
    limit: int | None = None,
    tell: Callable[[Planned], None] = lambda _: None,
) -> Counts:
    """Everything due when it begins (at most `limit` requests), in this process; safe to run twice and beside
    another.

    A dry run (the argument's, or the run's own) tells what would go and changes nothing. The counts are added
    to the run's. Raises Unavailable, after all else was done, when something did not answer; RunLost when the
    run is not ours any more.
    """
    if dry_run or run.dry_run:
        counts = Counts()
        for planned in plan(settings, connections, run, limit=limit):
            tell(planned)
            counts.add(_NAMES[type(planned.decision)])
        return counts
    with open_worker(settings, connections, run) as worker:
        counts = prepare(worker)
        counts += drain_requests(worker, now(worker), limit=limit)
        add_counts(worker.control, worker.run, counts)
        require_all_reachable(worker.missed)
    return counts


@dataclass(frozen=True, slots=True)
class ResendInput:
    """`limit`: at most so many requests; `tell` gets what a dry run would do with each. `listing`: only these ids."""

    limit: int | None = None
    tell: Callable[[Planned], None] = lambda _: None
    listing: Listing | None = None
    tell_listed: Callable[[Listed], None] = lambda _: None
    require_allowed: Callable[[Settings, Run], None] = lambda *_: None
    """Raises DecisionRefused for a list of somebody who may not have it sent."""


def due(work: Work[ResendInput]) -> int | None:
    """Requests that may go out now; of a list, those that may."""
    if work.input.listing is None:
        found = count_due(work.control, work.settings, topics_of(work.run.scope))
    else:
        found = sum(listed.sendable for listed in _ask(work, work.input.listing))
    work.record(Counts(due=found))
    return found or None


def request_listed(work: Work[ResendInput]) -> None:
    """Requests the ids of the list, and limits the run to them."""
    if work.input.listing is not None:
        _ask(work, work.input.listing)


def send(work: Work[ResendInput]) -> None:
    """Everything due, by one worker in this process. A person's own login only asks: the duties send."""
    if work.input.listing is not None and not work.run.dry_run and person(work.control) is not None:
        return
    done = run_once(
        work.settings, work.connections, work.run, limit=work.input.limit, tell=work.input.tell
    )
    if work.run.dry_run:
        work.record(done)
    else:
        work.counts += done  # recorded where it was done


def _ask(work: Work[ResendInput], listing: Listing) -> list[Listed]:
    work.input.require_allowed(work.settings, work.run)
    found = ask_for_ids(
        work.settings,
        work.connections,
        work.control,
        work.run,
        listing.topic,
        listing.ids,
        listing.who,
        listing.why,
        listed_in=listing.listed_in,
    )
    for listed in found:
        work.input.tell_listed(listed)
    return found


RESEND = Duty(
    "resend",
    due=due,
    counts_first=False,
    steps=(
        Step("request_listed", request_listed),
        Step("claim_publish_settle", send, goes_on="always"),
        Check("attempts"),
    ),
    people=lambda given, dry_run: dry_run or given.listing is not None,
    instead="Look with --dry-run, or ask for messages by their ids (--id, --ids): the duty resend sends them.",
    unaffected="What was published is settled in its shard or will count as unknown; no request is lost.",
    next_step="Bring it back; the next run recovers and goes on.",
)


def run_duty(
    settings: Settings,
    connections: Connections,
    *,
    scope: str = "*",
    dry_run: bool = False,
    limit: int | None = None,
    dead_after: timedelta = DEAD_AFTER,
    tell: Callable[[Planned], None] = lambda _: None,
    listing: Listing | None = None,
    tell_listed: Callable[[Listed], None] = lambda _: None,
) -> Counts:
    """The whole duty in this process, as `walk_duty`; `scope`: as `runs.scope` names it."""
    given = ResendInput(limit, tell, listing, tell_listed)
    return walk_duty(
        RESEND, settings, connections, given, scope=scope, dry_run=dry_run, dead_after=dead_after
    ).counts


def prepare(worker: Worker) -> Counts:
    """What a run does once before anything is claimed: recovers what was left behind, then moves each batch a step on."""
    return recover(worker) + advance_batches(worker)


@contextmanager
def open_worker(settings: Settings, connections: Connections, run: Run) -> Iterator[Worker]:
    """A worker with a connection and a judge of its own, closed at the end.

    Raises StoreUnavailable when the control database goes away meanwhile.
    """
    with (
        control_answers(RESEND, settings),
        closing(connect(settings, connections)) as control,
        Judge(settings, connections, control) as judge,
    ):
        yield Worker(settings, control, judge, run, only=_only(control, run))


def _only(control: Any, run: Run) -> tuple[str, ...] | None:
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["only_ids"], {"run_id": run.run_id})
        row = cursor.fetchone()
    return None if row is None or row[0] is None else tuple(row[0])


def now(worker: Worker) -> datetime:
    """The control database's instant: what becomes due later belongs to the next run, so that every run
    ends."""
    return worker.instant()


def drain_requests(
    worker: Worker, cut: datetime, *, limit: int | None = None, first: int = 0
) -> Counts:
    """Round after round of what was due at `cut`, until nothing is left or nothing left can be reached.

    `first` is the number of the topic in a shard to begin with, so that workers side by side begin with different ones. Raises RunLost
    as soon as it is known; then nothing more is published.
    """
    counts, given_up = Counts(), set[TopicShard]()
    left = inf if limit is None else limit
    # How fast the broker takes them is not known yet: a topic's rate, which bounds each claim, says what it should bear.
    at_once = _MOST_AT_ONCE
    while topic_shards := [
        topic_shard for topic_shard in find_due(worker, cut) if topic_shard not in given_up
    ]:
        measure_queue_delays(worker, {topic_shard.topic for topic_shard in topic_shards})
        waiting = deque(
            topic_shards[first % len(topic_shards) :] + topic_shards[: first % len(topic_shards)]
        )
        while waiting:
            if left <= 0:
                return counts
            with without_collector():
                claims = _claim_round(worker, waiting, cut, int(min(at_once, left)))
                number = sum(len(claimed.requests) for claimed in claims)
                counts.add("claimed", number)
                worker.run.phase.advance(counts["claimed"])
                left -= number
                gone, seconds = _send_round(worker, claims, counts)
            given_up |= gone
            waiting = deque(topic_shard for topic_shard in waiting if topic_shard not in gone)
            at_once = _next_round(worker, number, seconds)
    return counts


def _claim_round(
    worker: Worker, waiting: deque[TopicShard], cut: datetime, at_once: int
) -> list[Claimed]:
    """Claims of the first of them, `at_once` requests in all, which are judged together. One without requests is taken from
    `waiting`. Waits until their topics' rates have room for them; when none has, it returns nothing."""
    claims: list[Claimed] = []
    # Of each topic one second's worth at most: what waits to be judged must not go out in one burst.
    rest = {
        topic_shard.topic: max(1, int(worker.policy(topic_shard.topic).rate_limit))
        for topic_shard in waiting
    }
    ask_again = inf
    for topic_shard in list(waiting):
        has_room = True
        while (
            has_room
            and (size := min(worker.settings.resend.batch_size, at_once, rest[topic_shard.topic]))
            > 0
        ):
            claimed = claim_requests(worker, topic_shard, cut, size)
            has_room = bool(claimed.requests) and claimed.not_before <= monotonic()
            at_once -= len(claimed.requests)
            rest[topic_shard.topic] -= len(claimed.requests)
            if claimed.requests:
                claims.append(claimed)
            elif claimed.not_before:
                ask_again = min(ask_again, claimed.not_before)
            else:
                waiting.remove(topic_shard)
    # The rate limit is a matter of time, not of a condition; a second at most, then the pause is read again. The look comes
    # after the wait: what was judged goes out at once.
    until = (
        max(claimed.not_before for claimed in claims) if claims else ask_again if waiting else 0.0
    )
    time.sleep(max(0.0, until - monotonic()))
    return claims


def _send_round(
    worker: Worker, claims: Sequence[Claimed], counts: Counts
) -> tuple[set[TopicShard], float]:
    """Judges the requests of all claims together, then sends each claim; returns which to leave for this run, and the
    seconds that sending took."""
    gone: set[TopicShard] = set()
    if not claims:
        return gone, 0.0
    try:
        looked = look_again(worker, claims)
    except Unavailable as error:
        # Their requests stay claimed until the claims run out.
        for claimed in claims:
            worker.miss(
                f"topic {claimed.topic_shard.topic} in shard {claimed.topic_shard.shard}",
                error.what,
            )
        return {claimed.topic_shard for claimed in claims}, 0.0
    begun = monotonic()
    for claimed in claims:
        if claimed.topic_shard in gone:
            hand_back(worker, claimed, counts, "what its topic and shard need had gone away")
            continue
        try:
            if not send_claimed(worker, claimed, looked, counts):
                gone.add(claimed.topic_shard)
        except Unavailable as error:
            # Its requests stay claimed until the claim runs out; the others need nothing of it.
            worker.miss(
                f"topic {claimed.topic_shard.topic} in shard {claimed.topic_shard.shard}",
                error.what,
            )
            gone.add(claimed.topic_shard)
    return gone, monotonic() - begun


def _next_round(worker: Worker, number: int, seconds: float) -> int:
    """How many requests to claim and judge at once, when sending `number` took so many seconds: as many as go out while the look
    is fresh and the claims last, so that a slow broker does not keep claims waiting."""
    policies = [worker.policy(topic) for topic in worker.settings.topics]
    lasts = min(
        (policy.claim_timeout - policy.max_send_duration).total_seconds() for policy in policies
    )
    fitting = int(number / max(seconds, 0.001) * min(lasts, FRESH_SECONDS) / 2)
    return max(worker.settings.resend.batch_size, min(_MOST_AT_ONCE, fitting))


def plan(
    settings: Settings, connections: Connections, run: Run, *, limit: int | None = None
) -> Iterator[Planned]:
    """What a run would do now with each due request, judged as a claim would; nothing is written anywhere."""
    with open_worker(settings, connections, run) as worker:
        cut, left = now(worker), limit
        for topic_shard in find_due(worker, cut, with_held=True):
            after = 0
            while left is None or left > 0:
                size = (
                    settings.resend.batch_size
                    if left is None
                    else min(settings.resend.batch_size, left)
                )
                requests = read_due_requests(worker, topic_shard, cut, after, size)
                if not requests:
                    break
                after, left = (
                    requests[-1].request_id,
                    None if left is None else left - len(requests),
                )
                decisions, judgement = judge_again(worker, [(topic_shard, requests)])
                worker.miss_all(judgement.unreachable)
                if f"shard {topic_shard.shard}" not in judgement.unreachable:
                    decisions, _ = keep_order(worker, topic_shard, requests, decisions)
                yield from (
                    Planned(request, topic_shard.shard, decisions[request.request_id])
                    for request in requests
                )
        require_all_reachable(worker.missed)


def require_all_reachable(missed: Mapping[str, str]) -> None:
    """Raises Unavailable with what did not answer; the run is then incomplete."""
    if missed:
        raise Unavailable(
            "Not everything answered: "
            + "; ".join(f"{name}: {why}" for name, why in sorted(missed.items())),
            unaffected="What could be sent was sent; the other requests are kept, no send number was used twice.",
            next_step="Bring back what is named; the next run recovers and goes on.",
        )


_NAMES: dict[type[object], str] = {
    Send: "would_send",
    NotNeeded: "would_close",
    Postpone: "would_postpone",
}
