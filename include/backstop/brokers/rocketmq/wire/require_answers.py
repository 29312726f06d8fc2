"""Asks many things at once for a look, which needs every answer: one that is missing or bad means that nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.exchange import only_answers
from backstop.brokers.rocketmq.wire.frames import Answer, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.brokers.rocketmq.wire.unavailable import unavailable


def require_answers(
    pool: Pool,
    requests: Sequence[tuple[str, Request]],
    deadline: float,
    doing: str,
    *,
    also: Sequence[int] = (),
) -> list[Answer]:
    """One answer for each (address, request), in order. BrokerUnavailable for one that did not come, or that says another code
    than success and `also`."""
    try:
        answers = only_answers(pool.ask_all(requests, deadline))
    except (ConnectionLost, NotSent) as error:
        raise unavailable(doing, str(error)) from error
    for (address, _), answer in zip(requests, answers, strict=True):
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            raise unavailable(doing, f"{address} says {answer.said()}")
    return answers
