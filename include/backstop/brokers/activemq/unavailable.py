"""Says that ActiveMQ did not answer, in three parts."""

from __future__ import annotations

from backstop.errors import BrokerUnavailable


def unavailable(doing: str, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"ActiveMQ did not answer while {doing}: {why}.",
        kept="Nothing was decided from its silence, and no message was lost by asking.",
        next_step="Check that the broker runs, that the queues of topic and group exist and that the logins for STOMP and "
        "Jolokia may use them; then run this again.",
    )
