"""Takes away old logs in MariaDB: bounded statements, each row compared with what was seen, the log floor first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backstop.model.records import Key
from backstop.sql.connection import storable
from backstop.sql.mariadb_keys import listed, with_keys
from backstop.sql.mysql import MysqlConnection
from backstop.sql.named import load
from backstop.stores.mariadb.keys import as_text, by_topic
from backstop.stores.purge import FIRST_LOG, LogPlace, OldLog

_SQL = {
    name: with_keys(text) for name, text in load("backstop.stores.mariadb", "purge.sql").items()
}
_FIRST = "0000-00-00 00:00:00"


class MariaLogPurge:
    """See stores.purge.LogPurge."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = MysqlConnection(f"store {store}", url)

    def old_logs(
        self, group: str, kept_seconds: Mapping[str, float], after: LogPlace, limit: int
    ) -> tuple[list[OldLog], LogPlace | None]:
        values = {
            "group": group.encode(),
            "least": _micros(min(kept_seconds.values())),
            "received": _FIRST if after == FIRST_LOG else after.received,
            "after_topic": after.topic.encode(),
            "after_id": after.message_id.encode(),
            "limit": limit,
        }
        logs, place = [], None
        for topic, message_id, state, moved, age, is_held, received in self._connection.rows(
            _SQL["old_logs"], values
        ):
            key = Key(as_text(topic), as_text(message_id))
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
        if not (storable(key.topic) and storable(key.message_id)):
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


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
