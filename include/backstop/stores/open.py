"""Turns settings into stores; the only place that knows which kinds there are."""

from __future__ import annotations

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.stores.audit import StubAudit
from backstop.stores.postgresql.audit import PostgresStubAudit
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.parking import PostgresParking
from backstop.stores.postgresql.purge import PostgresLogPurge, PostgresStubPurge
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import LogStore, StubStore
from backstop.stores.purge import LogPurge, StubPurge


def open_stub_store(settings: Settings, connections: Connections, shard: str) -> StubStore:
    """The producer database `shard`; nothing is connected before its first use. Raises ConfigurationError."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    return PostgresStubs(shard, connections.url(settings.producers[shard].connection))


def open_log_store(settings: Settings, connections: Connections, store: str) -> LogStore:
    """The consumer database `store`; nothing is connected before its first use. Raises ConfigurationError."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    return PostgresLogs(store, connections.url(settings.consumers[store].connection))


def open_leases(settings: Settings, connections: Connections, store: str) -> PostgresLeases:
    """The leases in the consumer database `store`; nothing is connected before their first use. Raises ConfigurationError."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    return PostgresLeases(store, connections.url(settings.consumers[store].connection))


def open_parking(settings: Settings, connections: Connections, store: str) -> PostgresParking:
    """Ordered consumption in the consumer database `store`; nothing is connected before its first use."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    return PostgresParking(store, connections.url(settings.consumers[store].connection))


def open_stub_purge(settings: Settings, connections: Connections, shard: str) -> StubPurge:
    """What retention does in the producer database `shard`; nothing is connected before its first use."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    return PostgresStubPurge(shard, connections.url(settings.producers[shard].connection))


def open_stub_audit(settings: Settings, connections: Connections, shard: str) -> StubAudit:
    """What the audit reads in the producer database `shard`; nothing is connected before its first use."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    return PostgresStubAudit(shard, connections.url(settings.producers[shard].connection))


def open_log_purge(settings: Settings, connections: Connections, store: str) -> LogPurge:
    """What retention does in the consumer database `store`; nothing is connected before its first use."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    return PostgresLogPurge(store, connections.url(settings.consumers[store].connection))


def _not_named(section: str, name: str, known: object) -> ConfigurationError:
    names = ", ".join(known) if isinstance(known, dict) else ""
    return ConfigurationError(
        f"backstop.yaml names no {section} {name!r}.",
        kept="Nothing was read or changed.",
        next_step=f"Name it under {section}, or use one of: {names}.",
    )
