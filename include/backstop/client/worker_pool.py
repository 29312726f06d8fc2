"""A few daemon threads that run tasks, each with a database connection of its own."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from backstop.client.keep_connection import Connect, KeptConnection

Task = Callable[[KeptConnection], None]
JOIN_SECONDS = 5.0


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

    def _work(self) -> None:
        store = KeptConnection(self._connect, "consumer database")
        try:
            while task := self._tasks.get():
                task(store)
        finally:
            store.close()
