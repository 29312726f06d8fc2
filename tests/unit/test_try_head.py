"""Whatever a handler raises is its message's failure, and ends no thread of the pool."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstop.client import Work
from backstop.client.keep_connection import KeptConnection
from backstop.client.lanes import Lane
from backstop.client.try_head import Result, Tried, try_head
from backstop.client.ways import Leased
from backstop.client.worker_pool import Results, WorkerPool
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.parking import InOrder
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.records import Message


@pytest.mark.parametrize(
    "raised", [ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt]
)
def test_a_thread_of_the_pool_outlives_whatever_a_handler_raises(
    raised: type[BaseException],
) -> None:
    def handle(message: Message, work: Work) -> None:
        raise raised

    queue = OwnedQueue("billing", "orders", 0, 1)
    message = Message("orders", "m-1", b"{}")
    head = InOrder(queue, "key", message, Arrival("orders", "m-1"))
    lease = Acquired("billing", "orders", "m-1", "token", 1)
    work = Work(1, 1, threading.Event(), threading.Event())
    results: Results[Result] = Results()

    def task(store: KeptConnection) -> None:
        lane = Lane(queue, "key")
        results.put(try_head(store, Leased(handle), lane, head, lease, work, 0))

    def unreached() -> None:
        raise AssertionError("no connection is needed")

    pool = WorkerPool(unreached, 1)  # type: ignore[arg-type]
    for _ in range(2):
        pool.submit(task)
    results.wait(2, 10)
    pool.close()
    tried = [results.take() for _ in range(2)]
    assert [(one.tried, type(one.error)) for one in tried] == [(Tried.FAILED, raised)] * 2
