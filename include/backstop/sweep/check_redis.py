"""Says of each Redis that holds leases, and of each store of foreign ones, whether it answers and keeps what it must."""

from __future__ import annotations

from collections.abc import Iterator

from backstop.brokers.protocol import Finding
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.leases.redis_exchange import RedisExchange
from backstop.model.errors import BackstopError
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.redis_bucket import read_conflicts

OLDEST = (7, 0)


def check_leases(settings: Settings, connections: Connections) -> Iterator[Finding]:
    """One or more findings for every `leases`, `redis_guards` and `foreign_leases` of backstop.yaml; none is an error."""
    for group, its in settings.groups.items():
        if its.leases is not None:
            yield from _one(
                connections, f"front of {group}", its.leases.redis, its.leases.cluster, alone=False
            )
    for name, guard in settings.redis_guards.items():
        yield from _one(connections, f"redis of {name}", guard.redis, guard.cluster, alone=True)
        yield from _conflicts(connections, name, guard.redis, guard.cluster)
    for name in settings.foreign_leases:
        subject = f"foreign {name}"
        try:
            foreign = open_foreign(settings, connections, name)
            try:
                foreign.count(1)
            finally:
                foreign.close()
            yield Finding(subject, True, "answers")
        except BackstopError as error:
            yield Finding(subject, False, error.what, error.next_step)


def _conflicts(
    connections: Connections, group: str, reference: str, cluster: bool
) -> Iterator[Finding]:
    """Where a database holds the leases its log shows them; here nothing else would."""
    exchange = RedisExchange(connections.url(reference), cluster=cluster)
    try:
        number, some = read_conflicts(exchange, group)
    except BackstopError:
        return  # that it does not answer is said already
    finally:
        exchange.close()
    shown = ", ".join(f"{key.topic} {key.message_id}" for key in some)
    yield Finding(
        f"redis of {group}: conflicts",
        number == 0,
        f"{number}{f': {shown}' if shown else ''}",
        "These ids came with another content than before, and were not processed: see which producer uses an id twice.",
    )


def _one(
    connections: Connections, subject: str, reference: str, cluster: bool, *, alone: bool
) -> Iterator[Finding]:
    exchange = None
    try:
        exchange = RedisExchange(connections.url(reference), cluster=cluster)
        for facts in exchange.info("server", "memory"):
            version = str(facts.get("redis_version", "0.0"))
            good = tuple(int(part) for part in version.split(".")[:2]) >= OLDEST
            yield Finding(
                subject, good, f"answers, version {version}", "Run Redis 7.0 or Valkey, or later."
            )
            if alone:
                policy = str(facts.get("maxmemory_policy", "unknown"))
                yield Finding(
                    f"{subject}: eviction",
                    policy == "noeviction",
                    policy,
                    "Set maxmemory-policy noeviction: what is evicted is done again.",
                )
    except BackstopError as error:
        yield Finding(subject, False, error.what, error.next_step)
    finally:
        if exchange is not None:
            exchange.close()
