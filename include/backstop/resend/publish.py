"""Publishes one batch of messages whose send numbers are this worker's, while its claim has time left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from backstop.brokers.protocol import Broker, Receipt
from backstop.model.records import GROUPS_HEADER, SEND_HEADER, Message, Outcome
from backstop.requests.policy import Send
from backstop.resend.claim import Request


def as_copy(message: Message, send_number: int, groups: tuple[str, ...] | None) -> Message:
    """The message as it goes out again: the same content and headers, its send number, and for whom it is
    (null: all)."""
    headers = {**message.headers, SEND_HEADER: str(send_number)}
    headers.pop(GROUPS_HEADER, None)
    if groups is not None:
        headers[GROUPS_HEADER] = json.dumps(list(groups), ensure_ascii=False)
    return message.with_headers(headers)


def publish(
    broker: Broker,
    taken: Mapping[int, tuple[Request, Message]],
    sends: Mapping[int, Send],
    has_time: Callable[[], bool],
) -> dict[int, Receipt]:
    """One receipt for each request that was handed to the broker. A batch takes several ways, the topic and each group's own;
    each may take as long as a send may, so none begins unless `has_time` says so."""
    receipts: dict[int, Receipt] = {}
    by_way: dict[str | None, dict[int, Message]] = {}
    for request_id, (request, message) in taken.items():
        send = sends[request_id]
        alone = send.groups[0] if send.route == "group" and send.groups else None
        by_way.setdefault(alone, {})[request_id] = as_copy(
            message, request.send_number, send.groups
        )
    for group, copies in by_way.items():
        if not has_time():
            break
        answers = broker.publish(list(copies.values()), group=group)
        receipts.update(zip(copies, answers, strict=True))
    return receipts


def not_published(why: str, *, for_good: bool = False) -> Receipt:
    """The receipt of a number that was taken and certainly never reached the broker."""
    return Receipt(Outcome.REFUSED, error=f"not published: {why}", refused_for_good=for_good)
