"""Publishes one batch of messages whose send numbers are this worker's, while its claim has time left."""

from __future__ import annotations

import json
from collections.abc import Mapping

from backstop.brokers.protocol import Broker, Receipt
from backstop.model.records import GROUPS_HEADER, SEND_HEADER, Key, Message, Outcome
from backstop.requests.policy import Send
from backstop.resend.claim import Request


def as_copy(message: Message, send_number: int, groups: tuple[str, ...] | None) -> Message:
    """The message as it goes out again: the same content and headers, its send number, and for whom it is
    (null: all)."""
    headers = {
        name: text
        for name, text in message.headers.items()
        if name not in (GROUPS_HEADER, SEND_HEADER)
    }
    headers[SEND_HEADER] = str(send_number)
    if groups is not None:
        headers[GROUPS_HEADER] = json.dumps(list(groups), ensure_ascii=False)
    return message.with_headers(headers)


def publish(
    broker: Broker,
    requests: Mapping[int, Request],
    sends: Mapping[int, Send],
    contents: Mapping[Key, Message],
) -> dict[int, Receipt]:
    """One receipt for each request. A message without content (its stub was deleted meanwhile) is refused for
    good."""
    receipts: dict[int, Receipt] = {}
    by_way: dict[str | None, dict[int, Message]] = {}
    for request_id, request in requests.items():
        message, send = contents.get(request.key), sends[request_id]
        if message is None:
            receipts[request_id] = not_published("the stub is not there any more", for_good=True)
            continue
        alone = send.groups[0] if send.route == "group" and send.groups else None
        by_way.setdefault(alone, {})[request_id] = as_copy(
            message, request.send_number, send.groups
        )
    for group, copies in by_way.items():
        answers = broker.publish(list(copies.values()), group=group)
        receipts.update(zip(copies, answers, strict=True))
    return receipts


def not_published(why: str, *, for_good: bool = False) -> Receipt:
    """The receipt of a number that was taken and certainly never reached the broker."""
    return Receipt(Outcome.REFUSED, error=f"not published: {why}", refused_for_good=for_good)
