"""Asks a group's consumers which queues they hold and have locked; the brokers pass the question on.

The lock of an ordered group is kept by its broker, which does not tell. (Request 41, which reads like the question, takes it.)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backstop.brokers.protocol import Holder
from backstop.brokers.rocketmq import fastjson
from backstop.brokers.rocketmq.clock import as_datetime
from backstop.brokers.rocketmq.codes import Said
from backstop.brokers.rocketmq.frames import Answer, Command, Malformed
from backstop.brokers.rocketmq.look import Looker
from backstop.brokers.rocketmq.members import ask_members, ask_running_info
from backstop.brokers.rocketmq.names import encode_group, queue_number
from backstop.brokers.rocketmq.pool import Pool
from backstop.brokers.rocketmq.require_answers import require_answers
from backstop.brokers.rocketmq.unavailable import unavailable
from backstop.errors import ContractBroken

CLIENT_SECONDS = 5.0
"""A consumer that does not answer the broker is waited for no longer. (The broker itself waits for ten seconds.)"""


def holders(
    pool: Pool, looker: Looker, brokers: Sequence[str] | None, topic: str, group: str, deadline: float
) -> list[Holder]:
    """One for each queue and consumer that has it, and one for each consumer that does not tell, by queue.

    BrokerUnavailable when a master does not answer; a consumer that does not is one that does not tell.
    """
    doing = f"looking for the consumers of the group {group!r}"
    name, masters, _ = looker.find(topic, doing, deadline)
    try:
        group_name = encode_group(group)
    except ContractBroken as error:
        raise unavailable(doing, error.what) from error
    clients = _clients(pool, group_name, masters, doing, deadline)
    requests = [(address, ask_running_info(group_name, client)) for client, address in clients.items()]
    answers = pool.ask_all(requests, min(deadline, time.monotonic() + CLIENT_SECONDS))
    found: list[Holder] = []
    for client, answer in zip(clients, answers, strict=True):
        told = _queues(answer, name, brokers) if isinstance(answer, Command) and answer.code == Said.SUCCESS else None
        found += [Holder(client, None)] if told is None else [
            Holder(client, queue, locked, locked_at) for queue, locked, locked_at in told
        ]  # fmt: skip
    return sorted(found, key=lambda one: (one.queue_id is None, one.queue_id or 0, one.consumer))


def why_no_retry(held: Sequence[Holder]) -> str | None:
    """Why a copy must not go to the retry topic of the group whose queues these are; null: it may.

    While a group holds a lock, its broker writes what is sent to its retry topic into its dead-letter queue.
    """
    locked = sum(one.locked for one in held)
    if not locked:
        return None
    return (
        f"the group consumes in order and has {locked} queues locked: RocketMQ would move a copy from its retry topic to its "
        "dead letters"
    )


def _clients(pool: Pool, group: str, masters: Mapping[str, str], doing: str, deadline: float) -> dict[str, str]:
    """client id -> a master that it is connected to."""
    asked = [(address, ask_members(group)) for address in masters.values()]
    found: dict[str, str] = {}
    # A group without consumers is answered with an error.
    for (address, _), answer in zip(
        asked, require_answers(pool, asked, deadline, doing, also=(Said.SYSTEM_ERROR,)), strict=True
    ):
        if answer.code != Said.SUCCESS:
            continue
        try:
            for client in answer.json()["consumerIdList"]:
                found.setdefault(str(client), address)
        except (Malformed, KeyError, TypeError) as error:
            raise unavailable(doing, f"a list of consumers that cannot be read: {type(error).__name__}: {error}") from error
    return found


def _queues(
    answer: Answer, topic: str, brokers: Sequence[str] | None
) -> list[tuple[int, bool, datetime | None]] | None:
    """(queue, locked, since when) by one consumer's own word; null: it cannot be read."""
    found: list[tuple[int, bool, datetime | None]] = []
    try:
        told: dict[Any, Any] = answer.json()
        # A client calls every queue of its own locked; a lock it is in an ordered group only.
        ordered = str((told.get("properties") or {}).get("PROP_CONSUMEORDERLY", "")).lower() == "true"
        tables = [told.get("mqTable") or {}, told.get("mqPopTable") or {}]
        for key, state in (item for table in tables for item in table.items()):
            queue = fastjson.members(key)
            if queue["topic"] != topic or state.get("droped"):
                continue
            number = queue_number(queue["brokerName"], int(queue["queueId"]), tuple(brokers) if brokers is not None else None)
            locked = ordered and bool(state.get("locked"))
            found.append((number, locked, as_datetime(int(state["lastLockTimestamp"])) if locked else None))
    except (Malformed, KeyError, TypeError, ValueError, AttributeError):
        return None  # a client of another kind: that it is connected is all that is known of it
    return found
