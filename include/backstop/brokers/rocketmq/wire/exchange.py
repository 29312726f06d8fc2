"""Asks many things of several brokers at once: a bounded number in flight on each connection, a bounded time for all."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Hashable, Sequence

from backstop.brokers.rocketmq.wire.frames import Answer, Command, Request
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent, Session

Result = Answer | ConnectionLost | NotSent
WINDOW = 128
"""Requests in flight on one connection. A broker refuses what waits for more than 200 ms in its queue of sends."""
WINDOW_BYTES = 8 * 1024 * 1024


def ask_many(
    session: Session, requests: Sequence[Request], deadline: float, *, window: int = WINDOW
) -> list[Result]:
    """How each one ended, in order; never raises for their fate."""
    return exchange([(session, requests)], deadline, window=window)[0]


def exchange(
    plans: Sequence[tuple[Session, Sequence[Request]]], deadline: float, *, window: int = WINDOW
) -> list[list[Result]]:
    """The same over several connections at once, each its own list."""
    runs = [_Run(session, requests, window) for session, requests in plans]
    active = {run.session.fileno(): run for run in runs if run.go_on()}
    poll = select.poll()
    for number in active:
        poll.register(number, select.POLLIN)
    while active:
        left = deadline - time.monotonic()
        for number, run in active.items():
            poll.modify(number, select.POLLIN | (select.POLLOUT if run.session.writing else 0))
        ready = [number for number, _ in poll.poll(max(left, 0) * 1000)]
        if left <= 0:
            for run in active.values():
                run.stop()
        for number in ready:
            if not active[number].go_on():
                poll.unregister(number)
                del active[number]
        if left <= 0:
            break
    return [run.conclude() for run in runs]


class _Run:
    """The requests of one connection, on their way."""

    def __init__(self, session: Session, requests: Sequence[Request], window: int) -> None:
        self.session, self._requests, self._window = session, requests, window
        self._results: list[Result | None] = [None] * len(requests)
        self._places: dict[int, int] = {}
        self._bytes = 0
        self._ready = deque[int]()
        self._lanes: dict[Hashable, deque[int]] = {}
        """What waits for the one before it in its lane."""
        for place, request in enumerate(requests):
            if request.lane is None:
                self._ready.append(place)
            elif request.lane in self._lanes:
                self._lanes[request.lane].append(place)
            else:
                self._lanes[request.lane] = deque()
                self._ready.append(place)

    def go_on(self) -> bool:
        """Writes and reads what can be. False: nothing more will come."""
        self._start()
        while True:
            self.session.pump()
            if not self._take():
                break
            self._start()
        return self.session.broken is None and bool(self._places or self._ready)

    def stop(self) -> None:
        """Starts nothing more."""
        self._ready.clear()

    def conclude(self) -> list[Result]:
        # Those in flight first: withdrawing the others may end the connection.
        for opaque, place in self._places.items():
            self._results[place] = self.session.conclude(opaque)
        why = self.session.broken or f"{self.session.to} took nothing more in time"
        return [NotSent(why) if result is None else result for result in self._results]

    def _start(self) -> None:
        while (
            self._ready
            and len(self._places) < self._window
            and (not self._places or self._bytes < WINDOW_BYTES)
        ):
            if self.session.broken is not None:
                return
            some: list[int] = []
            while (
                self._ready
                and len(self._places) + len(some) < self._window
                and self._bytes < WINDOW_BYTES
            ):
                place = self._ready.popleft()
                self._bytes += len(self._requests[place].body)
                some.append(place)
            if not some:
                return
            self._places.update(
                zip(
                    self.session.start([self._requests[place] for place in some]), some, strict=True
                )
            )

    def _take(self) -> bool:
        """Files the answers that came; False: none did."""
        arrived = self.session.take_all()
        for opaque, answer in arrived.items():
            place = self._places.pop(opaque, None)
            if place is None:
                continue
            self._results[place] = answer
            request = self._requests[place]
            self._bytes -= len(request.body)
            if request.lane is not None and (behind := self._lanes[request.lane]):
                self._ready.append(behind.popleft())
        return bool(arrived)


def only_answers(results: Sequence[Result]) -> list[Answer]:
    """The answers. Raises the first Lost or NotSent among them."""
    answers = []
    for result in results:
        if not isinstance(result, Command):
            raise result
        answers.append(result)
    return answers
