"""The guard's three stores on real servers, and a hand that moves the ends of leases: no test waits for time to pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

import redis

from backstop.client.lease_store import LeaseStore, lease_store
from backstop.client.ways import leased
from backstop.leases.front import Front
from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Arrival, payload_hash
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard
from backstop.leases.redis_records import RedisKeys, read_record
from client_world import GROUP, TOPIC, Database
from maria_world import MariaDatabase

KINDS = ("database", "front", "redis")
IN_MARIADB = ("mariadb", "mariadb_front")
"""The first two of them, where the work is in MariaDB."""
PATIENT = 60.0
"""Seconds in which a Redis answers that nobody freezes, on a machine that stands still for a while."""
A, B = payload_hash(b"a"), payload_hash(b"b")
ID = "order-1:paid"
STATES = {"C": "CONSUMING", "D": "CONSUMED", "F": "FAILED", "E": "EXPIRED"}

ODD = [
    "a:b",
    "{a}",
    "}{",
    "a|b|C",
    'it\'s "quoted"',
    "100%s %(x)s \\n",
    "😀 鍵",
    " ",
    "*?[x]",
    "x" * 10_240,
    *(Random(seed).randbytes(500).hex() for seed in (5, 6)),
]
"""Names that a key, a pattern, a template or an index could trip over."""


@dataclass(frozen=True)
class Seen:
    """What a store holds of one message, whatever holds it."""

    state: str
    token: str
    fence: int
    attempts: int
    version: int
    hash: str
    """Its first 16 hex digits."""
    conflicts: str
    """What it tells of other contents; empty: nothing."""
    error: str


class GuardWorld:
    """One kind of store for one group, its workers, and what a test may do behind their backs."""

    def __init__(
        self, kind: str, database: Database | MariaDatabase, url: str, group: str = GROUP
    ) -> None:
        self.kind, self.database, self.url, self.group = kind, database, url, group
        self.redis = redis.Redis.from_url(url)
        self.keys = RedisKeys(group)
        self._open: list[LeaseStore] = []

    def worker(
        self,
        lease: timedelta = LEASE,
        retry_after: timedelta = RETRY_AFTER,
        connect: Callable[[], Any] | None = None,
        patience: float = PATIENT,
    ) -> LeaseStore:
        """A worker of its own: no connection, nothing remembered is shared with another. `patience`: seconds for an answer of
        Redis."""
        named: dict[str, Any] = {"lease": lease, "retry_after": retry_after, "owner_host": "host|1"}
        exchange = RedisExchange(self.url, timeout=patience)
        if self.kind == "redis":
            store = lease_store(
                None,
                self.group,
                leased(lambda m, w: None),
                RedisGuard(exchange, self.group, **named),
                lease,
                retry_after,
                None,
            )
        else:
            front = Front(exchange, self.group, **named) if self.kind.endswith("front") else None
            store = lease_store(
                connect or self.database.connect,
                self.group,
                leased(lambda m, w: None),
                front,
                lease,
                retry_after,
                "host|1",
            )
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()
            store.close_renewal()
        self.redis.close()

    def see(self, message_id: str, topic: str = TOPIC) -> Seen | None:
        if self.kind == "redis":
            return self._see_redis(message_id, topic)
        found = self.database.log_of(self.group, topic, message_id)
        if not found:
            return None
        (row,) = found
        return Seen(
            row["state"],
            (row["owner_token"] or "").replace("-", ""),
            row["fence"],
            row["attempts"],
            row["content_version"],
            bytes(row["payload_hash"] or b"")[:8].hex(),
            row["last_error"] if row["conflicts"] else "",
            row["last_error"] or "",
        )

    def _see_redis(self, message_id: str, topic: str) -> Seen | None:
        bucket, key = self.keys.bucket_and_key(topic, message_id)
        text = self.redis.get(key)
        if text is None:
            return None
        record = read_record(text)
        told = text.decode().split("|", 4)
        return Seen(
            STATES[record.state],
            record.token,
            record.fence,
            record.attempts,
            record.content_version,
            record.payload_hash or "",
            (self.redis.hget(self.keys.conflicts[bucket], key) or b"").decode(),
            told[4] if len(told) > 4 else "",
        )

    def expire(self, message_id: str, topic: str = TOPIC, ago: float = 1.0) -> None:
        """Its lease has ended; in every place where its end stands."""
        self.database.end_lease(self.group, topic, message_id, ago)
        self.end_in_redis(message_id, topic, ago)

    def end_in_redis(self, message_id: str, topic: str = TOPIC, ago: float = 1.0) -> None:
        """Moves the end of a held record, its index with it."""
        bucket, key = self.keys.bucket_and_key(topic, message_id)
        text = self.redis.get(key)
        if text is not None and text.startswith(b"C"):
            seconds, microseconds = self.redis.time()
            ends = seconds * 1000 + microseconds // 1000 - round(ago * 1000)
            self.redis.set(key, b"C%013d" % ends + text[14:], keepttl=True)
            self.redis.zadd(self.keys.expiry[bucket], {key: ends}, xx=True)

    def reclaim(self, message_id: str, topic: str = TOPIC) -> None:
        """As a sweep leaves it: EXPIRED, the token kept."""
        self.expire(message_id, topic)
        self.database.reclaim(self.group, topic, message_id)
        bucket, key = self.keys.bucket_and_key(topic, message_id)
        text = self.redis.get(key)
        if text is not None and text.startswith(b"C"):
            self.redis.set(key, b"E" + text[1:], keepttl=True)
            self.redis.zrem(self.keys.expiry[bucket], key)

    def all_keys(self) -> list[bytes]:
        return sorted(self.redis.scan_iter("*", count=1000))


def arrival(
    message_id: str,
    topic: str = TOPIC,
    *,
    hash: bytes | None = A,
    version: int = 1,
    resent: bool = False,
) -> Arrival:
    return Arrival(topic, message_id, hash, version, None, resent)


def acquired(begun: Any) -> Acquired:
    assert isinstance(begun, Acquired), begun
    return begun
