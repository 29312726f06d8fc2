"""Empties the brokers' dead-letter queues into the control database: store, commit, then acknowledge.

A letter is in the broker or in the database at every instant, and perhaps in both; killed anywhere, the next drain stores it
once. The next page is read while this one is stored; a reader is used by one thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg2
from psycopg2 import errors as pg

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import LETTERS_IN_HAND, Broker, DeadLetterReader
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.require_servers import require_servers, topics_seen
from backstop.model.errors import BrokerUnavailable, RunError, Unavailable
from backstop.model.records import Counts
from backstop.runs.run import Run, add_counts, hold
from backstop.runs.scope import topics_of
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.triage.drain.guard_reader import guard_reader, kind_and_place
from backstop.triage.drain.list_queues import list_queues
from backstop.triage.drain.quota import Queue, Quota, read_quota, tell_quota
from backstop.triage.drain.storable import QUEUE_BYTES
from backstop.triage.drain.store_page import Page, Place, ReadPage, store_page

_SQL = load("backstop.triage.drain", "drain.sql")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one queue in one run: a queue that others fill forever does not hold the run forever. The next run goes on."""

    letters: int = 5_000_000
    longest: timedelta = timedelta(minutes=30)
    page: int = 2_000
    """Letters of one transaction; fewer where they are large."""


_BOUNDS = Bounds()
_ENDS_THE_DRAIN = (RunError, psycopg2.OperationalError, psycopg2.InterfaceError)
"""The run is not ours any more, or the control database went away: nothing can be stored in any queue."""
_PASSED_OVER = LETTERS_IN_HAND // 2
_PASSED_OVER_BYTES = 64 * 2**20
"""Dead letters that do not fit and are passed over in a queue, for those behind them of groups that have space; a reader holds
them until it ends."""


@dataclass(slots=True)
class Drained:
    """What was done so far; `missed` names what was not done, and why."""

    counts: Counts = field(default_factory=Counts)
    missed: dict[str, str] = field(default_factory=dict)

    def require_reachable(self) -> None:
        """Raises Unavailable with what was missed."""
        if self.missed:
            raise BrokerUnavailable(
                "Some dead-letter queues could not be emptied: "
                + "; ".join(f"{name}: {why}" for name, why in sorted(self.missed.items())),
                unaffected="Stored dead letters stay; the others are with their broker, and nothing was decided about them.",
                next_step="Fix the queues listed above; the next drain resumes.",
            )


def drain_all(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    *,
    brokers: Mapping[str, Broker] | None = None,
    bounds: Bounds = _BOUNDS,
) -> Counts:
    """Empties every dead-letter queue of the groups of the run's topics; a dry run counts them and takes nothing.

    `brokers`: those that are open already, by name. Raises Unavailable, after all else was done, when something did not
    answer; RunLost when the run is not ours any more. What is counted is added to the run's own counts, also then.
    """
    drained, topics = Drained(), topics_of(run.scope)
    groups = groups_of(settings, topics)
    with control, control.cursor() as cursor:
        quota = read_quota(cursor, settings)
    with ExitStack() as stack:
        for name in settings.brokers if groups else ():
            try:
                broker = (brokers or {}).get(name)
                if broker is None:
                    opened: Broker = guard_reader(open_broker, settings, connections, name)
                    broker = stack.enter_context(opened)
                _require_servers(settings, control, broker, name, topics)
                listed = list_queues(broker, groups)
                for group, why in listed.missed.items():
                    drained.missed[f"broker {name}, group {group}"] = why
                if run.dry_run:
                    there = [group for group in groups if group not in listed.missed]
                    drained.counts.add("read", guard_reader(_count, broker, there))
                    continue
            except Unavailable as error:
                drained.missed[f"broker {name}"] = error.what
                continue
            for queue in listed.queues:
                subject = f"broker {name}, {queue}"
                if len(queue.encode(errors="replace")) > QUEUE_BYTES:
                    drained.missed[subject] = (
                        f"its name is longer than {QUEUE_BYTES} bytes; it must be emptied by hand"
                    )
                    continue
                try:
                    _drain_queue(
                        control, run, broker, name, queue, settings, bounds, quota, drained
                    )
                except pg.LockNotAvailable:
                    drained.missed[subject] = "another drain has held it for too long"
                except _ENDS_THE_DRAIN:
                    raise
                except Unavailable as error:
                    drained.missed[subject] = error.what
                except Exception as error:  # noqa: BLE001 - whatever it is, it is of this queue alone
                    drained.missed[subject] = (
                        f"Its dead letters cannot be stored: {kind_and_place(error)}."
                    )
    if not run.dry_run:
        drained.counts += tell_quota(control, run, settings, quota)
        add_counts(control, run, drained.counts)
    drained.require_reachable()
    return drained.counts


def _require_servers(
    settings: Settings, control: Any, broker: Broker, name: str, topics: Sequence[str] | None
) -> None:
    """With fewer servers than were ever seen, dead letters would be missing, and the place that the others came from could be
    that of another message. So also for topics that have left this broker."""
    kind = settings.brokers[name].kind
    with control, control.cursor() as cursor:
        seen = topics_seen(cursor, name, kind)
    for topic, its in settings.topics.items():
        if (its.broker == name or topic in seen) and (topics is None or topic in topics):
            servers = guard_reader(broker.servers, topic)
            with control, control.cursor() as cursor:
                require_servers(cursor, name, kind, topic, servers)


def groups_of(settings: Settings, topics: Sequence[str] | None) -> list[str]:
    """The groups of these topics; of all topics (null): every group, also one that takes none now. Any broker may have dead letters
    of each: a topic leaves them behind when it moves to another."""
    if topics is None:
        return list(settings.groups)
    return list(dict.fromkeys(group for topic in topics for group in settings.groups_of(topic)))


def _count(broker: Broker, groups: Sequence[str]) -> int:
    return sum(1 for group in groups for _ in broker.dead_letters(group))


def _drain_queue(
    control: Any,
    run: Run,
    broker: Broker,
    name: str,
    queue: str,
    settings: Settings,
    bounds: Bounds,
    quota: Quota,
    drained: Drained,
) -> None:
    began, look = _begin(control, name, queue)
    place = Place(name, queue, began, settings.dead_letters.aside_bytes)
    until = time.monotonic() + bounds.longest.total_seconds()
    drained.counts.add("queues")
    missed = len(drained.missed)
    read, first_batch, at_the_end, left, beyond, beyond_bytes = 0, None, False, 0, 0, 0
    with ThreadPoolExecutor(1, thread_name_prefix="dead letters") as thread:
        reader = thread.submit(guard_reader, broker.open_dead_letters, place.queue).result()
        reading = _Reading(thread, reader, place.aside_bytes)
        try:
            ahead = reading.read(bounds.page)
            while read < bounds.letters and time.monotonic() < until:
                page_read = ahead.result()
                letters = page_read.given
                if not letters:
                    at_the_end = True
                    break
                ahead = reading.read(bounds.page)
                fitting = quota.fitting(letters, Queue(name, queue))
                if len(fitting) < len(letters):
                    beyond += len(letters) - len(fitting)
                    beyond_bytes += sum(len(one.content) for one in letters) - sum(
                        len(one.content) for one in fitting
                    )
                    page_read = ReadPage.of(fitting, place.aside_bytes)
                for page in _store(
                    control, run, place, page_read, reading.forgotten(), first_batch, look, drained
                ):
                    first_batch, look = first_batch or page.batch_id, page.looked
                    drained.counts += page.counts
                    left += page.counts.get("left", 0)
                    reading.acknowledge(page)
                read += len(letters)
                run.phase.advance(drained.counts.get("stored", 0))
                if beyond >= _PASSED_OVER or beyond_bytes >= _PASSED_OVER_BYTES:
                    break  # the rest is full of what does not fit; the next run looks again
            reading.wait()
            # A letter that could not be stored, or not be told from a stored one, is still there: the queue is not drained.
            whole = at_the_end and not left and not beyond and len(drained.missed) == missed
            _finish(control, run, place, reading.forgotten(), whole)
        except _ENDS_THE_DRAIN:
            raise
        except Exception:
            wait([future for _, future in reading.under_way])
            # What the broker has forgotten, it has: only what follows is missed.
            _finish(control, run, place, reading.forgotten(), False)
            raise
        finally:
            if beyond:
                drained.counts.add("beyond_quota", beyond)
                if not at_the_end:
                    quota.unread.add(Queue(name, queue))
            if reading.letters:
                drained.counts.add("acknowledged", reading.letters)
            thread.submit(guard_reader, reading.reader.close).result()
    if not at_the_end:
        drained.counts.add("queues_cut_short")


@dataclass(slots=True)
class _Reading:
    """One queue's reader, on the one thread that may use it: calls run one after the other, as they were asked for."""

    thread: ThreadPoolExecutor
    reader: DeadLetterReader
    aside_bytes: int
    letters: int = 0
    """That the broker has forgotten."""
    under_way: list[tuple[Page, Future[None]]] = field(default_factory=list)

    def read(self, limit: int) -> Future[ReadPage]:
        """The next page with its rows, which are written here while the caller waits for the database."""
        return self.thread.submit(guard_reader, self._read, limit)

    def _read(self, limit: int) -> ReadPage:
        return ReadPage.of(self.reader.read(limit), self.aside_bytes)

    def acknowledge(self, page: Page) -> None:
        self.under_way.append(
            (page, self.thread.submit(guard_reader, self.reader.acknowledge, page.taken))
        )

    def forgotten(self) -> list[int]:
        """The pages that the broker has forgotten since this was asked last."""
        done, still = [], []
        for page, future in self.under_way:
            if future.done() and future.exception() is None:
                done.append(page.batch_id)
                self.letters += len(page.taken)
            else:
                still.append((page, future))
        self.under_way = still
        return done

    def wait(self) -> None:
        """Until every page is acknowledged; raises what an acknowledgement raised."""
        for _, future in self.under_way:
            future.result()


def _store(
    control: Any,
    run: Run,
    place: Place,
    read: ReadPage,
    forgotten: Sequence[int],
    first_batch: int | None,
    look: bool,
    drained: Drained,
) -> Iterator[Page]:
    """The pages in which these letters are stored: one, unless one of them is a letter that no database can hold, or there are
    none."""
    letters = read.given
    if not letters:
        _finish(control, run, place, forgotten, False)
        return
    try:
        yield store_page(control, run, place, read, forgotten, first_batch, look)
    except (psycopg2.DataError, pg.ProgramLimitExceeded, pg.UniqueViolation) as error:
        # The key: the number that a second letter of one id gets may be another letter's own id; a letter alone finds that.
        if len(letters) == 1:
            name = f"broker {place.broker}, {place.queue}, {letters[0].broker_id}"
            drained.missed[name] = (
                f"it cannot be stored and stays there: {str(error).splitlines()[0]}"
            )
            # The page that was to mark them is none.
            _finish(control, run, place, forgotten, False)
            return
        half = len(letters) // 2
        for some, done in ((read.part(0, half), forgotten), (read.part(half, len(letters)), ())):
            for page in _store(control, run, place, some, done, first_batch, look, drained):
                first_batch, look = first_batch or page.batch_id, page.looked
                yield page


def _finish(
    control: Any, run: Run, place: Place, forgotten: Sequence[int], at_the_end: bool
) -> None:
    """Marks the last pages and, at the end of the queue, up to when it is drained; commits."""
    if not forgotten and not at_the_end:
        return
    where = {
        "broker": place.broker,
        "queue": place.queue,
        "began": place.began,
        "run_id": run.run_id,
    }
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["mark_acknowledged"], {"batches": array_literal(list(forgotten))})
        if at_the_end:
            cursor.execute(_SQL["mark_earlier"], where)
            cursor.execute(_SQL["mark_drained"], where)


def _begin(control: Any, broker: str, queue: str) -> tuple[datetime, bool]:
    """Now, and whether pages of the queue are stored of which nobody knows if the broker has forgotten them."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["begin"], {"broker": broker, "queue": queue})
        return cursor.fetchone()  # type: ignore[no-any-return]
