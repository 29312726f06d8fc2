"""One consumer's connections, one to each master: asks several at once, and receives what brokers send by themselves.

A request that is not waited for, such as a pull that the broker holds until a message comes, stays open between two calls.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence

from backstop.brokers.rocketmq.wire.exchange import Result
from backstop.brokers.rocketmq.wire.frames import Answer, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent, OnPush, Session


class MasterConnections:
    """The connections by broker name. Not shared between threads; whoever shares it holds a lock."""

    def __init__(self, pool: Pool, on_push: OnPush) -> None:
        self._pool, self._on_push = pool, on_push
        self._sessions: dict[str, Session] = {}
        self._arrived: dict[str, dict[int, Answer]] = {}
        """By broker: what was answered and not handed out."""

    def connect(self, broker: str, to: str, deadline: float) -> bool:
        """Whether a new connection was made; one that is open to this address stays. Raises NotSent."""
        known = self._sessions.get(broker)
        if known is not None and known.broken is None and known.to == to:
            return False
        self.drop(broker)
        self._arrived[broker] = {}
        self._sessions[broker] = self._pool.new(to, deadline, on_push=self._on_push)
        return True

    def drop(self, broker: str) -> None:
        session = self._sessions.pop(broker, None)
        if session is not None:
            session.close()

    @property
    def brokers(self) -> list[str]:
        return list(self._sessions)

    def address(self, broker: str) -> str:
        """host:port of a broker that is connected."""
        return self._sessions[broker].to

    def broken(self) -> dict[str, str]:
        """Which connections are over, and why."""
        return {
            broker: session.broken
            for broker, session in self._sessions.items()
            if session.broken is not None
        }

    def start(self, broker: str, request: Request) -> int | None:
        """Asks without waiting: a number for `taken`; null: there is no connection."""
        session = self._sessions.get(broker)
        return (
            session.start([request])[0] if session is not None and session.broken is None else None
        )

    def taken(self, broker: str, number: int) -> Answer | None:
        """The answer, if it came; it is handed out once."""
        session = self._sessions.get(broker)
        if session is None:
            return None
        arrived = self._arrived[broker]
        arrived.update(session.take_all())
        return arrived.pop(number, None)

    def ask(self, requests: Sequence[tuple[str, Request]], deadline: float) -> list[Result]:
        """How each one ended, in order. Those of one broker are written in this order, and may be answered in another.

        A broker that leaves something unanswered is taken for gone: its connection is closed.
        """
        numbers = [self.start(broker, request) for broker, request in requests]
        results: list[Result | None] = [
            NotSent(f"there is no connection to the broker {broker}") if number is None else None
            for (broker, _), number in zip(requests, numbers, strict=True)
        ]
        open_places = [place for place, number in enumerate(numbers) if number is not None]
        while open_places:
            waiting: list[int] = []
            for place in open_places:
                broker, number = requests[place][0], numbers[place]
                session = self._sessions[broker]
                assert number is not None
                results[place] = self.taken(broker, number)
                if results[place] is None and session.broken is not None:
                    results[place] = session.conclude(number)
                if results[place] is None:
                    waiting.append(place)
            open_places = waiting
            if open_places and not self.wait(
                deadline, {requests[place][0] for place in open_places}
            ):
                break
        for place in open_places:
            number, session = numbers[place], self._sessions[requests[place][0]]
            assert number is not None
            results[place] = session.conclude(number)
        for broker in {requests[place][0] for place in open_places}:
            self.give_up(broker, "did not answer in time")
        return [
            ConnectionLost("it was not waited for") if result is None else result
            for result in results
        ]

    def give_up(self, broker: str, why: str) -> None:
        """Takes the broker for gone."""
        session = self._sessions[broker]
        session.broken = session.broken or f"{session.to} {why}"
        session.close()

    def wait(self, deadline: float, brokers: Iterable[str] | None = None) -> bool:
        """Waits until something can be read or written, and does it. False: the time is over."""
        left = deadline - time.monotonic()
        sessions = [
            self._sessions[broker] for broker in (self._sessions if brokers is None else brokers)
        ]
        by_number = {session.fileno(): session for session in sessions if session.broken is None}
        if left > 0:
            poll = select.poll()
            for number, session in by_number.items():
                poll.register(number, select.POLLIN | (select.POLLOUT if session.writing else 0))
            poll.poll(left * 1000)
        for session in by_number.values():
            session.pump()
        return left > 0

    def pump(self) -> None:
        """Reads and writes what can be, without waiting."""
        for session in self._sessions.values():
            session.pump()

    def close(self) -> None:
        for broker in self.brokers:
            self.drop(broker)
