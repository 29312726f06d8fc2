"""RocketMQDedupListener's table t_rocketmq_dedup in MySQL or MariaDB: walked by its unique key, changed by compare-and-set.

Its expire_time is written by the clocks of the applications, so a row counts as expired only max_clock_skew later, at the
server's clock; the equal instant counts, which the program itself misses on both sides.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pymysql

from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.model.records import Counts, Key
from backstop.sql.mysql import connect, read_mysql_url
from backstop.sql.named import load
from backstop.sweep.foreign.decide import Decision, Expiry, Held, Record
from backstop.sweep.foreign.records import Page, Seen

SQL = load("backstop.sweep.foreign", "queries.sql")
PAGE = 10_000
"""Rows walked by one statement: some ten milliseconds of the server."""
AT_ONCE = 200
"""Rows changed by one statement, which is a transaction of its own: the application's own writes wait no longer for it."""
MOST_LOCKED = 30
"""Waits for locks, of a second each, that one call bears: more is a locked table."""
CONNECT_SECONDS, SECONDS = 10, 60
_TRIES = 3
_DEADLOCK, _LOCK_TIMEOUT = 1213, 1205


class _RowLocked(Exception):
    """Somebody else's transaction holds a row that was to be changed."""


class MysqlRecords:
    """One table. Connected by the first call; for one thread at a time."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        application: str,
        topics: Sequence[str],
        skew: timedelta,
        keep: timedelta,
        page: int = PAGE,
    ) -> None:
        self._name, self._application, self._topics, self._page = (
            name,
            application,
            tuple(topics),
            page,
        )
        self._skew, self._keep = (round(length.total_seconds() * 1000) for length in (skew, keep))
        self._login = read_url(name, url)
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"MysqlRecords({self._name})"

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def pages(self, place: str, size: int, *, only_stuck: bool = False) -> Iterator[Page]:
        """Pages of so many rows that may be stuck at most, and of PAGE rows walked past at most: the server does that."""
        first, tag, message_id = _read_place(place)
        start = self._topics.index(first) if first in self._topics else 0
        after = (tag, message_id) if first in self._topics and tag is not None else None
        for index, topic in enumerate(self._topics[start:], start):
            following = self._topics[index + 1 : index + 2]
            more = True
            while more:
                after, seen = self._walk(topic, after, size)
                more = after is not None
                place = (
                    _place(topic, after)
                    if more
                    else _place(following[0], None)
                    if following
                    else ""
                )
                yield Page(place, self._page, seen)

    def apply(self, decision: Decision, seen: Sequence[Seen], counts: Counts) -> None:
        statement, first = (
            (SQL["repair"], self._keep)
            if decision is Decision.REPAIR
            else (SQL["reclaim"], self._skew)
        )
        parts = deque(seen[start : start + AT_ONCE] for start in range(0, len(seen), AT_ONCE))
        waits = 0
        while parts:
            part = parts.popleft()
            text = statement.replace("{seen}", "\n    OR ".join([SQL["seen_row"]] * len(part)))
            try:
                changed = self._change(
                    text, [first, *(value for one in part for value in one.handle)]
                )
            except _RowLocked as locked:
                waits += 1
                if waits > MOST_LOCKED:
                    raise self._unavailable(locked) from None
                if len(part) > 1:  # one locked row must not hold up the others
                    half = len(part) // 2
                    parts.extendleft((part[half:], part[:half]))
                    continue
                changed = 0  # its owner is at it at this moment
            for name, number in ((decision.value, changed), ("moved_on", len(part) - changed)):
                if number:
                    counts.add(name, number)

    def _walk(
        self, topic: str, after: tuple[str, str] | None, size: int
    ) -> tuple[tuple[str, str] | None, list[Seen]]:
        """The last row of the page (null: the topic's last page), and what may be stuck in it."""
        tag, message_id = after or ("", "")
        where = {
            "application": self._application,
            "topic": topic,
            "from_start": after is None,
            "tag": tag,
            "id": message_id,
        }
        ends = self._rows(SQL["page_end"], {**where, "offset": self._page - 1})
        end: tuple[str, str] | None = (ends[0][0], ends[0][1]) if ends else None
        end_tag, end_id = end or ("", "")
        page = {
            "to_end": end is None,
            "end_tag": end_tag,
            "end_id": end_id,
            "skew": self._skew,
            "at_most": size,
        }
        rows = self._rows(SQL["stuck"], {**where, **page})
        if len(rows) == size:  # the page ends here: there may be more
            end = (rows[-1][2], rows[-1][3])
        return end, [self._seen(topic, row) for row in rows]

    def _seen(self, topic: str, row: tuple[Any, ...]) -> Seen:
        application, named, tag, message_id, status, expires = row
        text = f"{application} {named} {tag} {message_id}"
        # The table compares without regard to case; the programs do not. No log can hold an id with a NUL.
        odd = not message_id or "\0" in message_id
        if odd or (application, named, status) != (self._application, topic, "CONSUMING"):
            return Seen(text, None, None)
        record = Record((Key(named, message_id),), Held.CONSUMING, Expiry.PAST, None)
        return Seen(text, record, (application, named, tag, message_id, expires))

    def _rows(self, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        try:
            with self._open().cursor() as cursor:
                cursor.execute(statement, values)
                return list(cursor.fetchall())
        except (pymysql.MySQLError, OSError) as error:
            raise self._unavailable(error) from None

    def _change(self, statement: str, values: Sequence[object]) -> int:
        """How many rows were changed. Raises _RowLocked; a deadlock is tried again."""
        for attempt in range(1, _TRIES + 1):
            try:
                with self._open().cursor() as cursor:
                    return int(cursor.execute(statement, values))
            except (pymysql.MySQLError, OSError) as error:
                if error.args[:1] == (_LOCK_TIMEOUT,):
                    raise _RowLocked(*error.args) from None
                if error.args[:1] != (_DEADLOCK,) or attempt == _TRIES:
                    raise self._unavailable(error) from None
        raise AssertionError("the last try returns or raises")

    def _open(self) -> Any:
        if self._connection is None or not self._connection.open:
            self._connection = connect(
                pymysql,
                **self._login,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                read_timeout=SECONDS,
                write_timeout=SECONDS,
                # Where NOW() is a local time, another zone would make it ambiguous for an hour a year (not so in MariaDB).
                init_command="SET time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 5",
            )
        return self._connection

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        self.close()
        why = " ".join(str(part) for part in error.args) or type(error).__name__
        why = mask_secrets(why, [str(self._login.get("password") or "")])
        return StoreUnavailable(
            f"The MySQL of foreign_leases.{self._name} did not answer: {why.rstrip('.')}.",
            unaffected="Nothing was freed or marked on its silence; what was done before it is counted.",
            next_step="Restart it, or correct its connection and its login's rights; the next sweep tries again.",
        )


def read_url(name: str, url: str) -> dict[str, Any]:
    """PyMySQL's arguments out of mysql://user:password@host:port/database?ssl_ca=...; ConfigurationError without a database."""
    login = read_mysql_url(url)
    if login is None:
        raise ConfigurationError(
            f"The connection of foreign_leases.{name} is not a MySQL database.",
            unaffected="Nothing was read or changed.",
            next_step="Write it as mysql://user:password@host:3306/database.",
        )
    return login


def _place(topic: str, after: tuple[str, str] | None) -> str:
    return json.dumps([topic, *(after or ())])


def _read_place(place: str) -> tuple[str | None, str | None, str]:
    """(topic, tag, id) of the last row walked past; without tag and id before the topic's first row."""
    match json.loads(place) if place else []:
        case [str(topic), str(tag), str(message_id)]:
            return topic, tag, message_id
        case [str(topic)]:
            return topic, None, ""
        case _:
            return None, None, ""
