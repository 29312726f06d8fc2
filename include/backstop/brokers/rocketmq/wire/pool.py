"""Idle connections to each server, and the way to ask many servers at once. Safe to share between threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.exchange import WINDOW, Result, exchange
from backstop.brokers.rocketmq.wire.frames import Answer, Command, Request
from backstop.brokers.rocketmq.wire.session import NotSent, OnPush, Session

IDLE_SECONDS = 60.0
"""A broker closes what was silent for two minutes; a connection is not used again so near to that."""


class Pool:
    """The connections of one adapter, all with the same login."""

    def __init__(self, address: Address, *, connect_timeout: float) -> None:
        """Raises ConfigurationError for certificates that cannot be used."""
        self.address, self.connect_timeout = address, connect_timeout
        self._context = address.context()
        self._idle: dict[str, list[Session]] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()

    def ask(self, to: str, request: Request, deadline: float) -> Answer:
        """The answer, whatever it says. Raises NotSent, Lost."""
        [result] = self.ask_many(to, [request], deadline)
        if isinstance(result, Command):
            return result
        raise result

    def ask_many(
        self, to: str, requests: Sequence[Request], deadline: float, *, window: int = WINDOW
    ) -> list[Result]:
        """How each one ended, in order; never raises for their fate."""
        return self.ask_all([(to, request) for request in requests], deadline, window=window)

    def ask_all(
        self, requests: Sequence[tuple[str, Request]], deadline: float, *, window: int = WINDOW
    ) -> list[Result]:
        """The same to several servers (host:port) at once, over one connection to each."""
        places: dict[str, list[int]] = {}
        for place, (to, _) in enumerate(requests):
            places.setdefault(to, []).append(place)
        results: list[Result | None] = [None] * len(requests)
        sessions: list[tuple[str, Session]] = []
        for place, (to, its) in enumerate(places.items()):
            share = (deadline - time.monotonic()) / (
                len(places) - place
            )  # one that takes long leaves time for the others
            try:
                sessions.append((to, self.take(to, time.monotonic() + share)))
            except NotSent as error:
                for one in its:
                    results[one] = error
        plans = [
            (session, [requests[place][1] for place in places[to]]) for to, session in sessions
        ]
        try:
            ended = exchange(plans, deadline, window=window)
        except BaseException:
            for _, session in sessions:
                session.close()
            raise
        for (to, session), its_results in zip(sessions, ended, strict=True):
            for place, result in zip(places[to], its_results, strict=True):
                results[place] = result
            self.give_back(session)
        return [NotSent("it was not asked") if result is None else result for result in results]

    def take(self, to: str, deadline: float) -> Session:
        """An open connection to that server. Raises NotSent."""
        while True:
            with self._lock:
                if (
                    self._process != os.getpid()
                ):  # a forked child must not speak into its parent's connections
                    self._process, self._idle = os.getpid(), {}
                idle = self._idle.get(to)
                session = idle.pop() if idle else None
            if session is None:
                return self.new(to, deadline)
            if time.monotonic() - session.heard_at < IDLE_SECONDS and session.idle():
                return session
            session.close()

    def new(self, to: str, deadline: float, *, on_push: OnPush | None = None) -> Session:
        """One that nobody used before, and that is the caller's to close. Raises NotSent."""
        by = min(deadline, time.monotonic() + self.connect_timeout)
        return Session(self.address, to, deadline=by, context=self._context, on_push=on_push)

    def give_back(self, session: Session) -> None:
        """Keeps it for the next one; one with something on its way, or with an ear for pushes, is closed."""
        if session.on_push is not None or not session.idle():
            session.close()
            return
        with self._lock:
            self._idle.setdefault(session.to, []).append(session)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for sessions in idle.values():
            for session in sessions:
                session.close()
