"""A few daemon threads that run tasks, each with a database connection of its own."""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from backstop.client.keep_connection import Connect, KeptConnection
from backstop.model.errors import StoreUnavailable
from backstop.sql.run import Connection, is_unavailable

Task = Callable[[KeptConnection], None]
JOIN_SECONDS = 5.0
T = TypeVar("T")


class Results(Generic[T]):
    """What tasks report, to one reader that may wait for several at once: it is woken once for all of them."""

    def __init__(self) -> None:
        self._arrived: deque[T] = deque()
        self._wanted = 0
        self._enough = threading.Event()

    def __len__(self) -> int:
        return len(self._arrived)

    def put(self, result: T) -> None:
        self._arrived.append(result)
        if 0 < self._wanted <= len(self._arrived):
            self._enough.set()

    def take(self) -> T:
        """The first one; raises IndexError where there is none."""
        return self._arrived.popleft()

    def wait(self, number: int, seconds: float) -> None:
        """Until so many are there, and no longer than this."""
        self._wanted = number
        self._enough.clear()
        if len(self._arrived) < number:
            self._enough.wait(seconds)
        self._wanted = 0


class WorkerPool:
    """Threads start with the first task. A task never raises."""

    def __init__(self, connect: Connect, workers: int) -> None:
        self._connect, self._workers = connect, workers
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, task: Task) -> None:
        if len(self._threads) < self._workers:
            name = f"backstop-lane-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        self._tasks.put(task)

    def close(self) -> None:
        """Ends the threads after their tasks; one that hangs in its handler ends with the process."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _open(self) -> Connection:
        """Whatever it raises is no failure of the message that a thread has in work. One that never works ends the consumer: its
        main thread opens its connection by the same function."""
        try:
            return self._connect()
        except Exception as error:
            if isinstance(error, StoreUnavailable) or is_unavailable(error):
                raise
            raise StoreUnavailable(
                f"A thread's connection to the consumer database was not opened ({type(error).__name__}).",
                unaffected="What it has committed is kept; no attempt is counted.",
                next_step="See what `connect` needs; the work is taken up again by itself.",
            ) from error

    def _work(self) -> None:
        store = KeptConnection(self._open, "consumer database")
        try:
            while task := self._tasks.get():
                task(store)
        finally:
            store.close()
