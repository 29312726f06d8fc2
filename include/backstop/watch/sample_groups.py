"""Samples every topic and group: offsets at the broker, and how many stubs and logs were written since the last sample.

The cost does not grow with the history: it reads the broker's offsets, and counts the rows since the last sample.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from backstop.config.settings import Settings
from backstop.evidence.evidence import GroupProgress, QueueReading
from backstop.evidence.read import read_groups
from backstop.evidence.require_servers import record_servers
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.sql.named import load
from backstop.stores.protocol import Recorded
from backstop.watch.rules import USUAL_WINDOWS
from backstop.watch.samples import GroupSample, QueueSample, TopicSample

_SQL = load("backstop.watch", "queries.sql")
_FARTHEST = timedelta(hours=1)
"""After a longer pause of the watch the time between is not counted: the new sample begins again."""


@dataclass(slots=True)
class History:
    """Samples by topic, and by topic and group, oldest first; the newest is this run's."""

    topics: dict[str, list[TopicSample]] = field(default_factory=dict)
    groups: dict[tuple[str, str], list[GroupSample]] = field(default_factory=dict)
    queues: dict[tuple[str, str], list[QueueSample]] = field(default_factory=dict)
    """Of this run only: each tells since when its group has been where it is."""


def lag(settings: Settings) -> timedelta:
    """How long after its time something is counted: its transaction has committed and its send has ended by then."""
    policies = [settings.policy_for(topic) for topic in settings.topics]
    return max(max(p.attempt_timeout, p.longest_transaction) + p.max_clock_skew for p in policies)


def longest_window(settings: Settings) -> timedelta:
    """The longest window over which a rule measures."""
    return max(
        settings.policy_for(t, g).watch_window
        for t in settings.topics
        for g in (None, *settings.groups_of(t))
    )


def read_history(cursor: Any, settings: Settings, as_of: datetime) -> History:
    """Earlier samples, as far back as any rule needs."""
    history = History()
    since = as_of - (USUAL_WINDOWS + 1) * longest_window(settings) - lag(settings)
    cursor.execute(_SQL["topic_looks"], {"since": since, "before": as_of})
    for topic, *values in cursor.fetchall():
        history.topics.setdefault(topic, []).append(TopicSample(*values))
    cursor.execute(_SQL["group_looks"], {"since": since, "before": as_of})
    for topic, group, *values in cursor.fetchall():
        history.groups.setdefault((topic, group), []).append(GroupSample(*values))
    for topic_looks in history.topics.values():
        _forget_before_a_pause(topic_looks, as_of)
    for group_looks in history.groups.values():
        _forget_before_a_pause(group_looks, as_of)
    return history


def _forget_before_a_pause(looks: list[TopicSample] | list[GroupSample], as_of: datetime) -> None:
    """Messages that flowed during a pause of the watch were not counted: nothing may be measured across it."""
    taken = [*(look.taken_at for look in looks), as_of]
    pauses = [n for n, (began, ended) in enumerate(pairwise(taken)) if ended - began > _FARTHEST]
    if pauses:
        del looks[: pauses[-1] + 1]


def take_sample(sources: Sources, cursor: Any, as_of: datetime, history: History) -> None:
    """Adds this run's sample to `history` and stores it, in the caller's transaction.

    Whatever did not answer is in `sources.unreachable`: a topic whose broker did not gets no sample, and one whose store did
    not gets a sample without counts. A group that has ended, or has not begun, is not sampled.
    """
    settings = sources.settings
    looks = read_groups(sources, cursor, as_of, list(settings.topics), to_judge=False)
    record_servers(cursor, looks.servers)
    late = lag(settings)
    until = as_of - late
    recorded: dict[tuple[datetime, datetime], dict[str, Recorded] | None] = {}
    for topic, queues in looks.queues.items():
        earlier = history.topics.setdefault(topic, [])
        known = _known_until(sources, topic, as_of)
        counted_until = until if known is None else known - late
        since = _from(earlier, counted_until)
        counted = None
        if known is not None and not _has_gap(earlier, since):
            if (since, counted_until) not in recorded:
                recorded[since, counted_until] = _recorded(sources, since, counted_until)
            counted = recorded[since, counted_until]
        of_topic = None if counted is None else counted.get(topic, Recorded(0, 0, 0, 0))
        look = TopicSample(
            as_of,
            _life(queues),
            stored=sum(queue.state.next_offset for queue in queues.values()),
            counted_until=since,
            resent=_resent(cursor, earlier[-1].taken_at if earlier else as_of),
        )
        if of_topic is not None:
            look = replace(
                look,
                counted_until=counted_until,
                recorded=of_topic.stubs,
                attempted=of_topic.attempted,
                positioned=of_topic.positioned,
                delayed=of_topic.delayed,
            )
        cursor.execute(_SQL["save_topic"], {"topic": topic, **asdict(look)})
        earlier.append(look)
    logged: dict[tuple[str, datetime], dict[str, int] | None] = {}
    for (topic, group), standing in looks.groups.items():
        queues = looks.queues.get(topic, {})
        owner = settings.groups[group]
        ended = owner.active_until is not None and owner.active_until <= as_of
        begins = owner.active_from is not None and owner.active_from > as_of
        if ended or begins or not queues or set(standing.live) != set(queues):
            continue
        before = history.groups.setdefault((topic, group), [])
        since = _from(before, until)
        if (group, since) not in logged:
            logged[group, since] = _logged(sources, group, since, until)
        of_group = logged[group, since]
        seen = _stand(
            standing,
            queues,
            as_of,
            until if of_group is not None else since,
            None if of_group is None else of_group.get(topic, 0),
        )
        cursor.execute(_SQL["save_group"], {"topic": topic, "group": group, **asdict(seen)})
        before.append(seen)
        history.queues[topic, group] = _queues(cursor, topic, group, standing, queues, as_of)


def sample_shards(sources: Sources, cursor: Any, as_of: datetime) -> None:
    """Keeps since when the oldest due stub of each shard is due."""
    for shard in sources.settings.producers:
        try:
            oldest = sources.shard(shard).oldest_due()
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            continue
        cursor.execute(_SQL["save_shard"], {"shard": shard, "oldest": oldest, "taken_at": as_of})


def forget(cursor: Any, settings: Settings, as_of: datetime) -> None:
    """Deletes samples that no rule needs any more, and the watch's own runs of more than a day ago."""
    before = as_of - (USUAL_WINDOWS + 2) * longest_window(settings) - lag(settings)
    cursor.execute(_SQL["forget_topics"], {"before": before})
    cursor.execute(_SQL["forget_groups"], {"before": before})
    cursor.execute(_SQL["forget_queues"], {"before": before})
    cursor.execute(_SQL["forget_runs"], {"before": as_of - timedelta(days=1)})


def _from(earlier: list[TopicSample] | list[GroupSample] | None, until: datetime) -> datetime:
    """Where the next count begins: where the last one ended."""
    if not earlier:
        return until - timedelta(minutes=1)
    return min(max(earlier[-1].counted_until, until - _FARTHEST), until)


def _has_gap(earlier: list[TopicSample], since: datetime) -> bool:
    """Whether stubs that were recorded between the last count and this one are in neither."""
    return bool(earlier) and earlier[-1].recorded is not None and earlier[-1].counted_until < since


def _known_until(sources: Sources, topic: str, as_of: datetime) -> datetime | None:
    """Up to when every shard knows the stubs of the topic; null when one cannot say, or did not answer."""
    earliest = as_of
    for shard in sources.settings.producers:
        try:
            known = sources.shard(shard).known_until(topic, as_of)
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            return None
        if known is None:
            return None
        earliest = min(earliest, known)
    return earliest


def _recorded(sources: Sources, since: datetime, until: datetime) -> dict[str, Recorded] | None:
    """By topic, over every shard; null when one did not answer, for it may hold what the others lack."""
    total: dict[str, Recorded] = {}
    if since >= until:
        return total
    complete = True
    for shard in sources.settings.producers:
        try:
            for topic, more in sources.shard(shard).recorded_between(since, until).items():
                so_far = total.get(topic, Recorded(0, 0, 0, 0))
                total[topic] = Recorded(
                    so_far.stubs + more.stubs,
                    so_far.attempted + more.attempted,
                    so_far.positioned + more.positioned,
                    so_far.delayed + more.delayed,
                )
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            complete = False
    return total if complete else None


def _logged(
    sources: Sources, group: str, since: datetime, until: datetime
) -> dict[str, int] | None:
    if not sources.settings.dates_receipts(group):
        return None  # nobody can count them: that is not none
    try:
        return sources.logs_of(group).count_received(group, since, until)
    except Unavailable as error:
        sources.missed(f"store {sources.settings.groups[group].store}", error)
        return None


def _resent(cursor: Any, since: datetime) -> int | None:
    cursor.execute(_SQL["resent"], {"since": since})
    (number,) = cursor.fetchone()
    return None if number is None else int(number)


def _stand(
    standing: GroupProgress,
    queues: dict[int, QueueReading],
    as_of: datetime,
    until: datetime,
    logged: int | None,
) -> GroupSample:
    waiting, expired, age = 0, 0, 0.0
    for queue_id, queue in queues.items():
        progress = standing.live[queue_id]
        behind = max(0, queue.state.next_offset - progress.next_offset)
        waiting += behind
        expired += max(0, (queue.state.first_offset or 0) - progress.next_offset) if behind else 0
        if behind:
            age = max(age, (as_of - progress.passed_until).total_seconds())
    passed = sum(progress.next_offset for progress in standing.live.values())
    return GroupSample(as_of, _life(queues), passed, waiting, expired, age, until, logged)


def _queues(
    cursor: Any,
    topic: str,
    group: str,
    standing: GroupProgress,
    queues: dict[int, QueueReading],
    as_of: datetime,
) -> list[QueueSample]:
    """Where the group is in each queue, beside what earlier samples stored about it."""
    numbers = sorted(queues)
    cursor.execute(
        _SQL["save_queues"],
        {
            "topic": topic,
            "group": group,
            "taken_at": as_of,
            "paused": as_of - _FARTHEST,
            "queues": numbers,
            "epochs": [queues[n].epoch for n in numbers],
            "passed": [standing.live[n].next_offset for n in numbers],
            "stored": [queues[n].state.next_offset for n in numbers],
        },
    )
    kept = {row[0]: row[1:] for row in cursor.fetchall()}
    found = []
    for number in numbers:
        since, stored_then, moved, logged = kept[number]
        place, stored = standing.live[number], queues[number].state.next_offset
        age = (as_of - place.passed_until).total_seconds() if stored > place.next_offset else 0.0
        found.append(
            QueueSample(
                number,
                queues[number].epoch,
                place.next_offset,
                stored,
                since,
                stored - stored_then,
                moved,
                age,
                logged,
            )
        )
    return found


def _life(queues: dict[int, QueueReading]) -> str:
    return ",".join(f"{queue_id}:{queue.epoch}" for queue_id, queue in sorted(queues.items()))
