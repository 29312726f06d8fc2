"""Says that RocketMQ gave no answer that can be used, in three parts."""

from __future__ import annotations

from backstop.model.errors import BrokerUnavailable


def unavailable(doing: str, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"RocketMQ gave no usable answer while {doing}: {why.rstrip('.')}.",
        unaffected="Nothing was decided from its silence, and no message was lost by asking.",
        next_step="Check that the name servers and every master broker run, that topic and group exist and that the login may "
        "use them; then run this again.",
    )
