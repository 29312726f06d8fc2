"""A producer and a consumer of whichever version of the client is on the path; run as a process of its own.

Arguments: producer|consumer, database URL, broker URL, ids. Prints one line a message: the end of a send, or what was consumed.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import psycopg2

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Consumer, record, send


def main() -> None:
    """Everything by the client's public names."""
    what, database, broker_url, *ids = sys.argv[1:]

    def connect() -> Any:
        return psycopg2.connect(database)

    with RedisStreams(broker_url) as broker:
        if what == "producer":
            for message_id in ids:
                connection = connect()
                with connection:
                    recorded = record(connection, "orders", b"{}", message_id=message_id)
                connection.close()
                print(
                    message_id,
                    send(recorded, broker, connect, broker_name="embedded").state,
                    flush=True,
                )
            return
        subscription = broker.subscribe("billing", ["orders"], "worker")

        def handle(_: Any, message: Any, __: Any) -> None:
            print(message.message_id, "consumed", flush=True)

        consumer = Consumer(subscription, connect, "billing", handle, wait=timedelta(seconds=1))
        consumer.run_once()
        consumer.close()
        subscription.close()


if __name__ == "__main__":
    main()
