"""Reads what the audit asks of a producer's PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backstop.model.records import Key
from backstop.sql.connection import PostgresConnection, columns
from backstop.sql.named import load

_SQL = load("backstop.stores.postgresql", "audit.sql")


class PostgresStubAudit:
    """See stores.audit.StubAudit."""

    def __init__(self, shard: str, url: str) -> None:
        self.shard = shard
        self._connection = PostgresConnection(f"shard {shard}", url)

    def numbers_beyond(self, start: datetime, end: datetime, limit: int) -> list[Key]:
        return self._keys("numbers_beyond", start=start, end=end, limit=limit)

    def never_ended(self, since: datetime, limit: int) -> list[Key]:
        return self._keys("never_ended", since=since, limit=limit)

    def never_looked_at(self, since: datetime, beyond: datetime, limit: int) -> list[Key]:
        return self._keys("never_looked_at", since=since, beyond=beyond, limit=limit)

    def exhausted(self, after: Key, limit: int) -> list[Key]:
        return self._keys(
            "exhausted", after_topic=after.topic, after_id=after.message_id, limit=limit
        )

    def overdue(self, since: Mapping[str, datetime], after: Key, limit: int) -> list[Key]:
        return self._keys(
            "overdue",
            topics=list(since),
            instants=list(since.values()),
            after_topic=after.topic,
            after_id=after.message_id,
            limit=limit,
        )

    def confirmed_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        return self._ended("confirmed", topic, start, end, after, limit)

    def voided_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        return self._ended("voided", topic, start, end, after, limit)

    def no_taker_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        return self._ended("no_taker", topic, start, end, after, limit)

    def _ended(
        self,
        status: str,
        topic: str,
        start: datetime,
        end: datetime,
        after: tuple[str, str],
        limit: int,
    ) -> list[tuple[Key, str]]:
        values = {
            "status": status,
            "topic": topic,
            "start": start,
            "end": end,
            "after_moved": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        found = self._connection.rows(_SQL["ended_between"], values)
        return [(Key(found_topic, message_id), moved) for found_topic, message_id, moved in found]

    def not_voided(self, keys: Sequence[Key]) -> list[Key]:
        return self._keys("not_voided", **columns(keys, ("topics", "message_ids")))

    def not_erased(self, keys: Sequence[Key]) -> list[Key]:
        return self._keys("not_erased", **columns(keys, ("topics", "message_ids")))

    def close(self) -> None:
        self._connection.close()

    def _keys(self, query: str, **values: Any) -> list[Key]:
        return [Key(*row) for row in self._connection.rows(_SQL[query], values)]
