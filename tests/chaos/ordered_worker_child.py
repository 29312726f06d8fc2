"""An ordered consumer in a process of its own, so that it can be frozen and killed.

Argument: JSON with the addresses, the member's name and the message whose handler waits. It writes a line when it starts and
one when it waits; there it goes on at a line of its standard input. At SIGTERM it hands over and writes its counts.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg2

from backstop.brokers.redis_streams import RedisStreams
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.client import OrderedConsumer, Retries, run_until_signal
from client_world import GROUP, open_broker
from ordered_world import write_effect

SOON = timedelta(milliseconds=50)


def main(given: dict[str, Any]) -> None:
    def handle(connection: Any, message: Any, work: Any) -> None:
        time.sleep(given["takes"])
        write_effect(connection, message, given["member"])
        if message.message_id == given["waits"]:
            print(json.dumps(["waits", message.message_id]), flush=True)
            sys.stdin.readline()

    lease, group = timedelta(seconds=given["lease"]), given.get("group", GROUP)
    with opened(given["broker"]) as broker:
        consumer = OrderedConsumer(
            broker.subscribe_owned(group, [given["topic"]], given["member"]),
            lambda: psycopg2.connect(given["consumer"]),
            group,
            handle,
            member=given["member"],
            workers=2,
            lease=lease,
            queue_lease=lease,
            drain_within=lease,
            beat=SOON,
            retry_after=SOON,
            retries=Retries(3, SOON, SOON),
            fetch=50,
        )
        print(json.dumps(["started"]), flush=True)
        counts = run_until_signal(consumer, stop_within=timedelta(seconds=60))
        consumer.close()
    print(json.dumps(["ended", dict(counts)]), flush=True)


def opened(url: str) -> RedisStreams | RocketMQ:
    return RocketMQ(url) if url.startswith("rocketmq:") else open_broker(url)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
