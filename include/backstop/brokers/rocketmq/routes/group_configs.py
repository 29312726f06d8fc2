"""Reads what the groups of a master are set to.

All of them at once: asked for one that it does not have, a broker with autoCreateSubscriptionGroup makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable

Configs = dict[str, dict[str, Any]]
"""What each group is set to, by its encoded name."""


def group_configs(
    pool: Pool, masters: Sequence[str], deadline: float, doing: str
) -> list[Configs | None]:
    """Of each master, in order; null where this login may not read it. Raises BrokerUnavailable."""
    asked = [(master, Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)) for master in masters]
    answers = require_answers(pool, asked, deadline, doing, also=(ResponseCode.NO_PERMISSION,))
    found: list[Configs | None] = []
    for answer in answers:
        if answer.code == ResponseCode.NO_PERMISSION:
            found.append(None)
            continue
        try:
            groups = answer.json()["subscriptionGroupTable"]
            found.append({str(name): dict(one) for name, one in groups.items()})
        except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
            raise unavailable(
                doing, f"an answer that cannot be read: {type(error).__name__}: {error}"
            ) from error
    return found
