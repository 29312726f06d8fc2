"""Turns settings into stores; the only place that knows which kinds there are."""

from __future__ import annotations

from datetime import timedelta

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.sql.connection import STATEMENT_TIMEOUT
from backstop.stores.audit import StubAudit
from backstop.stores.lake.stores import LakeLogs, LakeStubs
from backstop.stores.leases import Leases
from backstop.stores.mapped.logs import MappedLogs
from backstop.stores.mapped.overlaid import OverlaidStubs
from backstop.stores.mapped.stubs import ZONES, MappedStubAudit, MappedStubs
from backstop.stores.mariadb.audit import MariaStubAudit
from backstop.stores.mariadb.books import MariaBooks
from backstop.stores.mariadb.leases import MariaLeases
from backstop.stores.mariadb.logs import MariaLogs
from backstop.stores.mariadb.purge import MariaLogPurge, MariaStubPurge
from backstop.stores.mariadb.stubs import MariaStubs
from backstop.stores.postgresql.audit import PostgresStubAudit
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.parking import PostgresParking
from backstop.stores.postgresql.purge import PostgresLogPurge, PostgresStubPurge
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import LogStore, StubStore
from backstop.stores.purge import LogPurge, StubPurge


def open_stub_store(
    settings: Settings,
    connections: Connections,
    shard: str,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> StubStore:
    """The producer database `shard`, each of whose statements may take `patience`; nothing is connected before its first use. Raises
    ConfigurationError."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    if settings.producers[shard].mapping is not None:
        return open_mapped_stubs(settings, connections, shard, patience)
    url = connections.url(settings.producers[shard].connection)
    if _stubs_in_mariadb(settings, shard):
        return MariaStubs(shard, url, patience)
    return PostgresStubs(shard, url, patience)


def open_mapped_stubs(
    settings: Settings,
    connections: Connections,
    shard: str,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> MappedStubs:
    """The mapped table `shard`, to be looked at; nothing is connected before its first use. Raises ConfigurationError."""
    store = settings.producers[shard]
    assert store.mapping is not None
    control = connections.url(settings.control)
    groups = {group for t in store.mapping.topics.values() for group in settings.groups_of(t)}
    logs = [settings.consumers[settings.groups[group].store].mapping for group in groups]
    kept_for_good = all(log is not None and log.kept is None for log in logs)
    doubt = timedelta(0) if kept_for_good else ZONES
    at = connections.url(store.connection)
    if store.mapping.is_lake:
        return LakeStubs(shard, at, control, store.mapping, doubt)
    if store.level == "observe":
        return MappedStubs(shard, at, control, store.mapping, doubt, patience)
    return OverlaidStubs(shard, at, control, store.mapping, doubt, store.level, patience)


def open_mapped_logs(
    settings: Settings,
    connections: Connections,
    store: str,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> MappedLogs:
    """The mapped inbox `store`; nothing is connected before its first use. Raises ConfigurationError."""
    its = settings.consumers[store]
    assert its.mapping is not None
    control = connections.url(settings.control)
    at = connections.url(its.connection)
    if its.mapping.is_lake:
        return LakeLogs(store, at, control, its.mapping)
    return MappedLogs(store, at, control, its.mapping, patience)


def open_log_store(
    settings: Settings,
    connections: Connections,
    store: str,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> LogStore:
    """The consumer database `store`, each of whose statements may take `patience`; nothing is connected before its first use. Raises
    ConfigurationError."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    if settings.consumers[store].mapping is not None:
        return open_mapped_logs(settings, connections, store, patience)
    url = connections.url(settings.consumers[store].connection)
    if _in_mariadb(settings, store):
        return MariaLogs(store, url, patience)
    return PostgresLogs(store, url, patience)


def open_leases(settings: Settings, connections: Connections, store: str) -> Leases:
    """The leases in the consumer database `store`; nothing is connected before their first use. Raises ConfigurationError."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    _require_own(settings.consumers[store].mapping, store)
    url = connections.url(settings.consumers[store].connection)
    return MariaLeases(store, url) if _in_mariadb(settings, store) else PostgresLeases(store, url)


def open_parking(
    settings: Settings,
    connections: Connections,
    store: str,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> PostgresParking:
    """Ordered consumption in the consumer database `store`, each of whose statements may take `patience`; nothing is connected before
    its first use."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    _require_own(settings.consumers[store].mapping, store)
    if _in_mariadb(settings, store):
        raise ConfigurationError(
            f"{store} is a MariaDB database, where no queue is owned and no ordering key is parked.",
            unaffected="Nothing was read or changed there.",
            next_step="Ordered consumption needs a consumer database in PostgreSQL (docs/how-to/mariadb.md).",
        )
    url = connections.url(settings.consumers[store].connection)
    return PostgresParking(store, url, patience)


def open_mariadb_books(settings: Settings, connections: Connections, store: str) -> MariaBooks:
    """The consumers' books in the MariaDB database `store`; nothing is connected before its first use."""
    return MariaBooks(store, connections.url(settings.consumers[store].connection))


def open_stub_purge(settings: Settings, connections: Connections, shard: str) -> StubPurge:
    """What retention does in the producer database `shard`; nothing is connected before its first use."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    _require_own(settings.producers[shard].mapping, shard)
    url = connections.url(settings.producers[shard].connection)
    if _stubs_in_mariadb(settings, shard):
        return MariaStubPurge(shard, url)
    return PostgresStubPurge(shard, url)


def open_stub_audit(settings: Settings, connections: Connections, shard: str) -> StubAudit:
    """What the audit reads in the producer database `shard`; nothing is connected before its first use."""
    if shard not in settings.producers:
        raise _not_named("producers", shard, settings.producers)
    if settings.producers[shard].mapping is not None:
        return MappedStubAudit(shard, connections.url(settings.control))
    url = connections.url(settings.producers[shard].connection)
    if _stubs_in_mariadb(settings, shard):
        return MariaStubAudit(shard, url)
    return PostgresStubAudit(shard, url)


def open_log_purge(settings: Settings, connections: Connections, store: str) -> LogPurge:
    """What retention does in the consumer database `store`; nothing is connected before its first use."""
    if store not in settings.consumers:
        raise _not_named("consumers", store, settings.consumers)
    _require_own(settings.consumers[store].mapping, store)
    url = connections.url(settings.consumers[store].connection)
    if _in_mariadb(settings, store):
        return MariaLogPurge(store, url)
    return PostgresLogPurge(store, url)


def _in_mariadb(settings: Settings, store: str) -> bool:
    return settings.consumers[store].kind == "mariadb"


def _stubs_in_mariadb(settings: Settings, shard: str) -> bool:
    return settings.producers[shard].kind == "mariadb"


def _require_own(mapping: object, name: str) -> None:
    """In another program's table nothing is changed."""
    if mapping is not None:
        raise ConfigurationError(
            f"{name} is a mapped table of another program.",
            unaffected="Nothing was changed there, and never is.",
            next_step="Leave it out; retention, leases and ordering keys there are its own program's.",
        )


def _not_named(section: str, name: str, known: object) -> ConfigurationError:
    names = ", ".join(known) if isinstance(known, dict) else ""
    return ConfigurationError(
        f"backstop.yaml names no {section} {name!r}.",
        unaffected="Nothing was read or changed.",
        next_step=f"Name it under {section}, or use one of: {names}.",
    )
