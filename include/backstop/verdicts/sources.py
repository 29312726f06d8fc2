"""Opens each store and broker once, when it is first needed, and remembers which did not answer."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import Broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import Unavailable
from backstop.stores.open import open_log_store, open_stub_store
from backstop.stores.protocol import LogStore, StubStore


class Sources:
    """The producers' and consumers' databases and the brokers of one piece of work; close it as a context manager.

    `unreachable` maps a subject ("shard shop_a", "store billing_db", "broker embedded") to why it did not answer.
    """

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self.settings, self.connections = settings, connections
        self.unreachable: dict[str, str] = {}
        self._stack = ExitStack()
        self._shards: dict[str, StubStore] = {}
        self._logs: dict[str, LogStore] = {}
        self._brokers: dict[str, Broker] = {}

    def shard(self, name: str) -> StubStore:
        """The producer database of this name."""
        if name not in self._shards:
            self._shards[name] = self._stack.enter_context(open_stub_store(self.settings, self.connections, name))
        return self._shards[name]

    def logs_of(self, group: str) -> LogStore:
        """The consumer database that holds this group's logs."""
        store = self.settings.groups[group].store
        if store not in self._logs:
            self._logs[store] = self._stack.enter_context(open_log_store(self.settings, self.connections, store))
        return self._logs[store]

    def broker(self, name: str) -> Broker:
        """The broker of this name."""
        if name not in self._brokers:
            opened: Broker = open_broker(self.settings, self.connections, name)
            self._brokers[name] = self._stack.enter_context(opened)
        return self._brokers[name]

    def missed(self, subject: str, error: Unavailable) -> None:
        """Something did not answer: what it would have said stays unknown."""
        self.unreachable[subject] = error.what

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
