"""Asks a group's consumers which queues they hold and have locked; the brokers pass the question on.

The lock of an ordered group is kept by its broker, which does not tell. (Request 41, which reads like the question, takes it.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from backstop.brokers.protocol import Holder
from backstop.brokers.rocketmq.consumer.members import ask_members, ask_running_info
from backstop.brokers.rocketmq.inspect.clock import as_datetime
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.message.names import encode_group, queue_number, retry_topic
from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.frames import Command, Malformed
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import ContractBroken

CLIENT_SECONDS = 5.0
"""A consumer that does not answer the broker is waited for no longer. (The broker itself waits for ten seconds.)"""
_NOBODY = "no consumer for this group"
"""The error by which a broker answers for a group without consumers."""
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


def holders(
    pool: Pool,
    reader: ProgressReader,
    brokers: tuple[str, ...] | None,
    topic: str,
    group: str,
    deadline: float,
) -> list[Holder]:
    """One for each queue and consumer that has it, and one for each consumer that does not tell, by queue.

    BrokerUnavailable when a master does not answer; a consumer that does not is one that does not tell.
    """
    doing = f"looking for the consumers of the group {group!r}"
    name, masters, _ = reader.find(topic, doing, deadline)
    found: list[Holder] = []
    for client, info in running_infos(pool, group, masters, doing, deadline).items():
        try:
            held = (
                [
                    Holder(
                        client,
                        queue_number(queue["brokerName"], int(queue["queueId"]), brokers),
                        locked,
                        at if locked else None,
                    )
                    for queue, locked, at in _queues(info)
                    if queue["topic"] == name
                ]
                if info is not None
                else [Holder(client, None)]
            )
        except _UNREADABLE:
            held = [
                Holder(client, None)
            ]  # a client of another kind: that it is connected is all that is known of it
        found += held
    return sorted(found, key=lambda one: (one.queue_id is None, one.queue_id or 0, one.consumer))


def why_no_retry(
    pool: Pool, reader: ProgressReader, topic: str, group: str, deadline: float
) -> str | None:
    """Why a copy must not go to the retry topic of the group now; null: it may. Raises BrokerUnavailable.

    While a group holds a lock, of whatever topic, its broker writes what is sent to its retry topic into its dead-letter queue.
    And consumers that POP through the proxy read other retry topics than this one.
    """
    doing = f"looking whether a copy can go to the retry topic of the group {group!r}"
    _, masters, _ = reader.find(topic, doing, deadline)
    locked, read = 0, set()
    infos = running_infos(pool, group, masters, doing, deadline)
    for client, info in infos.items():
        try:
            if info is None:
                raise ValueError(client)
            locked += sum(one for _, one, _ in _queues(info))
            read |= {str(one["topic"]) for one in info.get("subscriptionSet") or ()}
        except _UNREADABLE:
            return f"its consumer {client} does not say whether the group consumes in order"
    if locked:
        return (
            f"the group consumes in order and has {locked} queues locked: RocketMQ would move a copy from its retry topic to its "
            "dead letters"
        )
    if infos and retry_topic(group) not in read:
        return "none of its consumers reads its retry topic"
    return None


def running_infos(
    pool: Pool, group: str, masters: Mapping[str, str], doing: str, deadline: float
) -> dict[str, dict[str, Any] | None]:
    """What each consumer of the group (ours) says of itself, by its client id; null: it does not tell."""
    try:
        name = encode_group(group)
    except ContractBroken as error:
        raise unavailable(doing, error.what) from error
    clients = _clients(pool, name, masters, doing, deadline)
    requests = [(address, ask_running_info(name, client)) for client, address in clients.items()]
    answers = pool.ask_all(requests, min(deadline, time.monotonic() + CLIENT_SECONDS))
    found: dict[str, dict[str, Any] | None] = {}
    for client, answer in zip(clients, answers, strict=True):
        found[client] = None
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            try:
                info = answer.json()
            except Malformed:
                continue
            found[client] = info if isinstance(info, dict) else None
    return found


def _clients(
    pool: Pool, group: str, masters: Mapping[str, str], doing: str, deadline: float
) -> dict[str, str]:
    """client id -> a master that it is connected to."""
    asked = [(address, ask_members(group)) for address in masters.values()]
    found: dict[str, str] = {}
    answers = require_answers(pool, asked, deadline, doing, also=(ResponseCode.SYSTEM_ERROR,))
    for (address, _), answer in zip(asked, answers, strict=True):
        if answer.code != ResponseCode.SUCCESS:
            if not (answer.remark or "").startswith(_NOBODY):
                raise unavailable(doing, f"{address} says {answer.said()}")
            continue
        try:
            for client in answer.json()["consumerIdList"]:
                found.setdefault(str(client), address)
        except (Malformed, KeyError, TypeError) as error:
            raise unavailable(
                doing, f"a list of consumers that cannot be read: {type(error).__name__}: {error}"
            ) from error
    return found


def _queues(info: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool, datetime]]:
    """(queue, locked, when last) by one consumer's own word. Raises what _UNREADABLE names."""
    # A client calls every queue of its own locked; a lock it is in an ordered group only.
    ordered = str((info.get("properties") or {}).get("PROP_CONSUMEORDERLY", "")).lower() == "true"
    for table in (info.get("mqTable") or {}, info.get("mqPopTable") or {}):
        for key, state in table.items():
            if not state.get("droped"):
                locked = ordered and bool(state.get("locked"))
                yield (
                    fastjson.members(key),
                    locked,
                    as_datetime(int(state["lastLockTimestamp"]) if locked else 0),
                )
