"""Opens what the parts of a sweep are in, each server once for all parts that a process does."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.leases.redis_exchange import RedisExchange
from backstop.stores.leases import Leases
from backstop.stores.open import open_leases
from backstop.sweep.ask_log import GroupLog
from backstop.sweep.parts import Part
from backstop.sweep.redis_bucket import Bucket


class OpenStores:
    """For one thread, until `close`. Nothing is connected before its first use, and a server that went away is connected again.

    A log that did not answer is not asked again: each further wait for its time-out would tell nothing new.
    """

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self.settings, self.connections = settings, connections
        self._opened = ExitStack()
        self._leases: dict[str, Leases] = {}
        self._logs: dict[str, GroupLog] = {}
        self._exchanges: dict[tuple[str, bool], RedisExchange] = {}

    def leases(self, store: str) -> Leases:
        """Of a consumer store."""
        if store not in self._leases:
            opened = open_leases(self.settings, self.connections, store)
            self._leases[store] = self._opened.enter_context(opened)
        return self._leases[store]

    def log(self, group: str) -> GroupLog:
        """The logs of a group that keeps some."""
        if group not in self._logs:
            self._logs[group] = GroupLog(group, self.leases(self.settings.groups[group].store))
        return self._logs[group]

    def exchange(self, reference: str, *, cluster: bool) -> RedisExchange:
        """A Redis by the name of its connection."""
        if (reference, cluster) not in self._exchanges:
            opened = RedisExchange(self.connections.url(reference), cluster=cluster)
            self._opened.callback(opened.close)
            self._exchanges[reference, cluster] = opened
        return self._exchanges[reference, cluster]

    def bucket(self, part: Part) -> Bucket:
        """Of a part of kind front or guard."""
        if part.kind == "guard":
            guard = self.settings.redis_guards[part.name]
            exchange = self.exchange(guard.redis, cluster=guard.cluster)
        else:
            front = self.settings.groups[part.name].leases
            assert front is not None
            exchange = self.exchange(front.redis, cluster=front.cluster)
        return Bucket(exchange, part.name, part.bucket)

    def log_behind(self, part: Part) -> GroupLog | None:
        """The log that decides about a part of kind front or guard; null: Redis decides alone."""
        return self.log(part.name) if part.kind == "front" else None

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
