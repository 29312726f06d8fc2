"""Reads what the audit asks of a producer's MariaDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backstop.model.records import Key
from backstop.sql.mariadb_keys import with_stubs
from backstop.sql.mysql import MysqlConnection
from backstop.sql.named import load
from backstop.stores.mariadb.change_stubs import rows_of_keys
from backstop.stores.mariadb.keys import KeyWalk, naive
from backstop.stores.mariadb.stub_rows import key_of
from backstop.stores.purge import FIRST_STUB

_SQL = {
    name: with_stubs(text) for name, text in load("backstop.stores.mariadb", "audit.sql").items()
}
_FIRST = "0000-00-00 00:00:00"


class MariaStubAudit:
    """See stores.audit.StubAudit."""

    def __init__(self, shard: str, url: str) -> None:
        self.shard = shard
        self._connection = MysqlConnection(f"shard {shard}", url)
        self._walk = KeyWalk()

    def numbers_beyond(self, start: datetime, end: datetime, limit: int) -> list[Key]:
        return self._keys("numbers_beyond", start=naive(start), end=naive(end), limit=limit)

    def never_ended(self, since: datetime, limit: int) -> list[Key]:
        return self._keys("never_ended", since=naive(since), limit=limit)

    def never_looked_at(self, since: datetime, until: datetime, limit: int) -> list[Key]:
        return self._keys("never_looked_at", since=naive(since), until=naive(until), limit=limit)

    def exhausted(self, after: Key, limit: int) -> list[Key]:
        after_topic, after_id = self._walk.behind(*after)
        values = {"after_topic": after_topic, "after_id": after_id, "limit": limit}
        return self._walk.page(self._connection.rows(_SQL["exhausted"], values))

    def overdue(self, since: Mapping[str, datetime], after: Key, limit: int) -> list[Key]:
        found: list[Key] = []
        for topic in sorted(topic for topic in since if topic >= after.topic):
            behind = after.message_id if topic == after.topic else ""
            encoded, after_id = self._walk.behind(topic, behind)
            values = {
                "topic": encoded,
                "since": naive(since[topic]),
                "after_id": after_id,
                "limit": limit - len(found),
            }
            found += self._walk.page(self._connection.rows(_SQL["overdue"], values))
            if len(found) == limit:
                break
        return found

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
        encoded, after_id = self._walk.behind(topic, after[1])
        values = {
            "status": status,
            "topic": encoded,
            "start": naive(start),
            "end": naive(end),
            "after_moved": _FIRST if after == FIRST_STUB else after[0],
            "after_id": after_id,
            "limit": limit,
        }
        rows = self._connection.rows(_SQL["ended_between"], values)
        return list(zip(self._walk.page(rows), (row[2] for row in rows), strict=True))

    def not_voided(self, keys: Sequence[Key]) -> list[Key]:
        return self._of_keys("not_voided", keys)

    def not_erased(self, keys: Sequence[Key]) -> list[Key]:
        return self._of_keys("not_erased", keys)

    def close(self) -> None:
        self._connection.close()

    def _keys(self, query: str, **values: Any) -> list[Key]:
        return [key_of(row) for row in self._connection.rows(_SQL[query], values)]

    def _of_keys(self, query: str, keys: Sequence[Key]) -> list[Key]:
        return self._connection.run(
            lambda cursor: [key_of(row) for row in rows_of_keys(cursor, _SQL[query], keys)]
        )
