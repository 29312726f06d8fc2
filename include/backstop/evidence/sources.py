"""Opens each store and broker once, when it is first needed, and remembers which did not answer.

Whatever one of them raises, to whoever reads many of them it did not answer: an error of one store, one broker or one line of
its configuration must never end the reading of the others.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import Broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.seen_dead_letters import SeenDeadLetters
from backstop.model.errors import (
    BackstopError,
    BrokerUnavailable,
    ConfigurationError,
    StoreFailed,
    StoreUnavailable,
    Unavailable,
)
from backstop.sql.connection import STATEMENT_TIMEOUT
from backstop.stores.open import open_log_store, open_parking, open_stub_store
from backstop.stores.postgresql.parking import PostgresParking
from backstop.stores.protocol import LogStore, StubStore

ANSWER_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, inf)
"""Bounds of the histogram of answers."""


@dataclass(slots=True)
class AnswerTimes:
    """How long one store or broker took: how many answers, and their seconds, by the smallest bound that each fitted into."""

    by_bound: Counter[float] = field(default_factory=Counter)
    seconds: defaultdict[float, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float) -> None:
        """One more answer."""
        bound = ANSWER_SECONDS[bisect_left(ANSWER_SECONDS, seconds)]
        self.by_bound[bound] += 1
        self.seconds[bound] += seconds


class Sources:
    """The producers' and consumers' databases and the brokers of one piece of work; close it as a context manager.

    `unreachable` maps a subject ("shard shop_a", "store billing_db", "broker embedded") to why it did not answer.
    """

    def __init__(
        self,
        settings: Settings,
        connections: Connections,
        patience: timedelta = STATEMENT_TIMEOUT,
    ) -> None:
        """`patience`: so long may a statement in a store take."""
        self.settings, self.connections = settings, connections
        self._patience = patience
        self.answers: defaultdict[tuple[str, str], AnswerTimes] = defaultdict(AnswerTimes)
        """How long each took to answer, by subject and outcome ("answered", "failed")."""
        self.unreachable: dict[str, str] = {}
        self._stack = ExitStack()
        self._shards: dict[str, StubStore] = {}
        self._logs: dict[str, LogStore] = {}
        self._parking: dict[str, PostgresParking] = {}
        self._brokers: dict[str, Broker] = {}
        self.seen_dead_letters: defaultdict[tuple[str, str], SeenDeadLetters] = defaultdict(
            SeenDeadLetters
        )
        """By broker and group, for those who judge again and again by key."""

    def shard(self, name: str) -> StubStore:
        """The producer database of this name."""
        if name not in self._shards:
            try:
                store = self._stack.enter_context(
                    open_stub_store(self.settings, self.connections, name, self._patience)
                )
            except Exception as error:
                raise _failed(f"shard {name}", error, StoreFailed) from error
            self._shards[name] = cast(
                StubStore, _Guarded(store, f"shard {name}", StoreFailed, self.answers)
            )
        return self._shards[name]

    def logs_of(self, group: str) -> LogStore:
        """The consumer database that holds this group's logs."""
        store = self.settings.groups[group].store
        if store not in self._logs:
            try:
                logs = self._stack.enter_context(
                    open_log_store(self.settings, self.connections, store, self._patience)
                )
            except Exception as error:
                raise _failed(f"store {store}", error, StoreFailed) from error
            self._logs[store] = cast(
                LogStore, _Guarded(logs, f"store {store}", StoreFailed, self.answers)
            )
        return self._logs[store]

    def parking_of(self, group: str) -> PostgresParking:
        """Ordered consumption in the consumer database of this group, which parks keys."""
        store = self.settings.groups[group].store
        if store not in self._parking:
            subject = f"store {store}"
            with guarded(subject, StoreFailed):
                parking = self._stack.enter_context(
                    open_parking(self.settings, self.connections, store, self._patience)
                )
            self._parking[store] = cast(
                PostgresParking, _Guarded(parking, subject, StoreFailed, self.answers)
            )
        return self._parking[store]

    def broker(self, name: str) -> Broker:
        """The broker of this name."""
        if name not in self._brokers:
            try:
                opened: Broker = open_broker(self.settings, self.connections, name)
                self._stack.enter_context(opened)
            except Exception as error:
                raise _failed(f"broker {name}", error, BrokerUnavailable) from error
            self._brokers[name] = cast(
                Broker, _Guarded(opened, f"broker {name}", BrokerUnavailable, self.answers)
            )
        return self._brokers[name]

    def missed(self, subject: str, error: Unavailable) -> None:
        """Something did not answer: what it would have said stays unknown."""
        self.unreachable[subject] = error.what

    def close(self) -> None:
        """Closes all of them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class HasClock(Protocol):
    """A store or a broker: each can say what time it is."""

    def clock(self) -> datetime: ...


def answers(source: Callable[[], HasClock]) -> bool:
    """Whether a store or broker that failed one question answers at all: of one that does not, each further wait for its time-out
    would tell nothing new. `source` opens it."""
    try:
        source().clock()
    except StoreFailed:
        return True  # not by silence
    except Unavailable:
        return False
    return True


class _Closeable(Protocol):
    def close(self) -> None: ...


_Store = TypeVar("_Store", bound=_Closeable)


def open_guarded(
    subject: str,
    open_store: Callable[[Settings, Connections, str], _Store],
    settings: Settings,
    connections: Connections,
    name: str,
) -> _Store:
    """The store, opened, whose every error is an Unavailable; also one of opening it. The caller closes it."""
    with guarded(subject, StoreFailed):
        return cast(_Store, _Guarded(open_store(settings, connections, name), subject, StoreFailed))


class _Guarded:
    """A store or broker whose every error is an Unavailable, or one of Backstop's own that says more."""

    def __init__(
        self,
        inner: Any,
        subject: str,
        kind: type[StoreUnavailable | BrokerUnavailable],
        answers: Mapping[tuple[str, str], AnswerTimes] | None = None,
    ) -> None:
        self._inner, self._subject, self._kind, self._answers = inner, subject, kind, answers

    def __getattr__(self, name: str) -> Any:
        with guarded(self._subject, self._kind):
            value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = value(*arguments, **options)
            except Exception as error:
                self._note("failed", began)
                raise _failed(self._subject, error, self._kind) from error
            self._note("answered", began)
            return self._each(answer) if isinstance(answer, Iterator) else answer

        return call

    def _note(self, outcome: str, began: float) -> None:
        if self._answers is not None:
            self._answers[self._subject, outcome].add(time.perf_counter() - began)

    def _each(self, answer: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from answer
        except Exception as error:
            raise _failed(self._subject, error, self._kind) from error


@contextmanager
def guarded(subject: str, kind: type[StoreUnavailable | BrokerUnavailable]) -> Iterator[None]:
    """The same for a block of code."""
    try:
        yield
    except Exception as error:
        raise _failed(subject, error, kind) from error


def _failed(
    subject: str, error: Exception, kind: type[StoreUnavailable | BrokerUnavailable]
) -> Exception:
    """The error as an Unavailable; Backstop's own errors as they are, but for one in the configuration."""
    if isinstance(error, ConfigurationError):
        return kind(error.what, unaffected=error.unaffected, next_step=error.next_step)
    if isinstance(error, BackstopError):
        return error
    return kind(
        f"{subject[:1].upper()}{subject[1:]} failed: {reason(error).rstrip('.')}.",
        unaffected="Nothing was decided without it, and nothing else depends on it.",
        next_step="Correct what is named; the next run reads it again.",
    )


def reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, BackstopError):
        return error.what
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
