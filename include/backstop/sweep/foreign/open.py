"""Turns an entry of `foreign_leases` into its store; the only place that knows which kinds there are."""

from __future__ import annotations

from datetime import timedelta

from backstop.config.connections import Connections
from backstop.config.foreign import DedupListenerMysql, DedupListenerRedis
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.sweep.foreign.protocol import ForeignLeases
from backstop.sweep.foreign.read_keys import (
    dedup_listener_glob,
    dedup_listener_key,
    plain_glob,
    plain_key,
)
from backstop.sweep.foreign.records import Records
from backstop.sweep.foreign.redis_records import KeyFormat, RedisRecords
from backstop.sweep.foreign.sweep_records import SweptRecords


def open_foreign(settings: Settings, connections: Connections, name: str) -> ForeignLeases:
    """The records of the entry `name`; nothing is connected before their first use. Raises ConfigurationError."""
    if name not in settings.foreign_leases:
        raise ConfigurationError(
            f"backstop.yaml names no foreign_leases {name!r}.",
            unaffected="Nothing was read or changed.",
            next_step=f"Name it under foreign_leases, or use one of: {', '.join(settings.foreign_leases)}.",
        )
    foreign = settings.foreign_leases[name]
    topics = foreign.topics or settings.topics_of(foreign.group)
    url = connections.url(foreign.connection)
    records: Records
    if isinstance(foreign, DedupListenerMysql):
        skew = max(
            (settings.policy_for(topic, foreign.group).max_clock_skew for topic in topics),
            default=timedelta(0),
        )
        records = _mysql(name, url, foreign, topics, skew)
    else:
        if not url.startswith(("redis://", "rediss://")):
            raise ConfigurationError(
                f"The connection of foreign_leases.{name} is not a Redis.",
                unaffected="Nothing was read or changed.",
                next_step="Write it as redis://:password@host:6379/0.",
            )
        if isinstance(foreign, DedupListenerRedis):
            keys = KeyFormat(
                dedup_listener_glob(foreign.application),
                dedup_listener_key(foreign.application, topics, foreign.tags),
                says_state=True,
            )
        else:
            keys = KeyFormat(
                plain_glob(foreign.pattern), plain_key(foreign.pattern, topics), says_state=False
            )
        records = RedisRecords(
            name, url, keys, untouched_for=foreign.untouched_for, keep=foreign.keep
        )
    return SweptRecords(name, foreign.group, records, walk=foreign.walk)


def _mysql(
    name: str, url: str, foreign: DedupListenerMysql, topics: tuple[str, ...], skew: timedelta
) -> Records:
    try:
        from backstop.sweep.foreign.mysql_records import (
            MysqlRecords,
        )  # its driver is an extra of its own
    except ModuleNotFoundError as missing:
        if missing.name != "pymysql":
            raise
        raise ConfigurationError(
            f"foreign_leases.{name} is in MySQL, and PyMySQL is not installed.",
            unaffected="Nothing was read or changed.",
            next_step='Install "backstop-mq[mysql]" where the sweep runs.',
        ) from None
    return MysqlRecords(
        name, url, application=foreign.application, topics=topics, skew=skew, keep=foreign.keep
    )
