"""Everything a run under fire acts with: servers, links, processes that are started again whenever they end, and ways to look."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from backstop.config.load import load
from backstop.model.private_file import write_private
from backstop.schema.prepare import prepare
from backstop.sql.named import load as load_sql
from backstop_lab.chaos.duty import READY
from backstop_lab.chaos.keep_running import Kept
from backstop_lab.chaos.record import Record
from backstop_lab.chaos.schedule import CONSUMERS, DUTIES, LINKS, SERVERS
from backstop_lab.chaos.servers import HOLDS, databases, make_servers
from backstop_lab.chaos.tcp_proxy import Proxy
from backstop_lab.faults.brokers.redis_streams import RedisStreamsFaults
from backstop_lab.platform import PROJECT
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.shop.databases import change
from backstop_lab.shop.ledger import Ledger
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import Worker

_SQL = load_sql("backstop_lab.shop", "business.sql")
BROKER = "embedded"
CONNECTIONS = {
    "backstop_control": "control",
    "backstop_producer_a": "shop_a",
    "backstop_producer_b": "shop_b",
    "backstop_consumer_billing": "billing",
    "backstop_consumer_shipping": "shipping",
}
"""Connection id of backstop.yaml -> database."""
DEAD_AFTER = 8.0
"""Seconds after which a silent holder of a duty's lease is taken over: above the heartbeat's 5."""
STANDBY = "resend-2"
"""A second worker of the same duty, which no fault hits: it takes over from the first when that is silent for too long."""
WATCH_SECONDS = 0.1
READY_SECONDS = 120.0
POLICY = {
    # A broker that is away for seconds refuses everything meanwhile. That is no mass loss, and here no person is there to ask.
    "blast_share": 1.0,
    "max_sends": 8,
    "max_refusals": 40,
    # A canary that a broken broker refuses stops its batch until a person has looked.
    "canary": 0,
    # 20 deliveries of 2 s, and what a consumer may take.
    "redelivery_horizon": "45s",
    "backlog_horizon": "12m",
    "retry_after": "1s",
    "sweep_interval": "2s",
}
DELIVERY_LIMIT = 20
"""Whoever is killed or frozen with a message in hand uses up a delivery; a dead letter is not what this run is about."""

Command = Callable[[str], Sequence[str]]
"""The words before a child's module, by the child's name."""


def plain(name: str) -> Sequence[str]:
    return (sys.executable, "-m")


class Stage:
    """One system in one folder. `rate`: messages a second, of all producers. `command`: see Command."""

    def __init__(self, folder: Path, seed: int, rate: float, command: Command = plain) -> None:
        self.folder, self.seed, self.rate, self._command = folder, seed, rate, command
        self.record = Record(folder / "events.jsonl")
        self.ledger = Ledger(folder / "ledger")
        self.servers = make_servers(folder / "servers")
        self.proxy = Proxy()
        self.processes: dict[str, Kept] = {}
        self.config = folder / "backstop.yaml"
        self.orders = folder / "orders"
        """Where a fault is ordered that a worker has to meet in the middle of its handler (mishap.py)."""
        self.without: frozenset[str] = frozenset()
        """Duties that were not started."""
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._server_turns = {name: threading.RLock() for name in SERVERS}

    # -- start and stop

    def start(
        self, *, without: Collection[str] = (), every: Mapping[str, float] | None = None
    ) -> None:
        """Servers, schemas, links, processes (but those, and the producers). Whoever calls it calls `stop`, come what may.

        `every`: seconds between two runs of a duty, by its name; 1 otherwise.
        """
        self.without = frozenset(without)
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for started in [pool.submit(server.start) for server in self.servers.values()]:
                started.result()
        self._write_config()
        self.settings = load(self.config)
        for server in HOLDS:
            for database in HOLDS[server]:
                program: Any = self.servers[server].program
                program.create_database(database)
        homes = databases()
        self.urls = {
            database: self.servers[server].url(database) for database, server in homes.items()
        }
        self.broker_url, self.leases_url = (
            self.servers["broker"].url(""),
            self.servers["leases"].url(""),
        )
        prepare(
            self.settings,
            {
                **{ref: self.urls[database] for ref, database in CONNECTIONS.items()},
                "backstop_broker": self.broker_url,
            },
        )
        for shard in HOLDS["shops"]:
            change(self.urls[shard], _SQL["make_business_order"], ())
        for group in ("billing", "shipping"):
            change(self.urls[group], _SQL["make_effect"], ())
            change(self.urls[group], _SQL["index_effect"], ())
        self.broker_faults = RedisStreamsFaults(self.broker_url, self.ledger)
        for link in LINKS:
            self.proxy.add(link, self.servers[link.partition(" to ")[2]].port)
        self._every = dict(every or {})
        self._make_processes()
        for kept in self.processes.values():
            duty = "resend" if kept.name == STANDBY else kept.name
            if duty not in without and not kept.name.startswith("producer-"):
                kept.start()
        for duty in set(DUTIES).difference(without):
            # A fault before that would hit nobody.
            last_lines = self.processes[duty].worker.last_lines
            wait_for(f"The start of {duty}", partial(self.ready, duty), READY_SECONDS, last_lines)
        self._watcher.start()

    def start_producers(self) -> None:
        for name, kept in self.processes.items():
            if name.startswith("producer-"):
                kept.start()

    def ready(self, duty: str) -> bool:
        log = self.folder / "processes" / f"{duty}.log"
        return READY in log.read_text(encoding="utf-8", errors="replace").splitlines()

    def stop(self, *, keep: bool) -> None:
        """`keep`: what was on the small disks stays in the folder."""
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if self.processes:
            with ThreadPoolExecutor(len(self.processes)) as pool:
                for stopped in [pool.submit(kept.stop) for kept in self.processes.values()]:
                    stopped.result()
        self.proxy.close()
        for server in self.servers.values():
            server.thaw()
            server.skew(0.0)
            server.free()
            server.stop()
            server.let_go(keep=keep)

    def _write_config(self) -> None:
        written = yaml.safe_load((PROJECT / "backstop.yaml").read_text(encoding="utf-8"))
        written["policy"] |= POLICY
        written["brokers"][BROKER]["options"]["delivery_limit"] = DELIVERY_LIMIT
        self.config.write_text(yaml.safe_dump(written, allow_unicode=True), encoding="utf-8")

    def _make_processes(self) -> None:
        folder = self.folder / "processes"
        folder.mkdir(parents=True, exist_ok=True)
        self.orders.mkdir(exist_ok=True)
        policy = self.settings.policy_for(None)
        named = ("first_check", "attempt_timeout", "max_send_duration", "lease", "retry_after")
        shared = {
            "ledger": str(self.ledger.folder),
            "broker_name": BROKER,
            "config": str(self.config),
            "policy": {name: getattr(policy, name).total_seconds() for name in named},
            "topics": list(self.settings.topics),
        }
        for shard in HOLDS["shops"]:
            self.add(
                f"producer-{shard}",
                "backstop_lab.chaos.producer",
                {
                    **shared,
                    "shard": shard,
                    "seed": f"{self.seed} {shard}",
                    "rate": self.rate / len(HOLDS["shops"]),
                    "database": self.through("producers to shops", self.urls[shard]),
                    "broker": self.through("producers to broker", self.broker_url),
                },
            )
        for worker in CONSUMERS:
            group = worker.partition("-")[0]
            self.add(
                worker,
                "backstop_lab.shop.traffic_consumer",
                {
                    **shared,
                    "group": group,
                    "worker": worker,
                    "database": self.through(f"{group} to {group}", self.urls[group]),
                    "broker": self.through("consumers to broker", self.broker_url),
                    "leases": self.through("consumers to leases", self.leases_url),
                    "orders": str(self.orders),
                },
            )
        for name in (*DUTIES, STANDBY):
            self.add(
                name, "backstop_lab.chaos.duty", self.duty("resend" if name == STANDBY else name)
            )

    def add(self, name: str, module: str, places: dict[str, Any]) -> Kept:
        folder = self.folder / "processes"
        kept = Kept(Worker(name, module, places, folder, self._command(name)), self.record)
        self.processes[name] = kept
        return kept

    def duty(self, duty: str, *, dead_after: float = DEAD_AFTER) -> dict[str, Any]:
        """The places of a process that runs this duty in a loop."""
        homes = databases()
        connections = {
            ref: self.through(f"duties to {homes[database]}", self.urls[database])
            for ref, database in CONNECTIONS.items()
        }
        connections["backstop_broker"] = self.through("duties to broker", self.broker_url)
        connections["backstop_leases"] = self.through("duties to leases", self.leases_url)
        return {
            "duty": duty,
            "config": str(self.config),
            "docs": str(self.folder / "data-docs"),
            "connections": connections,
            "dead_after": dead_after,
            "every": self._every.get(duty, 1.0),
        }

    def through(self, link: str, url: str) -> str:
        """The same address by way of the link's proxy."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(
            parts._replace(netloc=f"{login}@{LOOPBACK}:{self.proxy.links[link].port}")
        )

    def write_places(self) -> Path:
        """Where the checker finds what it compares; mode 0600, because it holds passwords."""
        policy = self.settings.policy_for(None)
        file = self.folder / "places.json"
        write_private(
            file,
            json.dumps(
                {
                    "control": self.urls["control"],
                    "producers": {shard: self.urls[shard] for shard in HOLDS["shops"]},
                    "groups": {group: self.urls[group] for group in self.settings.groups},
                    "topics": {
                        topic: list(self.settings.groups_of(topic))
                        for topic in self.settings.topics
                    },
                    "broker": self.broker_url,
                    "late_after": (
                        policy.max_send_duration + policy.max_clock_skew
                    ).total_seconds(),
                    "events": str(self.record.file),
                }
            ),
        )
        return file

    # -- what runs

    def _watch(self) -> None:
        while not self._over.wait(WATCH_SECONDS):
            for kept in list(self.processes.values()):
                kept.watch()
            for name, server in self.servers.items():
                with self._server_turns[name]:
                    if server.wanted and not server.running:
                        self.record.write("server down", server=name, started=server.try_to_start())

    def turn_of(self, server: str) -> threading.RLock:
        """Whoever starts or stops a server holds it."""
        return self._server_turns[server]

    def stop_producers(self) -> None:
        for name, kept in self.processes.items():
            if name.startswith("producer-"):
                kept.stop()

    def stop_duties(self) -> None:
        """Between two runs: each finishes the one it is in."""
        with ThreadPoolExecutor(len(DUTIES) + 1) as pool:
            for stopped in [pool.submit(self.processes[name].stop) for name in (*DUTIES, STANDBY)]:
                stopped.result()
