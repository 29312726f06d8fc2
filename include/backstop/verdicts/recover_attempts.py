"""Recovers attempts that nobody settled in time, in every shard: a resend run and a reconcile run begin with it.

A stub past its `attempt_deadline` loses its token, and its attempt is recorded as unknown. Without it a producer that died
between publish and settle would leave a message that can neither be confirmed nor withdrawn.
"""

from __future__ import annotations

from backstop.errors import Unavailable
from backstop.verdicts.sources import Sources

_BATCH = 1_000


def recover_attempts(sources: Sources) -> int:
    """How many were recovered. A shard that does not answer is in `sources.unreachable`; the others are recovered."""
    settings = sources.settings
    shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
    recovered = 0
    for name in settings.producers:
        try:
            while found := sources.shard(name).recover(_BATCH, shortest.total_seconds()):
                recovered += len(found)
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
    return recovered
