"""Recovers attempts that nobody settled in time, in every shard: every resend run and every reconcile run begins with it.

A stub past its `attempt_deadline` loses its token, and its attempt is recorded as unknown. Without it a producer that died
between publish and settle would leave a message that can neither be confirmed nor withdrawn.
"""

from __future__ import annotations

from typing import NamedTuple

from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable

_BATCH = 1_000


class Recovered(NamedTuple):
    """How many attempts were recovered, and the shards that failed, by name."""

    attempts: int
    failed: dict[str, Unavailable]


def recover_attempts(sources: Sources) -> Recovered:
    """Each shard by itself: one that fails keeps nobody else's attempts from being recovered."""
    settings = sources.settings
    shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
    attempts, failed = 0, {}
    for name in settings.producers:
        try:
            while found := sources.shard(name).recover(_BATCH, shortest.total_seconds()):
                attempts += len(found)
        except Unavailable as error:
            failed[name] = error
    return Recovered(attempts, failed)
