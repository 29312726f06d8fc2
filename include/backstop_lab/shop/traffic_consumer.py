"""One worker of a consumer group of the demo: does its work in the transaction that completes the log.

Redis is in front of its leases. What a message may order to befall it stands in `mishap.py`,
what it may die of in `demand.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from backstop.client import Consumer, Work, run_until_signal
from backstop.leases.front import Front
from backstop.leases.redis_exchange import RedisExchange
from backstop.model.records import Message
from backstop.sql.named import load
from backstop_lab.shop.databases import connect
from backstop_lab.shop.demand import Demands
from backstop_lab.shop.ledger import Ledger
from backstop_lab.shop.mishap import Mishaps
from backstop_lab.shop.own_broker import own_broker

_SQL = load("backstop_lab.shop", "business.sql")


class Handler:
    """Writes one effect row for each message that it is given."""

    def __init__(self, group: str, worker: str, mishaps: Mishaps, demands: Demands) -> None:
        self._group, self._worker, self._mishaps, self._demands = group, worker, mishaps, demands

    def __call__(self, connection: Any, message: Message, work: Work) -> None:
        self._mishaps.before_the_effect(message, work)
        with connection.cursor() as cursor:
            cursor.execute(
                _SQL["work_done"],
                {
                    "consumer_group": self._group,
                    "worker": self._worker,
                    "topic": message.topic,
                    "message_id": message.message_id,
                    "amount": self._demands.amount(message, work),
                    "fence": work.fence,
                },
            )
        self._mishaps.before_the_commit(message, work)


def end_with_owner(owner: int) -> None:
    """A worker whose owner is gone must not go on consuming in the background."""
    while os.getppid() == owner:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    places = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    threading.Thread(target=end_with_owner, args=(places["owner"],), daemon=True).start()
    group, worker = places["group"], places["worker"]
    lease, retry_after = (
        timedelta(seconds=places["policy"][name]) for name in ("lease", "retry_after")
    )
    orders, conditions = (
        Path(places[name]) if name in places else None for name in ("orders", "conditions")
    )
    ledger = Ledger(Path(places["ledger"]))
    with own_broker(places) as broker:
        demands = Demands(group, ledger, conditions, broker.capabilities.delivery_limit)
        subscription = broker.subscribe(group, places["topics"], worker)
        consumer = Consumer(
            subscription,
            lambda: connect(places["database"]),
            group,
            Handler(group, worker, Mishaps(group, worker, ledger, orders), demands),
            redis=Front(
                RedisExchange(places["leases"]),
                group,
                lease=lease,
                retry_after=retry_after,
                owner_host=worker,
            ),
            lease=lease,
            retry_after=retry_after,
            owner_host=worker,
        )
        counts = run_until_signal(consumer, stop_within=timedelta(seconds=10))
        consumer.close()
        subscription.close()
    print(counts, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
