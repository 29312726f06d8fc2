"""One worker of the demo's group that consumes in order: books each account's entries one after the other.

An account that is locked refuses its entries until whoever runs the demo opens it: the first one is the poison of its key.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from backstop.brokers.owned import OwnedSubscription
from backstop.client import OrderedConsumer, Retries, Work, run_until_signal
from backstop.model.records import Message
from backstop.sql.named import load
from backstop_lab.shop.databases import connect
from backstop_lab.shop.demand import ACCOUNT_IS_OPEN, LOCKED
from backstop_lab.shop.own_broker import own_broker
from backstop_lab.shop.traffic_consumer import end_with_owner

BEAT = timedelta(milliseconds=250)
_SQL = load("backstop_lab.shop", "business.sql")


class AccountLocked(ValueError):
    """The account takes no entries now."""


class Handler:
    """Writes one effect row for each entry."""

    def __init__(self, group: str, member: str, conditions: Path) -> None:
        self._group, self._member, self._conditions = group, member, conditions

    def __call__(self, connection: Any, message: Message, work: Work) -> None:
        if message.partition_key == LOCKED and not (self._conditions / ACCOUNT_IS_OPEN).exists():
            raise AccountLocked("the account takes no entries until it is opened")
        entry: dict[str, Any] = json.loads(message.content)
        with connection.cursor() as cursor:
            cursor.execute(
                _SQL["work_done"],
                {
                    "consumer_group": self._group,
                    "worker": self._member,
                    "topic": message.topic,
                    "message_id": message.message_id,
                    "amount": entry["amount"],
                    "fence": work.fence,
                },
            )


def main(arguments: list[str]) -> int:
    places = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    threading.Thread(target=end_with_owner, args=(places["owner"],), daemon=True).start()
    group, member = places["group"], f"{places['worker']}-{os.getpid()}"
    lease, retry_after = (
        timedelta(seconds=places["policy"][name]) for name in ("lease", "retry_after")
    )
    with own_broker(places) as broker:
        subscription: OwnedSubscription = cast(Any, broker).subscribe_owned(
            group, places["topics"], member
        )
        consumer = OrderedConsumer(
            subscription,
            lambda: connect(places["database"]),
            group,
            Handler(group, member, Path(places["conditions"])),
            member=member,
            workers=2,
            lease=lease,
            drain_within=timedelta(seconds=15),
            beat=BEAT,
            retry_after=retry_after,
            retries=Retries(backoff=timedelta(milliseconds=200)),
            owner_host=member,
        )
        counts = run_until_signal(consumer, stop_within=timedelta(seconds=10))
        consumer.close()
        subscription.close()
    print(counts, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
