"""Lanes: one for each ordering key of a queue. Of each lane only the head may be in work; lanes take turns."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from backstop.leases.queue_owner import OwnedQueue


@dataclass(slots=True, eq=False)
class Lane:
    """The messages of one key of one queue under one fence, in order; `releases` a parked key instead."""

    queue: OwnedQueue
    key: str
    releases: bool = False
    waiting: deque[Any] = field(default_factory=deque)
    """The head included, also while it is in work."""
    in_work: bool = False
    failures: int = 0
    """Of the head, in place."""
    excused: int = 0
    """Tries of the head here that ended for no fault of its own, and that the log counts all the same."""
    cut_off: int = 0
    """Tries of the head whose database connection ended while the database itself answered."""
    is_suspect: bool = False
    """The head was begun before by somebody who did not live to say how it ended: it is tried alone."""
    is_poison: bool = False
    """The head failed too often, and a limit kept its key from being parked."""


class Lanes:
    """All lanes of one consumer. Not shared between threads."""

    def __init__(self, most_of_one: int) -> None:
        """`most_of_one`: so many messages of one lane count in `load`."""
        self._most_of_one = most_of_one
        self._lanes: dict[tuple[OwnedQueue, str, bool], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._resting: list[tuple[float, int, Lane]] = []
        self._numbers = count()
        self._held: dict[OwnedQueue, int] = {}
        self._load: dict[OwnedQueue, int] = {}
        self._in_work: dict[OwnedQueue, int] = {}

    def add(self, queue: OwnedQueue, key: str, item: Any, *, releases: bool = False) -> None:
        """The item comes last in its lane; a key that is being released has one item only."""
        lane = self._lanes.get((queue, key, releases))
        if lane is None:
            lane = self._lanes[queue, key, releases] = Lane(queue, key, releases)
            self._ready.append(lane)
        elif releases:
            return
        lane.waiting.append(item)
        self._held[queue] = self._held.get(queue, 0) + 1
        if len(lane.waiting) <= self._most_of_one:
            self._load[queue] = self._load.get(queue, 0) + 1

    def start(self, now: float, limit: int) -> list[Lane]:
        """Up to `limit` lanes whose heads may be tried now; they are in work until `ended` or `again`."""
        while self._resting and self._resting[0][0] <= now:
            self._ready.append(heapq.heappop(self._resting)[2])
        started: list[Lane] = []
        while self._ready and len(started) < limit:
            lane = self._ready.popleft()
            if self._lanes.get((lane.queue, lane.key, lane.releases)) is not lane:
                continue  # dropped
            lane.in_work = True
            self._in_work[lane.queue] = self._in_work.get(lane.queue, 0) + 1
            started.append(lane)
        return started

    def ended(self, lane: Lane) -> None:
        """The head is settled: the next one may go."""
        self._stop_work(lane)
        if self.has(lane):
            lane.failures = lane.excused = lane.cut_off = 0
            lane.is_suspect = lane.is_poison = False
            self._load[lane.queue] -= len(lane.waiting) <= self._most_of_one
            lane.waiting.popleft()
            self._held[lane.queue] -= 1
            if lane.waiting:
                self._ready.append(lane)
            else:
                del self._lanes[lane.queue, lane.key, lane.releases]

    def again(self, lane: Lane, at: float) -> bool:
        """The head is tried once more, no sooner than `at`; false: its queue was dropped."""
        self._stop_work(lane)
        if not self.has(lane):
            return False
        heapq.heappush(self._resting, (at, next(self._numbers), lane))
        return True

    def drop(self, queue: OwnedQueue) -> int:
        """The queue is not ours to start from any more; heads in work go on to their end. How many messages were dropped."""
        dropped = [
            self._lanes.pop(place)
            for place in [place for place in self._lanes if place[0] == queue]
        ]
        self._held.pop(queue, None)
        self._load.pop(queue, None)
        return sum(len(lane.waiting) - lane.in_work for lane in dropped if not lane.releases)

    def held(self, queue: OwnedQueue) -> int:
        """How many of the queue's messages are here."""
        return self._held.get(queue, 0)

    def load(self, queue: OwnedQueue) -> int:
        """The same, with at most `most_of_one` of each lane: the followers of a head that waits keep no other key from being read."""
        return self._load.get(queue, 0)

    def in_work(self, queue: OwnedQueue) -> int:
        """How many of the queue's heads are in work."""
        return self._in_work.get(queue, 0)

    def waiting(self) -> int:
        """How many messages are here, heads in work included, and keys that are being released not."""
        return sum(len(lane.waiting) for lane in self._lanes.values() if not lane.releases)

    def has(self, lane: Lane) -> bool:
        """Whether its queue is still ours to start from."""
        return self._lanes.get((lane.queue, lane.key, lane.releases)) is lane

    def _stop_work(self, lane: Lane) -> None:
        lane.in_work = False
        left = self._in_work[lane.queue] - 1
        if left:
            self._in_work[lane.queue] = left
        else:
            del self._in_work[lane.queue]
