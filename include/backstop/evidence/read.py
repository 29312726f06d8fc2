"""Reads the evidence that is not a row of a stub or a log from brokers and stores, in the order that makes it safe.

Progress is read before the queues' offsets, and both before any log; the dead letters last (`read_after_logs`, which the
caller calls after the logs). Whatever arrives in between can only turn a verdict towards waiting or CONFIRMED.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from backstop.brokers.protocol import (
    Broker,
    Delayer,
    GroupPosition,
    ProgressMeans,
    QueueState,
    Retries,
)
from backstop.evidence.evidence import (
    DeadLetters,
    DelayReading,
    GroupProgress,
    QueueReading,
    Readings,
)
from backstop.evidence.read_retries import (
    log_until,
    read_retries,
    read_retries_together,
    settle_grace,
)
from backstop.evidence.require_possible import (
    require_possible_positions,
    require_possible_queues,
)
from backstop.evidence.require_servers import require_servers
from backstop.evidence.settle import Progress, cut, present_epoch, settle
from backstop.evidence.sources import HasClock, Sources, answers
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import LATEST
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.stores.protocol import Life

_SQL = load("backstop.evidence", "queries.sql")
_PAGE = 10_000
_NO_OFFSET = -1
"""The next offset of a queue that is gone: below every other, so that what comes after is another life."""


class Clocks:
    """Compares other servers' clocks with the control database's, from which `as_of` comes."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def within(self, other: HasClock, allowed: timedelta) -> bool:
        """Is the other clock certainly within `allowed`? The time of the question counts against it."""
        best: timedelta | None = None
        for _ in range(3):
            before = self._control()
            theirs = other.clock()
            after = self._control()
            # Theirs was read somewhere between the two: the farther end is the honest bound.
            bound = max(abs(theirs - before), abs(after - theirs))
            best = bound if best is None else min(best, bound)
            if best <= allowed:
                return True
        return False

    def _control(self) -> datetime:
        self._cursor.execute(_SQL["control_clock"])
        return self._cursor.fetchone()[0]  # type: ignore[no-any-return]


def read_groups(
    sources: Sources,
    cursor: Any,
    as_of: datetime,
    topics: Iterable[str],
    went_to: Iterable[tuple[str, str]] = (),
    *,
    to_judge: bool = True,
) -> Readings:
    """Clocks, progress, then offsets and retry depth of these topics; call it after the stubs and attempts were read.

    `went_to`: (topic, broker) of the copies, which are judged by their own broker as long as that one is configured. A broker or
    store that does not answer leaves its part unknown (and `sources.unreachable` says so). What is unread of one group is unknown
    of that group alone. `to_judge`: else how far the groups are is all that is wanted, and what waits in retries is not read.
    """
    settings = sources.settings
    readings = Readings(as_of, to_judge)
    cursor.execute(_SQL["drained"], {"topics": sorted(topics)})
    readings.drained.update(cursor.fetchall())
    _read_topics(
        readings,
        sources,
        cursor,
        {topic: settings.topics[topic].broker for topic in sorted(topics)},
    )
    elsewhere: dict[str, dict[str, str]] = {}
    for topic, name in sorted(set(went_to)):
        if topic not in settings.topics or name == settings.topics[topic].broker:
            continue
        if name in settings.brokers:
            elsewhere.setdefault(name, {})[topic] = name
        else:
            readings.removed.add((topic, name))
    for there in elsewhere.values():
        readings.others.append(Readings(as_of, to_judge, away=readings.away))
        _read_topics(readings.others[-1], sources, cursor, there)
    return readings


def _read_topics(
    readings: Readings, sources: Sources, cursor: Any, brokers: Mapping[str, str]
) -> None:
    """The look at each topic at one broker; `brokers`: by topic. Where copies of open messages lie is asked once for all topics,
    because that reads everything that is open."""
    clocks = Clocks(cursor)
    readings.brokers.update(brokers)
    queued: dict[str, _Queued] = {}
    for topic, name in brokers.items():
        settings = sources.settings.topics[topic]
        for group in settings.groups:
            readings.groups[topic, group] = GroupProgress(topic, group, name)
        if f"broker {name}" in readings.away:
            continue
        try:
            queued[topic] = _read_queues(readings, sources, cursor, topic, name)
        except Unavailable as error:
            _miss_broker(readings, sources, name, error)
    first = _first_lives(sources, brokers, queued, readings.drained)
    retries = (
        read_retries_together(
            sources,
            cursor,
            readings.as_of,
            brokers,
            {topic: list(there.live) for topic, there in queued.items()},
        )
        if readings.to_judge
        else {}
    )
    for topic, there in queued.items():
        name = brokers[topic]
        if f"broker {name}" in readings.away:
            continue
        try:
            _read_topic(
                readings,
                sources,
                clocks,
                cursor,
                topic,
                name,
                there,
                first.get(topic, {}),
                retries,
            )
        except Unavailable as error:
            _miss_broker(readings, sources, name, error)
    _compare_log_clocks(readings, sources, clocks)


@dataclass(frozen=True, slots=True)
class _Queued:
    """A topic's progress and then its queues, as they were read."""

    live: Mapping[str, dict[int, GroupPosition]]
    """By group."""
    unread: dict[str, Unavailable]
    """By group: why its progress was not read."""
    states: Sequence[QueueState]
    stored: Mapping[int, Sequence[Any]]
    """By queue, from earlier looks: epoch, whether that is accepted, next offset, and when it was read."""

    def unseen(self) -> dict[int, str]:
        """The epoch of each queue that no look has met before."""
        return {
            state.queue_id: state.epoch
            for state in self.states
            if state.queue_id not in self.stored
        }


def _read_queues(
    readings: Readings, sources: Sources, cursor: Any, topic: str, name: str
) -> _Queued:
    """Progress, then the queues; what a broker does not say of one group is noted as that group's."""
    broker = sources.broker(name)
    kind = sources.settings.brokers[name].kind
    readings.servers[name, kind, topic] = broker.servers(topic)
    require_servers(cursor, name, kind, topic, readings.servers[name, kind, topic])
    live: dict[str, dict[int, GroupPosition]] = {}
    unread: dict[str, Unavailable] = {}
    for group in sources.settings.topics[topic].groups:
        try:
            live[group] = _position(broker, sources, topic, group)
        except Unavailable as error:
            broker.clock()  # raises when the broker itself is away: each further question would wait for its time-out
            unread[group] = error
    cursor.execute(_SQL["present_epochs"], {"broker": name, "topic": topic})
    stored = {row[0]: row[1:] for row in cursor.fetchall()}
    states = require_possible_queues(f"topic {topic}", broker.queues(topic))
    return _Queued(live, unread, states, stored)


def _read_topic(
    readings: Readings,
    sources: Sources,
    clocks: Clocks,
    cursor: Any,
    topic: str,
    name: str,
    there: _Queued,
    first: Mapping[int, bool],
    retries: Mapping[tuple[str, str], Retries],
) -> None:
    """What comes after progress and queues: retry depth, where it is not in `retries`, and delays. What a broker does not say of
    one group is noted as that group's."""
    broker = sources.broker(name)
    queues, gone = _as_read(there, readings.as_of, first)
    retry: dict[str, Retries] = {}
    unread = there.unread
    for group in there.live:
        try:
            if not readings.to_judge:
                retry[group] = Retries(0, None, {})
            elif (topic, group) in retries:
                retry[group] = retries[topic, group]
            else:
                retry[group] = read_retries(
                    broker, sources, cursor, readings.as_of, name, topic, group
                )
        except Unavailable as error:
            broker.clock()  # as in _read_queues
            unread[group] = error
    if readings.to_judge:
        _read_delays(readings, broker, cursor, topic, name)
    broker_clock = clocks.within(broker, sources.settings.policy_for(topic).max_clock_skew)
    readings.queues[topic], readings.gone[topic] = queues, gone
    for group in retry:
        seen = retry[group]
        look = replace(
            readings.groups[topic, group],
            progress_read=True,
            retry_pending=seen.count,
            waiting=seen.ids,
            retry_places=seen.places,
        )
        try:
            look = _with_progress(
                readings,
                look,
                broker,
                sources,
                cursor,
                queues,
                there.live[group],
                seen.but_for_them,
            )
        except Unavailable as error:
            broker.clock()  # as in _read_queues
            unread[group] = error
            continue
        readings.groups[topic, group] = replace(look, clock_good=broker_clock)
    for group, failure in unread.items():
        # The broker answered for the topic: it is this group that it does not know, or cannot report on.
        subject = f"group {group} of topic {topic} in broker {name}"
        readings.unread.add((topic, group, subject))
        sources.missed(subject, failure)
        readings.groups[topic, group] = replace(
            readings.groups[topic, group], clock_good=broker_clock
        )


def _read_delays(readings: Readings, broker: Broker, cursor: Any, topic: str, name: str) -> None:
    """Which looks found the topic's delay storage emptied up to when: earlier ones as they were recorded, and this one."""
    if not broker.capabilities.delays_messages:
        readings.delays[topic] = None
        return
    cursor.execute(_SQL["delay_looks"], {"broker": name, "topic": topic})
    readings.delays[topic] = [DelayReading(*row) for row in cursor.fetchall()]
    delivered_until = cast(Delayer, broker).delivered_until(topic)
    cursor.execute(_SQL["control_clock"])
    readings.delivered[topic] = DelayReading(cursor.fetchone()[0], delivered_until)


def _position(broker: Broker, sources: Sources, topic: str, group: str) -> dict[int, GroupPosition]:
    if sources.settings.groups[group].progress == "logged":
        return {}  # derived from the logs, after the queues are known
    positions = require_possible_positions(
        f"group {group} of topic {topic}", broker.progress(topic, group)
    )
    return {position.queue_id: position for position in positions}


def _as_read(
    there: _Queued, as_of: datetime, first: Mapping[int, bool]
) -> tuple[dict[int, QueueReading], dict[int, QueueReading]]:
    """The queues that there are, and those of earlier looks that are gone. `first`: of those that no look has met before, whether
    this may be taken for their first life."""
    queues: dict[int, QueueReading] = {}
    for state in there.states:
        unseen = (None, first.get(state.queue_id, False), None, None)
        epoch, accepted, next_offset, read_at = there.stored.get(state.queue_id, unseen)
        label, same = present_epoch(state.epoch, state.next_offset, epoch, next_offset)
        # A later life needs a person's consent.
        queues[state.queue_id] = (
            QueueReading(state, label, bool(accepted), next_offset, read_at)
            if same
            else QueueReading(state, label, False, None, None)
        )
    gone: dict[int, QueueReading] = {}
    for queue_id in set(there.stored) - set(queues):
        epoch, accepted, next_offset, read_at = there.stored[queue_id]
        label, same = present_epoch(epoch.partition("~")[0], _NO_OFFSET, epoch, next_offset)
        state = QueueState(queue_id, epoch, None, _NO_OFFSET, as_of)
        gone[queue_id] = QueueReading(state, label, accepted and same, None, None)
    return queues, gone


def _first_lives(
    sources: Sources,
    brokers: Mapping[str, str],
    queued: Mapping[str, _Queued],
    drained: Collection[tuple[str, str]],
) -> dict[str, dict[int, bool]]:
    """By topic, which queues that were never seen before may be taken for the first life of theirs: those of which no open message
    has a copy in another life or at another broker. Perhaps the topic moved, or the control database is new. A shard
    that does not answer may have such a message."""
    seen = {topic: unseen for topic, there in queued.items() if (unseen := there.unseen())}
    if not seen:
        return {}

    def ask(shard: str) -> Mapping[str, Collection[Life]] | None:
        try:
            return sources.shard(shard).lives(list(seen))
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            return None

    # Side by side: each reads all that is open in it.
    with ThreadPoolExecutor(max_workers=max(1, len(sources.settings.producers))) as threads:
        answers = list(threads.map(ask, sources.settings.producers))
    known: dict[str, set[Life]] = {topic: set() for topic in seen}
    for answer in answers:
        if answer is None:
            return {topic: dict.fromkeys(unseen, False) for topic, unseen in seen.items()}
        for topic, lives in answer.items():
            known[topic] |= {life for life in lives if (topic, life.broker) not in drained}
    return {
        topic: _first_lives_of(sources, brokers[topic], unseen, known[topic])
        for topic, unseen in seen.items()
    }


def _first_lives_of(
    sources: Sources, name: str, seen: Mapping[int, str], known: Collection[Life]
) -> dict[int, bool]:
    # Of a copy that was not acknowledged only the broker is known: it may be in any of that one's queues.
    if any(life.queue_id is None and life.broker not in (None, name) for life in known):
        return dict.fromkeys(seen, False)
    other = {
        queue_id
        for broker, queue_id, epoch in known
        if queue_id is not None
        and (
            epoch not in (None, seen.get(queue_id))
            or (broker is not None and broker not in sources.settings.brokers)
        )
    }
    return {queue_id: queue_id not in other for queue_id in seen}


def _with_progress(
    readings: Readings,
    look: GroupProgress,
    broker: Broker,
    sources: Sources,
    cursor: Any,
    queues: Mapping[int, QueueReading],
    positions: Mapping[int, GroupPosition],
    but_for_waiting: Sequence[GroupPosition] | None,
) -> GroupProgress:
    as_of = readings.as_of
    where = {"group": look.group, "broker": look.broker, "topic": look.topic}
    policy = sources.settings.policy_for(look.topic, look.group)
    declared = ProgressMeans(sources.settings.groups[look.group].progress)
    if declared is ProgressMeans.LOGGED:
        live = _logged(readings, look, broker, sources, cursor, queues)
    else:
        live = _in_present_life(positions.values(), queues)
    grace = settle_grace(broker, sources, look.topic, look.group)
    cursor.execute(_SQL["control_clock"])
    read_at: datetime = cursor.fetchone()[0]
    # What waits in a retry queue is passed in the topic's own. Where it is known by id, it holds back nothing but itself; else
    # it holds back what is settled until that queue is empty.
    unlisted = look.retry_pending or 0 if look.waiting is None else 0
    log_ends = log_until(sources, as_of, look.group, to_judge=readings.to_judge)
    if log_ends is not None:
        look = replace(look, log_until=log_ends)
        # What waited then and does not wait now may have been done since: the queue must have been empty by then.
        unlisted = 1 if look.waiting is None else 0
    if grace == timedelta(0) and not unlisted and log_ends is None:
        settled = live if but_for_waiting is None else _in_present_life(but_for_waiting, queues)
    else:
        by = None if log_ends is None else log_ends - grace
        cursor.execute(_SQL["retry_last_empty"], {**where, "until": by})
        until = cut(log_ends or as_of, grace, unlisted, cursor.fetchone()[0])
        cursor.execute(_SQL["settled_progress"], {**where, "until": until})
        settled = settle(live, {row[0]: Progress(*row[1:]) for row in cursor.fetchall()})
    cursor.execute(_SQL["rate_since"], {**where, "since": as_of - policy.queue_delay_cap})
    rates: dict[int, float] = {}
    for queue_id, epoch, offset, at in cursor.fetchall():
        now = live.get(queue_id)
        seconds = (read_at - at).total_seconds()
        if now is not None and now.epoch == epoch and seconds > 0 and now.next_offset > offset:
            rates[queue_id] = (now.next_offset - offset) / seconds
    return replace(look, read_at=read_at, live=live, settled=settled, rates=rates)


def _in_present_life(
    positions: Iterable[GroupPosition], queues: Mapping[int, QueueReading]
) -> dict[int, Progress]:
    return {
        position.queue_id: Progress(
            queues[position.queue_id].epoch, position.next_offset, position.passed_until
        )
        for position in positions
        if position.queue_id in queues
        and queues[position.queue_id].epoch.partition("~")[0] == position.epoch
    }


def _logged(
    readings: Readings,
    look: GroupProgress,
    broker: Broker,
    sources: Sources,
    cursor: Any,
    queues: Mapping[int, QueueReading],
) -> dict[int, Progress]:
    """The highest logged offset plus one, kept as a maximum for each epoch."""
    # Logs of two lives carry one epoch where it has a number here: their maximum says nothing.
    ends = {
        (queue_id, queue.epoch): queue.state.next_offset
        for queue_id, queue in queues.items()
        if "~" not in queue.epoch
    }
    if f"store {sources.settings.groups[look.group].store}" in readings.away:
        return {}
    try:
        logged = sources.logs_of(look.group).highest_logged(look.group, look.topic, ends)
    except Unavailable as error:
        _miss_store(readings, sources, look.group, error)
        return {}
    cursor.execute(
        _SQL["stored_progress"], {"group": look.group, "broker": look.broker, "topic": look.topic}
    )
    stored = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
    offsets: dict[int, int] = {}
    for (queue_id, epoch), end in ends.items():
        logged_to = max(0, stored.get((queue_id, epoch), 0), logged.get((queue_id, epoch), -1) + 1)
        # Nobody has passed what was not stored yet.
        offsets[queue_id] = min(logged_to, end)
    times = broker.passed_until(look.topic, offsets)
    return {q: Progress(queues[q].epoch, offset, times[q]) for q, offset in offsets.items()}


def _compare_log_clocks(readings: Readings, sources: Sources, clocks: Clocks) -> None:
    good: dict[tuple[str, timedelta], bool] = {}
    for (topic, group), look in readings.groups.items():
        store = sources.settings.groups[group].store
        allowed = sources.settings.policy_for(topic, group).max_clock_skew
        if (store, allowed) not in good and f"store {store}" not in readings.away:
            try:
                good[store, allowed] = clocks.within(sources.logs_of(group), allowed)
            except StoreFailed as error:
                sources.missed(f"store {store}", error)
            except Unavailable as error:
                sources.missed(f"store {store}", error)
                readings.away.add(f"store {store}")
        is_good = look.clock_good and good.get((store, allowed), False)
        readings.groups[topic, group] = replace(look, clock_good=is_good)


def _miss_broker(readings: Readings, sources: Sources, name: str, error: Unavailable) -> None:
    sources.missed(f"broker {name}", error)
    _find_away(readings, sources, name)


def _find_away(readings: Readings, sources: Sources, name: str) -> bool:
    """Whether the broker, which failed one question, answers none; it is asked no more then."""
    is_away = not answers(partial(sources.broker, name))
    if is_away:
        readings.away.add(f"broker {name}")
    return is_away


def _miss_store(readings: Readings, sources: Sources, group: str, error: Unavailable) -> None:
    """Notes the error of the group's store, which is asked no more where it does not answer at all."""
    subject = f"store {sources.settings.groups[group].store}"
    sources.missed(subject, error)
    if not answers(partial(sources.logs_of, group)):
        readings.away.add(subject)


def read_shard_clocks(
    readings: Readings,
    sources: Sources,
    cursor: Any,
    shards: Iterable[str],
    without_attempts: Collection[str] = (),
) -> None:
    """Adds each shard's clock. `without_attempts`: those whose stubs were read and whose attempts were not."""
    clocks = Clocks(cursor)
    allowed = min(
        sources.settings.policy_for(topic).max_clock_skew for topic in sources.settings.topics
    )
    for shard in shards:
        try:
            is_good = clocks.within(sources.shard(shard), allowed)
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            is_good = False
        readings.shards[shard] = (is_good, shard not in without_attempts)


def read_after_logs(
    readings: Readings, sources: Sources, cursor: Any, ids: Sequence[str] | None = None
) -> None:
    """Each group's log floor, and its dead letters to the end they have now; call it after the logs were read. `ids`: of
    these messages alone, where that is cheaper; null: of all.

    The floor comes last because a purge raises it before it deletes: a log that was gone when we asked for it is then
    below the floor we read. The broker's queue comes before the letters that were drained: the drain stores a letter before
    it takes it from the queue, so that one which moves meanwhile is seen once at least.
    """
    readings.dead = DeadLetters({topic for topic, _ in readings.groups}, ids)
    for one in (readings, *readings.others):
        one.dead = readings.dead
        _read_floors_and_dead_letters(one, sources, ids, readings.shards)
    _read_stored_dead_letters(readings, cursor, ids)
    cursor.execute(
        _SQL["unaddressed_dead_letters"],
        {"topics": sorted({topic for topic, _ in readings.groups})},
    )
    stored = set(cursor.fetchall())
    for one in (readings, *readings.others):
        one.unaddressed |= stored
        _doubt_dead_letters(one, sources)


def _read_floors_and_dead_letters(
    readings: Readings,
    sources: Sources,
    ids: Sequence[str] | None,
    read_shards: Collection[str],
) -> None:
    read: dict[tuple[str, str], bool] = {}
    proven: dict[str, bool] = {}
    readings.unaddressed.clear()
    for (topic, group), look in readings.groups.items():
        name, store = look.broker, sources.settings.groups[group].store
        try:
            if f"store {store}" not in readings.away:
                floor = sources.logs_of(group).floor(group, topic)
                if topic not in proven:
                    proven[topic] = _ids_are_proven(sources, topic, read_shards)
                look = replace(look, log_floor=floor if proven[topic] else LATEST)
        except Unavailable as error:
            _miss_store(readings, sources, group, error)
        if (name, group) not in read:
            read[name, group] = _read_dead_letters(readings, sources, name, group, ids)
        readings.groups[topic, group] = replace(look, dead_letters_read=read[name, group])
    _doubt_dead_letters(readings, sources)


def _ids_are_proven(sources: Sources, topic: str, read_shards: Collection[str]) -> bool:
    """Whether each shard's ids of the topic were ever found in a log: a mistaken mapping would make all of them look lost. A shard
    whose stubs were read and that does not answer proves nothing; of another one nothing is judged."""
    for name in sources.settings.producers:
        try:
            if not sources.shard(name).proves(topic):
                return False
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
            if name in read_shards:
                return False
    return True


def _doubt_dead_letters(readings: Readings, sources: Sources) -> None:
    """Where messages carry their id elsewhere than adapters read it, a dead letter without one may be any message of the topic."""
    for (topic, group), look in readings.groups.items():
        doubtful = any(t in (None, topic) and g in (None, group) for t, g in readings.unaddressed)
        if doubtful and not sources.settings.ids_on_the_wire(topic):
            readings.groups[topic, group] = replace(look, dead_letters_read=False)


def _read_stored_dead_letters(readings: Readings, cursor: Any, ids: Sequence[str] | None) -> None:
    """Letters that were drained and are not decided; one that lost its topic may be of any topic its group takes."""
    values = {
        "topics": sorted({topic for topic, _ in readings.groups}),
        "ids": None if ids is None else array_literal(ids),
    }
    # On the server until they are read, a page at a time.
    with cursor.connection.cursor(name="stored_dead_letters") as rows:
        rows.itersize = _PAGE
        rows.execute(_SQL["stored_dead_letters"], values)
        for topic, message_id, group in rows:
            topics = (
                [topic]
                if topic is not None
                else [t for t, g in readings.groups if group in (None, g)]
            )
            readings.dead.add(dict.fromkeys(topics), message_id, group)


def _read_dead_letters(
    readings: Readings, sources: Sources, broker: str, group: str, ids: Sequence[str] | None
) -> bool:
    if f"broker {broker}" in readings.away:
        return False
    seen, since = None, None
    blind = any(g == group and not sources.settings.ids_on_the_wire(t) for t, g in readings.groups)
    if ids is not None and not blind:
        seen = sources.seen_dead_letters[broker, group]
        since = seen.since(ids)
    try:
        for letter in sources.broker(broker).dead_letters(group, since=since):
            if seen is not None:
                seen.add(letter)
            if letter.message_id is None:
                readings.unaddressed.add((letter.topic, letter.group))
                continue
            # A dead letter that lost its topic may be of any topic the group takes.
            topics = (
                [letter.topic]
                if letter.topic is not None
                else [t for t, g in readings.groups if g == group]
            )
            readings.dead.add(topics, letter.message_id, letter.group)
    except Unavailable as error:
        subject = f"dead letters of group {group} in broker {broker}"
        if _find_away(readings, sources, broker):
            subject = f"broker {broker}"
        else:
            readings.unread.update(
                (topic, of, subject) for topic, of in readings.groups if of == group
            )
        sources.missed(subject, error)
        return False
    return True
