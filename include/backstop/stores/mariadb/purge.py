"""Deletes finished rows in MariaDB: bounded statements, each row compared with what was seen, the log floor first."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from backstop.model.records import Key
from backstop.model.storable_text import fits
from backstop.sql.mariadb_keys import listed, with_keys, with_stubs
from backstop.sql.mysql import MysqlConnection
from backstop.sql.named import load
from backstop.stores.mariadb.keys import KeyWalk, by_topic
from backstop.stores.purge import FIRST_LOG, FIRST_STUB, ErasedStub, LogPlace, OldLog, OldStub

_SQL = {
    name: with_stubs(with_keys(text).replace("{of_stubs}", "{of_keys}"))
    for name, text in load("backstop.stores.mariadb", "purge.sql").items()
}
_OVER = ("confirmed", "voided", "no_taker")
_FIRST = "0000-00-00 00:00:00"


class MariaLogPurge:
    """See stores.purge.LogPurge."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = MysqlConnection(f"store {store}", url)
        self._walk = KeyWalk()

    def old_logs(
        self, group: str, kept_seconds: Mapping[str, float], after: LogPlace, limit: int
    ) -> tuple[list[OldLog], LogPlace | None]:
        after_topic, after_id = self._walk.behind(after.topic, after.message_id)
        values = {
            "group": group.encode(),
            "least": _micros(min(kept_seconds.values())),
            "received": _FIRST if after == FIRST_LOG else after.received,
            "after_topic": after_topic,
            "after_id": after_id,
            "limit": limit,
        }
        logs, place = [], None
        rows = self._connection.rows(_SQL["old_logs"], values)
        for key, row in zip(self._walk.page(rows), rows, strict=True):
            _, _, state, moved, age, is_held, received = row
            kept = kept_seconds.get(key.topic)
            is_old = kept is not None and age is not None and age > _micros(kept)
            logs.append(OldLog(key, state, moved, is_old and not is_held))
            place = LogPlace(received, key.topic, key.message_id)
        return logs, place if len(logs) == limit else None

    def purge_logs(self, group: str, logs: Sequence[OldLog]) -> int:
        as_seen = {log.key: (log.state, log.moved) for log in logs}

        def work(cursor: Any) -> int:
            cursor.execute(_SQL["limits"])
            over: list[tuple[bytes, list[bytes]]] = []
            newest: str | None = None
            for values, by_id in by_topic(list(as_seen)):
                ids = []
                given = {"group": group.encode(), "topic": values["topic"], "ids": listed(by_id)}
                cursor.execute(_SQL["hold_logs"], given)
                for message_id, state, moved in cursor.fetchall():
                    if as_seen[by_id[bytes(message_id)]] == (state, moved):
                        ids.append(bytes(message_id))
                        newest = moved if newest is None else max(newest, moved)
                if ids:
                    over.append((values["topic"], ids))
            if newest is None:
                return 0
            cursor.execute(_SQL["raise_floor"], {"group": group.encode(), "moved": newest})
            return sum(
                int(
                    cursor.execute(
                        _SQL["delete_logs"],
                        {"group": group.encode(), "topic": topic, "ids": listed(ids)},
                    )
                )
                for topic, ids in over
            )

        return self._connection.change(work)

    def erase(self, key: Key, groups: Sequence[str]) -> int:
        if not (fits(key.topic) and fits(key.message_id)):
            return 0  # a key that the database cannot hold has no row

        def work(cursor: Any) -> int:
            return sum(
                int(
                    cursor.execute(
                        _SQL["erase_log"],
                        {
                            "group": group.encode(),
                            "topic": key.topic.encode(),
                            "message_id": key.message_id.encode(),
                        },
                    )
                )
                for group in sorted(groups)
            )

        return self._connection.change(work)

    def close(self) -> None:
        self._connection.close()


class MariaStubPurge:
    """See stores.purge.StubPurge."""

    def __init__(self, shard: str, url: str) -> None:
        self._connection = MysqlConnection(f"shard {shard}", url)
        self._walk = KeyWalk()

    def old_stubs(
        self,
        topic: str,
        kept_seconds: float,
        no_taker_seconds: float,
        after: tuple[str, str],
        limit: int,
    ) -> list[OldStub]:
        encoded, after_id = self._walk.behind(topic, after[1])
        values = {
            "topic": encoded,
            "kept": _micros(kept_seconds),
            "no_taker": _micros(no_taker_seconds),
            "after_moved": _FIRST if after == FIRST_STUB else after[0],
            "after_id": after_id,
            "limit": limit,
        }

        def work(cursor: Any) -> list[OldStub]:
            found: list[tuple[str, bytes, str]] = []
            for status in _OVER:
                cursor.execute(_SQL["old_stubs"], {**values, "status": status})
                found += [(moved, bytes(one), of) for one, of, moved in cursor.fetchall()]
            found = sorted(found)[:limit]
            keys = self._walk.page([(encoded, message_id) for _, message_id, _ in found])
            return [
                OldStub(key, status, moved)
                for key, (moved, _, status) in zip(keys, found, strict=True)
            ]

        return self._connection.run(work)

    def purge_stubs(self, stubs: Sequence[OldStub]) -> int:
        as_seen = {stub.key: (stub.status, stub.moved) for stub in stubs}

        def work(cursor: Any) -> int:
            cursor.execute(_SQL["limits"])
            number = 0
            for values, by_id in by_topic(list(as_seen)):
                cursor.execute(_SQL["hold_stubs"], {**values, "ids": listed(by_id)})
                over = [
                    bytes(message_id)
                    for message_id, status, moved in cursor.fetchall()
                    if as_seen[by_id[bytes(message_id)]] == (status, moved)
                ]
                if over:
                    cursor.execute(_SQL["delete_stubs"], {**values, "ids": listed(over)})
                    number += len(over)
            return number

        return self._connection.change(work)

    def standing(self, key: Key) -> tuple[str, bool] | None:
        if not (fits(key.topic) and fits(key.message_id)):
            return None  # a key that the database cannot hold has no row
        found = self._connection.rows(_SQL["standing"], _encoded(key))
        return (str(found[0][0]), bool(found[0][1])) if found else None

    def erase(self, key: Key) -> ErasedStub | None:
        if not (fits(key.topic) and fits(key.message_id)):
            return None
        values = _encoded(key)

        def work(cursor: Any) -> ErasedStub | None:
            cursor.execute(_SQL["hold_erased"], values)
            held = cursor.fetchall()
            if not held:
                return None
            ((ordering_key,),) = held
            keeps = False
            if ordering_key is not None:
                cursor.execute(_SQL["is_key_open"], {**values, "ordering_key": ordering_key})
                keeps = bool(cursor.fetchall()[0][0])
            cursor.execute(_SQL["hash_erased"], {**values, "salt": secrets.token_bytes(16)})
            cursor.execute(
                _SQL["erase"], {**values, "ordering_key": ordering_key if keeps else None}
            )
            return ErasedStub(keeps, int(cursor.execute(_SQL["erase_attempts"], values)))

        return self._connection.change(work)

    def close(self) -> None:
        self._connection.close()


def _encoded(key: Key) -> dict[str, bytes]:
    return {"topic": key.topic.encode(), "message_id": key.message_id.encode()}


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
