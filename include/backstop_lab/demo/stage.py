"""Everything the demo acts with, in one place: the platform, the processes, the ledger, and ways to look."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

from backstop.config.load import load
from backstop.config.settings import GroupSettings
from backstop.model.errors import ConfigurationError
from backstop.model.private_file import write_private
from backstop_lab.broker_kinds import KINDS
from backstop_lab.faults.brokers.protocol import FaultTools, Make
from backstop_lab.platform import Platform
from backstop_lab.shop.conditions import Conditions
from backstop_lab.shop.databases import change, statements
from backstop_lab.shop.ledger import Key, Ledger
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import (
    ConsumerGroup,
    OrderedGroup,
    ProducerProcess,
    demo_broken,
)

CALLED = ("reconcile", "triage", "sweep", "resend", "watch", "ask_people", "deliver_alerts")
"""The duties that repair, decide and report; a demo starts them when they have something to do (call_for_runs.py)."""
BOOKKEEPING, BOOKINGS = "bookkeeping", "bookings"
"""The group that consumes in order, and its topic; where the broker has queues to own."""
BOOKKEEPERS = 3
ON_MARIADB = (
    "Producers and consumers have their databases there; Backstop's control database is in PostgreSQL.",
    "Left out: behind poison, until answered; consumers restarted in turn. Both are faults of a group that consumes in order,"
    " whose queues and parked keys Backstop keeps in PostgreSQL alone.",
    "A consumer database is away because its owner's login is locked and its connections are ended: MariaDB closes no single"
    " database.",
)
"""What the last page says of the stores there."""
log = logging.getLogger(__name__)


def lease_redis(group: GroupSettings) -> str:
    """The connection of the Redis in front of a group's leases. ConfigurationError when there is none."""
    if group.leases is None:
        raise ConfigurationError(
            "A group of the demo has no Redis in front of its leases.",
            unaffected="Nothing was started.",
            next_step="Give each group `leases: {redis: backstop_leases}` in backstop.yaml.",
        )
    return group.leases.redis


@dataclass(frozen=True)
class RunsWanted:
    """The duties whose runs the story waits for; `at_once`: without waiting for what else they will be needed for."""

    duties: tuple[str, ...] = ()
    at_once: bool = False


class Stage:
    """One demo's processes over a running platform. `folder` gets logs, private files, ledger and places.json.

    `workers`: of each consumer group.
    """

    def __init__(self, platform: Platform, folder: Path, seed: int, *, workers: int = 2) -> None:
        self.platform = platform
        self.settings = load(platform.config)
        self.urls = platform.connections()
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.seconds: dict[str, float] = {}
        self.beside: Callable[[], None] = lambda: None
        """Raises when what goes on beside the story has failed: it would be waited for in vain."""
        self.runs_wanted = RunsWanted()
        self.call_for_runs: Callable[[], None] = lambda: None
        """Starts what is wanted when there is something to do (call_for_runs.py); every wait calls it."""
        self.conditions = Conditions(folder / "conditions")
        self.received = folder / "received"
        """Where the messages of alerts are kept that came (receive_alerts.py)."""
        processes = folder / "processes"
        processes.mkdir(parents=True, exist_ok=True)
        broker = platform.broker.for_duties()
        self.shards = {
            name: self.urls[shard.connection] for name, shard in self.settings.producers.items()
        }
        self.stores = {
            group: self.urls[self.settings.consumers[settings.store].connection]
            for group, settings in self.settings.groups.items()
        }
        self.leases = {
            group: self.urls[lease_redis(settings)]
            for group, settings in self.settings.groups.items()
            if group != BOOKKEEPING
        }
        self.topics = {
            topic: list(self.settings.groups_of(topic)) for topic in self.settings.topics
        }
        self.control = self.urls[self.settings.control]
        [self._broker_name] = self.settings.brokers
        tools = FaultTools(self.ledger, self.shards, self.topics, self.without_effect)
        self.broker_faults = KINDS[platform.broker_kind].open_faults(platform.broker, tools)
        shared = self._shared(seed)
        self.producers = {
            shard: ProducerProcess(
                f"producer-{shard}",
                {**shared, "shard": shard, "database": url, "broker": broker},
                processes,
            )
            for shard, url in self.shards.items()
        }
        consumers_broker = self.broker_faults.consumers_url()
        places = {
            group: {
                **shared,
                "database": url,
                "broker": consumers_broker,
                "conditions": str(self.conditions.folder),
                "topics": list(self.settings.topics_of(group)),
            }
            for group, url in self.stores.items()
        }
        self.groups = {
            group: ConsumerGroup(group, {**places[group], "leases": redis}, processes, workers)
            for group, redis in self.leases.items()
        }
        self.ordered = (
            OrderedGroup(BOOKKEEPING, places[BOOKKEEPING], processes, BOOKKEEPERS)
            if BOOKKEEPING in places
            else None
        )

    def _shared(self, seed: int) -> dict[str, Any]:
        policy = self.settings.policy_for(None)
        named = ("first_check", "attempt_timeout", "max_send_duration", "lease", "retry_after")
        return {
            "seed": seed,
            "ledger": str(self.folder / "ledger"),
            "broker_name": self._broker_name,
            "config": str(self.platform.config),
            "policy": {name: getattr(policy, name).total_seconds() for name in named},
        }

    def make_tables(self) -> None:
        """The shop's own tables; Backstop's are there already."""
        for dsn in self.shards.values():
            change(dsn, statements(dsn)["make_business_order"], ())
        for dsn in self.stores.values():
            change(dsn, statements(dsn)["make_effect"], ())
            change(dsn, statements(dsn)["index_effect"], ())

    def write_places(self) -> Path:
        """Where the checker finds what it compares; mode 0600, because it holds passwords."""
        file = self.folder / "places.json"
        places = {
            "control": self.control,
            "producers": self.shards,
            "groups": self.stores,
            "topics": self.topics,
            "ordered": [BOOKKEEPING] if self.ordered else [],
            "received": str(self.received),
        }
        write_private(file, json.dumps(places))
        return file

    def start(self) -> None:
        for group in self.groups.values():
            group.start()
        if self.ordered:
            self.ordered.start()
        for producer in self.producers.values():
            producer.start()

    def stop(self) -> None:
        for producer in self.producers.values():
            producer.stop()
        for group in self.groups.values():
            group.stop()
        if self.ordered:
            self.ordered.stop()
        self.broker_faults.close()

    def differs(self) -> dict[str, list[str]]:
        """What the last page must say of servers that are not the embedded ones, by their names."""
        found = {self.platform.broker.name: list(self.broker_faults.page)}
        if self.platform.mariadb is not None:
            found[self.platform.mariadb.name] = list(ON_MARIADB)
        return {name: sentences for name, sentences in found.items() if sentences}

    def add_beside(self, check: Callable[[], None]) -> None:
        """One thing more goes on beside the story: `check` raises when it has failed."""
        before = self.beside

        def both() -> None:
            before()
            check()

        self.beside = both

    @contextmanager
    def timed(self, phase: str, waits_for: str) -> Iterator[None]:
        """Counts the phase's seconds; one line says that it begins, and what it waits for."""
        log.info("%s: waiting for %s", phase, waits_for)
        started = monotonic()
        yield
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + monotonic() - started, 1)

    @contextmanager
    def wants_runs(self, *duties: str, at_once: bool = False) -> Iterator[None]:
        """Meanwhile runs of these duties are started when they would find something to do."""
        self.runs_wanted = RunsWanted(duties, at_once)
        try:
            yield
        finally:
            self.runs_wanted = RunsWanted()

    def maker(self, shard: str, topic: str) -> Make:
        """What has so many messages of a topic made and sent, and tells their ids."""
        return lambda count: self.producers[shard].make(topic, count, tell=True)

    @contextmanager
    def nobody_receives(self, *groups: str) -> Iterator[None]:
        """The workers of these groups (by default all) stand still meanwhile, and the broker hands them nothing."""
        wanted = [self.groups[group] for group in groups or self.groups]
        leave = self.broker_faults.frozen_get_messages
        for group in wanted:
            group.leave() if leave else group.pause()
        yield
        for group in wanted:
            group.come_back() if leave else group.resume()

    def frozen(self) -> list[int]:
        """The process ids of workers that stand still."""
        return [pid for group in self.groups.values() for pid in group.frozen()]

    def bulk(self, count: int, topic: str = "orders") -> None:
        """Ordinary messages, both shards at once."""
        share, rest = divmod(count, len(self.producers))
        with ThreadPoolExecutor(len(self.producers)) as pool:
            jobs = [
                pool.submit(producer.make, topic, share + (place < rest))
                for place, producer in enumerate(self.producers.values())
                if share + (place < rest)
            ]
            for job in jobs:
                job.result()

    def drained(self, seconds: float, *groups: str) -> None:
        """Waits until these groups (by default all) have acknowledged everything that is in the broker."""
        wanted = groups or tuple(self.groups)

        def open_now() -> dict[str, int]:
            self.watch()
            lags = {
                f"{group} of {topic}": self.broker_faults.backlog(topic, group)
                for topic, takers in self.topics.items()
                for group in takers
                if group in wanted
            }
            return {name: lag for name, lag in lags.items() if lag}

        wait_for(
            "The end of the consumers' backlog",
            lambda: not open_now(),
            seconds,
            lambda: str(open_now()),
        )

    def done(self, group: str, keys: Sequence[Key], seconds: float) -> None:
        """Waits until a group's effects for these messages are there."""

        def missing() -> set[Key]:
            self.watch()
            return self.without_effect(group, keys)

        wait_for(
            f"The work of {group}",
            lambda: not missing(),
            seconds,
            lambda: f"{len(missing())} messages",
        )

    def without_effect(self, group: str, keys: Sequence[Key]) -> set[Key]:
        """Those that the group has not done."""
        return set(keys) - self._found("effects_of", group, keys)

    def without_stopped_copy(self, group: str, keys: Sequence[Key]) -> set[Key]:
        """Those of which the group's database has not stopped a second copy."""
        self.watch()
        return set(keys) - self._found("stopped_of", group, keys)

    def _found(self, statement: str, group: str, keys: Sequence[Key]) -> set[Key]:
        if not keys:
            return set()
        dsn = self.stores[group]
        ids = tuple(message_id for _, message_id in keys)
        return {
            (topic, message_id)
            for topic, message_id in change(
                dsn, statements(dsn)[statement], {"consumer_group": group, "message_ids": ids}
            )
        }

    def watch(self) -> None:
        """Raises DemoBroken when a process that nobody killed has ended, and what `beside` raises."""
        self.beside()
        self.call_for_runs()
        for group in self.groups.values():
            if group.broken:
                raise demo_broken(group.broken, "Read its log in build/demo/processes.")
        if self.ordered:
            self.ordered.check()
        for server, alive in (
            *((server.name, server.running) for server in self.platform.database_servers()),
            (self.platform.broker.name, self.platform.broker.running),
            ("The Valkey of the leases", self.platform.leases.running),
        ):
            if not alive:
                raise demo_broken(
                    f"{server} ended by itself.", "Read its log in build/demo/platform."
                )

    def now(self) -> datetime:
        """The control database's clock, which runs go by."""
        [(now,)] = change(self.control, "SELECT clock_timestamp()", ())
        instant: datetime = now
        return instant

    def oldest_due(self) -> float:
        """How many seconds ago the oldest of the stubs was made that a run would judge; 0: none."""
        ages = [change(dsn, statements(dsn)["oldest_due"], ()) for dsn in self.shards.values()]
        return max(float(age) for [(age,)] in ages)

    def judged_since(self, instant: datetime) -> int:
        """How many reconcile runs that began after the instant have judged, to the end."""
        self.watch()
        [(runs,)] = change(
            self.control,
            "SELECT count(*) FROM run WHERE duty = 'reconcile' AND stage > 0 AND state IN ('done', 'incomplete') AND as_of > %s",
            (instant,),
        )
        return int(runs)

    def expired(self, keys: Sequence[Key], since: datetime) -> int:
        """For how many deliveries of these messages a run found that the broker's retention removed them, which began at `since`;
        of one whose sender never heard from the broker, a run since then finds that it is not stored."""
        self.watch()
        [(found,)] = change(
            self.control,
            "SELECT count(DISTINCT (message_id, consumer_group)) FROM verdict JOIN run USING (run_id) WHERE message_id = ANY(%s)"
            " AND ((verdict = 'LOST' AND reason = 'expired_in_broker')"
            " OR (verdict = 'UNSENT' AND reason = 'not_stored' AND as_of >= %s))",
            ([message_id for _, message_id in keys], since),
        )
        return int(found)

    def judged(self, keys: Sequence[Key]) -> list[str]:
        """Every verdict on these messages, for whoever waits for another one."""
        return [
            f"{message_id} of {group} (send {number}): {verdict} {reason}"
            for message_id, group, number, verdict, reason in change(
                self.control,
                "SELECT DISTINCT message_id, consumer_group, send_count, verdict, reason FROM verdict"
                " WHERE message_id = ANY(%s) ORDER BY 1, 2, 3",
                ([message_id for _, message_id in keys],),
            )
        ]

    def unread(self, group: str, keys: Sequence[Key]) -> int:
        """For how many of these deliveries a run could not tell, because the logs were not read."""
        self.watch()
        [(unknown,)] = change(
            self.control,
            "SELECT count(DISTINCT (topic, message_id)) FROM verdict WHERE consumer_group = %s"
            " AND verdict = 'UNKNOWN' AND reason = 'logs_unread' AND message_id = ANY(%s)",
            (group, [message_id for _, message_id in keys]),
        )
        return int(unknown)
