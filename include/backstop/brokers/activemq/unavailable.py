"""Says that ActiveMQ did not answer, in three parts."""

from __future__ import annotations

import re

from backstop.model.errors import BrokerUnavailable

_REFUSED = re.compile(r"(?i)password is invalid|not authorized|answered 40[13]")


def unavailable(doing: str, why: str) -> BrokerUnavailable:
    said = f"refused {doing}" if _REFUSED.search(why) else f"did not answer while {doing}"
    return BrokerUnavailable(
        f"ActiveMQ {said}: {why}.",
        unaffected="Nothing was decided from its silence, and no message was lost by asking.",
        next_step="Check that the broker runs, that the queues of topic and group exist and that the logins for STOMP and "
        "Jolokia may use them; then run this again.",
    )
