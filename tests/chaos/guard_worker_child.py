"""A worker of the guard's fault tests in a process of its own, so that it can be frozen, killed and put out of time.

Argument: JSON with the addresses, the way, the lease and the message whose handler waits. It writes a line with its own clock
when it is ready, and one for every handler that begins; where it waits, it goes on at a line of its standard input. At SIGTERM
it stops and writes its counts.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg2

from backstop.client import (
    Consumer,
    Front,
    RedisExchange,
    leased,
    row_lock,
    run_until_signal,
    transactional,
)
from client_world import GROUP, TOPIC, open_broker
from guard_handlers import apply_under_fence, apply_under_lock, insert_effect
from mariadb import connect_to


def connect(url: str) -> Any:
    return connect_to(url) if url.startswith("mysql") else psycopg2.connect(url)


def main(given: dict[str, Any]) -> None:
    lease = timedelta(seconds=given["lease"])

    def tell(message: Any) -> None:
        print(json.dumps(["begun", message.message_id]), flush=True)
        if message.message_id == given.get("waits"):
            sys.stdin.readline()

    def in_transaction(connection: Any, message: Any, work: Any) -> None:
        insert_effect(connection, message, work)
        tell(message)

    def anywhere(message: Any, work: Any) -> None:
        tell(message)
        apply_under_fence(given["consumer"], message, work)

    def on_a_row(connection: Any, message: Any, work: Any) -> Any:
        found = apply_under_lock(connection, message)
        tell(message)
        return found

    way = {
        "transactional": transactional(in_transaction),
        "leased": leased(anywhere),
        "row_lock": row_lock(on_a_row),
    }
    front = Front(RedisExchange(given["redis"]), GROUP, lease=lease) if given.get("redis") else None
    with open_broker(given["broker"]) as broker:
        consumer = Consumer(
            broker.subscribe(GROUP, [TOPIC], given["name"]),
            lambda: connect(given["consumer"]),
            GROUP,
            way[given["way"]],
            redis=front,
            lease=lease,
            retry_after=timedelta(milliseconds=100),
            batch=given.get("batch", 1),
            wait=timedelta(milliseconds=100),
        )
        print(json.dumps(["started", time.time()]), flush=True)
        counts = run_until_signal(consumer, stop_within=timedelta(seconds=60))
        consumer.close()
    print(json.dumps(["ended", dict(counts)]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
