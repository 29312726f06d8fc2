"""Takes away what is over in PostgreSQL: bounded statements, each row compared with what was seen, the log floor first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg2.extensions import cursor as Cursor

from backstop.model.records import Key
from backstop.model.storable_text import fits
from backstop.sql.connection import PostgresConnection, columns, only_readable, readable
from backstop.sql.named import load
from backstop.stores.purge import ErasedStub, LogPlace, OldLog, OldStub

_SQL = load("backstop.stores.postgresql", "purge.sql")
_OLD_LOG = {
    **dict.fromkeys(("topic", "message_id"), "readable"),
    "state": "string",
    "updated_at": "readable",
    "is_old": "boolean",
    "first_received_at": "readable",
}
"""Of each column of old_logs."""


class PostgresLogPurge:
    """See stores.purge.LogPurge."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = PostgresConnection(f"store {store}", url)

    def old_logs(
        self, group: str, kept_seconds: Mapping[str, float], after: LogPlace, limit: int
    ) -> tuple[list[OldLog], LogPlace | None]:
        values = {
            "group": group,
            "topics": list(kept_seconds),
            "seconds": list(kept_seconds.values()),
            "least_seconds": min(kept_seconds.values()),
            "received": after.received,
            "after_topic": after.topic,
            "after_id": after.message_id,
            "limit": limit,
        }

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            keys = only_readable(cursor, "m.topic", "m.message_id")
            statement = _SQL["old_logs"].replace("{only_readable}", keys)
            cursor.execute(readable(cursor, statement, _OLD_LOG), values)
            return cursor.fetchall()

        found = self._connection.run(work)
        logs = [
            OldLog(Key(topic, message_id), state, moved, is_old)
            for topic, message_id, state, moved, is_old, _ in found
        ]
        return logs, LogPlace(found[-1][5], found[-1][0], found[-1][1]) if len(
            found
        ) == limit else None

    def purge_logs(self, group: str, logs: Sequence[OldLog]) -> int:
        rows = [(*log.key, log.state, log.moved) for log in logs]
        seen = {"group": group, **columns(rows, ("topics", "message_ids", "states", "moved"))}

        def work(cursor: Cursor) -> int:
            cursor.execute(_SQL["limits"])
            cursor.execute(_SQL["hold_logs"], seen)
            held = cursor.fetchall()
            if not held:
                return 0
            values = {"group": group, **columns(held, ("topics", "message_ids", "moved"))}
            cursor.execute(_SQL["raise_floor"], values)
            cursor.execute(_SQL["delete_logs"], values)
            return cursor.rowcount

        return self._connection.run(work)

    def erase(self, key: Key, groups: Sequence[str]) -> int:
        if not (fits(key.topic) and fits(key.message_id)):
            return 0  # a key that the database cannot hold has no row
        return int(
            self._connection.rows(_SQL["erase_log"], {**key._asdict(), "groups": list(groups)})[0][
                0
            ]
        )

    def close(self) -> None:
        self._connection.close()


class PostgresStubPurge:
    """See stores.purge.StubPurge."""

    def __init__(self, shard: str, url: str) -> None:
        self._connection = PostgresConnection(f"shard {shard}", url)

    def old_stubs(
        self,
        topic: str,
        kept_seconds: float,
        no_taker_seconds: float,
        after: tuple[str, str],
        limit: int,
    ) -> list[OldStub]:
        values = {
            "topic": topic,
            "kept_seconds": kept_seconds,
            "no_taker_seconds": no_taker_seconds,
            "after_moved": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        found = self._connection.rows(_SQL["old_stubs"], values)
        return [
            OldStub(Key(topic, message_id), status, moved)
            for topic, message_id, status, moved in found
        ]

    def purge_stubs(self, stubs: Sequence[OldStub]) -> int:
        rows = [(*stub.key, stub.status, stub.moved) for stub in stubs]
        seen = columns(rows, ("topics", "message_ids", "statuses", "moved"))

        def work(cursor: Cursor) -> int:
            cursor.execute(_SQL["limits"])
            cursor.execute(_SQL["delete_stubs"], seen)
            return int(cursor.fetchall()[0][0])

        return self._connection.run(work)

    def standing(self, key: Key) -> tuple[str, bool] | None:
        if not (fits(key.topic) and fits(key.message_id)):
            return None  # a key that the database cannot hold has no row
        found: list[tuple[Any, ...]] = self._connection.rows(_SQL["standing"], key._asdict())
        return (str(found[0][0]), bool(found[0][1])) if found else None

    def erase(self, key: Key) -> ErasedStub | None:
        found = self._connection.rows(_SQL["erase"], key._asdict())
        return ErasedStub(*found[0]) if found else None

    def close(self) -> None:
        self._connection.close()
