"""Says that RocketMQ did not answer, in three parts."""

from __future__ import annotations

from backstop.errors import BrokerUnavailable


def unavailable(doing: str, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"RocketMQ did not answer while {doing}: {why}.",
        kept="Nothing was decided from its silence, and no message was lost by asking.",
        next_step="Check that the name servers and every master broker run, that topic and group exist and that the login may "
        "use them; then run this again.",
    )
