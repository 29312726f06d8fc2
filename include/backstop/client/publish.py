"""Send after the commit, and settle: a message ends as sent, refused or unknown, or is left to Backstop.

Before a publish one read on the producer database shows that the stub is committed and the attempt still
ours, with time left; so a rolled back change is never announced, and a process that wakes up late sends
nothing.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress
from typing import Any

from backstop.brokers.protocol import Broker, Receipt
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.stub_table import stub_table
from backstop.client.stub_writer import Recorded
from backstop.leases.lease import error_text
from backstop.model.errors import ContractBroken
from backstop.model.records import SEND_HEADER, Key

BATCH = 500
"""Messages in one publish and one settle: few enough for max_send_duration."""

log = logging.getLogger(__name__)


class SendState(StrEnum):
    """How a send ended for the producer."""

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    LEFT = "left"
    """Too late, or Backstop has taken it up: nothing was published here, Backstop answers for it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The end of one send. `settled`: the outcome is in the database; else Backstop will call it unknown."""

    key: Key
    state: SendState
    receipt: Receipt | None = None
    settled: bool = False


def send(
    recorded: Recorded,
    broker: Broker,
    connect: Connect | KeptConnection,
    *,
    broker_name: str | None = None,
) -> Sent:
    """Publish one recorded message after its transaction was committed, and store how it ended.

    `connect` opens a connection to the producer database, which is closed at the end; a KeptConnection is
    kept. It is never the connection of a transaction that is still open. `broker_name` is the broker's in
    backstop.yaml.

    Raises ContractBroken (nothing published) when the stub is not committed, was recorded with send=False, or
    is to be delivered later; StoreUnavailable (nothing published) when the producer database does not answer.
    """
    (sent,) = send_many([recorded], broker, connect, broker_name=broker_name)
    return sent


def send_many(
    recorded: Sequence[Recorded],
    broker: Broker,
    connect: Connect | KeptConnection,
    *,
    broker_name: str | None = None,
) -> list[Sent]:
    """As `send`, in batches of one publish and one settle each; the ends in order.

    A batch with a stub that is not committed is published not at all.
    """
    keys: set[tuple[str, str]] = set()
    for one in recorded:
        if one.token is None:
            raise _not_ours_to_send(
                one, "was recorded with send=False", "Leave it: Backstop sends it."
            )
        key = (one.message.topic, one.message.message_id)
        if key in keys:
            raise _not_ours_to_send(one, "is given twice", "A recorded message is sent once.")
        keys.add(key)
    if isinstance(connect, KeptConnection):
        return _send_all(recorded, broker, connect, broker_name)
    store = KeptConnection(connect, "producer database")
    try:
        return _send_all(recorded, broker, store, broker_name)
    finally:
        store.close()


def settle(
    recorded: Sequence[Recorded],
    receipts: Sequence[Receipt],
    connect: KeptConnection,
    *,
    broker_name: str | None = None,
) -> set[Key]:
    """Store how sends ended: for programs that publish with a broker client of their own.

    Returns the keys whose attempt was still the caller's. Raises StoreUnavailable.
    """
    values: dict[str, Any] = {
        **_keys(recorded),
        "outcomes": [str(receipt.outcome) for receipt in receipts],
        "queue_ids": [r.position.queue_id if r.position else None for r in receipts],
        "queue_offsets": [r.position.offset if r.position else None for r in receipts],
        "queue_epochs": [r.position.epoch if r.position else None for r in receipts],
        "broker_message_ids": [receipt.broker_message_id for receipt in receipts],
        "errors": [None if r.error is None else error_text(r.error) for r in receipts],
        "max_send_seconds": [one.policy.max_send_duration.total_seconds() for one in recorded],
        "broker": broker_name,
    }
    return connect.retried(
        lambda connection: stub_table(connection).settle(connection, values), is_one_statement=True
    )


def _send_all(
    recorded: Sequence[Recorded], broker: Broker, store: KeptConnection, broker_name: str | None
) -> list[Sent]:
    ends: list[Sent] = []
    for start in range(0, len(recorded), BATCH):
        ends += _send_batch(recorded[start : start + BATCH], broker, store, broker_name)
    return ends


def _send_batch(
    batch: Sequence[Recorded], broker: Broker, store: KeptConnection, broker_name: str | None
) -> list[Sent]:
    looked_at = time.monotonic()
    with store.one_statement() as connection:
        looked = stub_table(connection).look(connection, _keys(batch))
        seen = {(row["topic"], row["message_id"]): row for row in looked}
        found = [seen[one.message.topic, one.message.message_id] for one in batch]
        for one, row in zip(batch, found, strict=True):
            _refuse_unready(one, row)
    # Time that passed here since the look has passed for the attempt too, whatever this process was doing.
    passed = time.monotonic() - looked_at
    in_time = [_in_time(one, row, passed) for one, row in zip(batch, found, strict=True)]
    ready = list(compress(batch, in_time))
    if not ready:
        return [Sent(one.message.key, SendState.LEFT) for one in batch]
    receipts = broker.publish(
        [one.message.with_headers({**one.message.headers, SEND_HEADER: "1"}) for one in ready]
    )
    settled: set[Key] = set()
    try:
        settled = settle(ready, receipts, store, broker_name=broker_name)
    except Exception as error:  # noqa: BLE001 - whatever the driver raises (a missing privilege, too), the messages are out
        # Only their outcome is not stored, and Backstop treats it as unknown. Raising here would tell the caller that the
        # send failed, and who sends again by hand sends twice.
        log.warning("%d sends have no stored outcome. %s", len(ready), error)
    for reason in sorted({receipt.error or "" for receipt in receipts if receipt.refused_for_good}):
        log.error("The broker refused for good, and Backstop will ask a person: %s", reason)
    ends = (
        Sent(key, SendState(receipt.outcome.value), receipt, key in settled)
        for key, receipt in zip([one.message.key for one in ready], receipts, strict=True)
    )
    return [
        next(ends) if was_ready else Sent(one.message.key, SendState.LEFT)
        for one, was_ready in zip(batch, in_time, strict=True)
    ]


def _refuse_unready(one: Recorded, row: Mapping[str, Any]) -> None:
    if row["in_transaction"] or not row["recorded"]:
        raise _not_ours_to_send(
            one,
            "is not committed: its transaction is still open, or was rolled back",
            "Call send after the commit, with a connection that is in no transaction.",
        )
    if row["early_seconds"]:
        raise _not_ours_to_send(
            one,
            f"is to be delivered in {row['early_seconds']:.0f} s, which this client's brokers cannot do",
            "Record it with send=False: Backstop sends it when it is due, as it will do with this one.",
        )


def _in_time(one: Recorded, row: Mapping[str, Any], passed: float) -> bool:
    if not row["ours"]:
        return False
    return bool(row["seconds_left"] - passed > one.policy.max_send_duration.total_seconds())


def _keys(batch: Sequence[Recorded]) -> dict[str, Any]:
    return {
        "topics": [one.message.topic for one in batch],
        "message_ids": [one.message.message_id for one in batch],
        "tokens": [one.token for one in batch],
    }


def _not_ours_to_send(one: Recorded, why: str, next_step: str) -> ContractBroken:
    return ContractBroken(
        f"{one.message.message_id!r} of {one.message.topic!r} {why}.",
        unaffected="Nothing of this batch was published.",
        next_step=next_step,
    )
