"""Reads and changes stubs in a PostgreSQL database; every change is a compare-and-set on the row itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from psycopg2.extensions import cursor as Cursor

from backstop.brokers.protocol import Finding
from backstop.model.errors import ContentErased, StoreFailed
from backstop.model.records import Attempt, Key, Message, Outcome, Stub
from backstop.sql.array_literal import array_literal
from backstop.sql.connection import (
    STATEMENT_TIMEOUT,
    PostgresConnection,
    columns,
    only_readable,
    readable,
)
from backstop.sql.named import load
from backstop.stores.kept_closed import kept_closed
from backstop.stores.locked_rows import change_rows
from backstop.stores.postgresql.check import check
from backstop.stores.postgresql.privileges import PRODUCER
from backstop.stores.postgresql.scan import scan
from backstop.stores.protocol import (
    ATTEMPT_COLUMNS,
    PART_COLUMNS,
    STUB_COLUMNS,
    Claim,
    Handed,
    Life,
    Neighbours,
    Part,
    Recorded,
    Scan,
    Scope,
    Settlement,
    StubOutcome,
    StubOutcomes,
    refuse_two_numbers,
)
from backstop.stores.sent_headers import sent_headers

_SQL = load("backstop.stores.postgresql", "stubs.sql")
_TABLE = re.compile(r"\b(message_stub|send_attempt)\b")
_CHUNK = 10_000
"""Rows of one statement."""
_PROMOTED = 20_000
"""Rows of one commit of a promotion."""
_KEY = {"topic": "string", "message_id": "string"}
_RUN = ("topics", "old_statuses", "new_statuses", "send_counts", "message_ids", "next_looks")
_ERROR_LENGTH = 2_000
SEARCH_TIMEOUT = timedelta(seconds=5)
"""A search by a person, who waits for it."""
T = TypeVar("T")


class PostgresStubs:
    """The stubs of one producer database; see stores.protocol.StubStore.

    Position and `sent_at` of a stub describe the newest number handed out: a claim empties them, and only
    `sent` fills them. What became of earlier numbers is in send_attempt.
    """

    def __init__(
        self,
        shard: str,
        url: str,
        patience: timedelta = STATEMENT_TIMEOUT,
        *,
        schema: str | None = None,
    ) -> None:
        """`patience`: so long may a statement take. `schema`: where the tables are; null: wherever the login finds them."""
        self._shard = shard
        self._sql = _SQL if schema is None else _within(schema)
        self._subject = f"shard {shard}"
        self._connection = PostgresConnection(self._subject, url, statement_timeout=patience)

    def __repr__(self) -> str:
        return f"PostgresStubs({self._shard})"

    @property
    def shard(self) -> str:
        return self._shard

    def clock(self) -> datetime:
        ((now,),) = self._connection.rows(self._sql["clock"])
        return now  # type: ignore[no-any-return]

    def tables(self) -> str | None:
        found = self._connection.rows(self._sql["tables"])
        return str(found[0][0]) if found else None

    def count_due(self, as_of: datetime, scope: Scope, limit: int) -> int:
        values = {**scope_values(as_of, scope), "limit": limit}
        ((number,),) = self._connection.rows(self._sql["count_due"], values)
        return int(number)

    def scan_due(
        self, as_of: datetime, scope: Scope, partitions: int
    ) -> AbstractContextManager[Scan]:
        selects = {
            "stubs": f"{self._sql['stub_columns']} {self._sql['of_due']}",
            "attempts": f"{self._sql['attempt_columns']} {self._sql['attempts_of_due']}",
        }
        values = {**scope_values(as_of, scope), "shard": self._shard}
        return scan(self._connection, selects, self._sql["bounds"], values, partitions)

    def scan_window(
        self, topic: str, start: datetime, end: datetime, partitions: int
    ) -> AbstractContextManager[Scan]:
        selects = {
            "stubs": f"{self._sql['stub_columns']} {self._sql['of_window']}",
            "attempts": f"{self._sql['attempt_columns']} {self._sql['attempts_of_window']}",
        }
        values = {"topic": topic, "created_from": start, "created_to": end, "shard": self._shard}
        return scan(
            self._connection,
            selects,
            self._sql["window_bounds"],
            values,
            partitions,
            self._sql["window_estimate"],
        )

    def proves(self, topic: str) -> bool:
        return True

    def read_part(self, part: Part, keep: Callable[[str, Any], T]) -> list[T]:
        # Most parts have no attempt to be read, as their stubs say; to find out in the database is to look at each stub again.
        tried = part.snapshot is None

        def keep_and_see(name: str, rows: Any) -> T:
            nonlocal tried
            tried = tried or (name == "stubs" and _has_attempts(rows))
            return keep(name, rows)

        return self._connection.copy_parts(
            part.statements,
            PART_COLUMNS,
            part.snapshot,
            keep_and_see,
            lambda name: name != "attempts" or tried,
        )

    def stub_table(self, keys: Sequence[Key]) -> Any:
        select = f"SELECT {', '.join(STUB_COLUMNS)} FROM ({self._sql['stub_columns']} {self._sql['of_keys']}) AS found"
        values = {**self._keys(keys), "shard": self._shard}
        return self._connection.copy(select, values, STUB_COLUMNS)

    def attempt_table(self, keys: Sequence[Key]) -> Any:
        select = f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM ({self._sql['attempt_columns']} {self._sql['attempts_of_keys']}) AS found"
        return self._connection.copy(select, self._keys(keys), ATTEMPT_COLUMNS)

    def stubs(self, keys: Iterable[Key]) -> dict[Key, Stub]:
        return {
            Key(row[0], row[1]): Stub(
                shard=self._shard,
                topic=row[0],
                message_id=row[1],
                status=row[2],
                send_count=row[3],
                refusals=row[4],
                max_sends=row[5],
                next_check_at=row[6],
                created_at=row[7],
                tag=row[8],
                ordering_key=row[9],
                broker=row[10],
                queue_id=row[11],
                queue_offset=row[12],
                queue_epoch=row[13],
                deliver_at=row[14],
                first_seen_at=row[15],
                attempted_at=row[16],
                sent_at=row[17],
                attempt_token=row[18],
                attempt_deadline=row[19],
                judged_at=row[20],
                first_queue_id=row[21],
                first_queue_offset=row[22],
                first_queue_epoch=row[23],
                first_groups=None if row[24] is None else tuple(row[24]),
                first_broker=row[25],
            )
            for row in self._by_key("stubs", keys)
        }

    def oldest_due(self) -> datetime | None:
        found = self._connection.rows(self._sql["oldest_due"])
        return found[0][0] if found else None

    def known_until(self, topic: str, as_of: datetime) -> datetime | None:
        return as_of

    def recorded_between(self, start: datetime, end: datetime) -> dict[str, Recorded]:
        found = self._connection.rows(self._sql["recorded_between"], {"start": start, "end": end})
        return {topic: Recorded(*numbers) for topic, *numbers in found}

    def attempts(self, keys: Iterable[Key]) -> dict[Key, list[Attempt]]:
        found: dict[Key, list[Attempt]] = {}
        for row in self._by_key("attempts", keys):
            attempt = Attempt(
                topic=row[0],
                message_id=row[1],
                send_number=row[2],
                groups=None if row[3] is None else tuple(row[3]),
                requested_by=row[4],
                started_at=row[5],
                finished_at=row[6],
                outcome=row[7],
                queue_id=row[8],
                queue_offset=row[9],
                queue_epoch=row[10],
                error=row[11],
            )
            found.setdefault(Key(row[0], row[1]), []).append(attempt)
        return found

    def lives(self, topics: Sequence[str]) -> dict[str, set[Life]]:
        found: dict[str, set[Life]] = {topic: set() for topic in topics}
        for topic, *life in self._connection.rows(self._sql["lives"], {"topics": list(topics)}):
            found[topic].add(Life(*life))
        return found

    def neighbours(self, keys: Iterable[Key]) -> dict[Key, Neighbours]:
        return {
            Key(row[0], row[1]): Neighbours(*row[2:]) for row in self._by_key("neighbours", keys)
        }

    def open_in_line(
        self, topic: str, ordering_key: str, after: str | None, limit: int
    ) -> list[str]:
        values = {"topic": topic, "ordering_key": ordering_key, "after": after, "limit": limit}
        return [
            message_id for (message_id,) in self._connection.rows(self._sql["open_in_line"], values)
        ]

    def named(self, topics: Sequence[str], text: str, limit: int) -> list[tuple[Key, str]]:
        return self._search("named", topics, text, limit)

    def sent_as(
        self, topics: Sequence[str], broker_message_id: str, created_from: datetime, limit: int
    ) -> list[tuple[Key, str]]:
        return self._search("sent_as", topics, broker_message_id, limit, created_from=created_from)

    def _search(
        self, query: str, topics: Sequence[str], text: str, limit: int, **values: Any
    ) -> list[tuple[Key, str]]:
        if not topics or not self._connection.storable_keys([Key(topics[0], text)]):
            return []  # the database cannot hold it, and so has no row of it

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)",
                (str(round(SEARCH_TIMEOUT.total_seconds() * 1000)),),
            )
            cursor.execute(
                self._sql[query], {"topics": list(topics), "text": text, "limit": limit, **values}
            )
            return cursor.fetchall()

        return [
            (Key(topic, message_id), named_by)
            for topic, message_id, named_by in self._connection.run(work)
        ]

    def contents_beside(self, key: Key, limit: int, most_bytes: int) -> list[bytes]:
        if not self._connection.storable_keys([key]):
            return []
        values = {**key._asdict(), "limit": limit, "most_bytes": most_bytes}
        found = self._connection.rows(self._sql["contents_beside"], values)
        return [bytes(content) for (content,) in found]

    def contents(self, keys: Iterable[Key]) -> dict[Key, Message]:
        return dict(map(_published, self._by_key("contents", keys)))

    def sizes(self, keys: Iterable[Key], above: int = -1) -> dict[Key, int]:
        return {
            Key(topic, message_id): size
            for topic, message_id, size in self._by_key("sizes", keys, above=above)
        }

    def claim(self, claims: Sequence[Claim]) -> dict[Key, Message]:
        refuse_two_numbers(claims)
        if not claims:
            return {}
        return self._change(
            [claim.key for claim in claims], lambda cursor: self.claim_within(cursor, claims)
        )

    def unsendable(self, keys: Iterable[Key]) -> dict[Key, StoreFailed]:
        erased = [Key(*row) for row in self._by_key("erased", keys)]
        return {key: ContentErased.of(key.message_id, key.topic) for key in erased}

    def claim_within(self, cursor: Cursor, claims: Sequence[Claim]) -> dict[Key, Message]:
        """`claim` in the caller's transaction; each key once."""
        names = (
            "topics",
            "message_ids",
            "send_numbers",
            "next_check_seconds",
            "requested_by",
            "places",
        )
        terms = _Terms(
            "token",
            "groups",
            "attempt_seconds",
            "max_sends",
            "max_refusals",
            "only_when_due",
            "broker",
        )
        rows = []
        for (
            key,
            number,
            token,
            groups,
            requested_by,
            seconds,
            next_check,
            sends,
            refusals,
            only_when_due,
            broker,
        ) in claims:
            to = None if groups is None else tuple(groups)
            place = terms.place(token, to, seconds, sends, refusals, only_when_due, broker)
            rows.append((*key, number, next_check, requested_by, place))
        values = {**columns(rows, names), "terms": terms.text()}
        self._recover_late(cursor, values)
        cursor.execute(self._sql["by_key"] + "; " + self._sql["claim"], values)
        return dict(map(_published, cursor.fetchall()))

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        if not settlements:
            return set()
        names = (
            "topics",
            "message_ids",
            "send_numbers",
            "queue_ids",
            "queue_offsets",
            "broker_message_ids",
            "places",
        )
        terms = _Terms("token", "outcome", "broker", "queue_epoch", "error", "max_send_seconds")
        rows = []
        for (
            key,
            number,
            token,
            outcome,
            position,
            broker,
            broker_message_id,
            error,
            max_send_seconds,
        ) in settlements:
            # A copy that the broker did not acknowledge has no place, whatever the caller believes.
            at = position if position and outcome is Outcome.SENT else _NOWHERE
            stored_error = None if error is None else _stored_text(error)
            place = terms.place(
                token, str(outcome), broker, at.epoch, stored_error, max_send_seconds
            )
            rows.append((*key, number, at.queue_id, at.offset, broker_message_id, place))
        values = {**columns(rows, names), "terms": terms.text()}
        return self._change([one.key for one in settlements], partial(self._settle, values))

    def recover(self, limit: int, max_send_seconds: float | None = None) -> list[Key]:
        values = {"limit": limit, "max_send_seconds": max_send_seconds}
        return self._connection.run(lambda cursor: self._recover(cursor, "late", values))

    def late(self, after: Key, limit: int) -> list[Key]:
        values = {"after_topic": after.topic, "after_id": after.message_id, "limit": limit}

        def work(cursor: Cursor) -> list[Key]:
            keys = only_readable(cursor, "s.topic", "s.message_id")
            cursor.execute(self._sql["late_behind"].replace("{only_readable}", keys), values)
            return [Key(*row) for row in cursor.fetchall()]

        return self._connection.run(work)

    def recover_of(self, keys: Sequence[Key], max_send_seconds: float) -> list[Key]:
        values = {**columns(keys, ("topics", "message_ids")), "max_send_seconds": max_send_seconds}
        return self._change(keys, lambda cursor: self._recover(cursor, "late_of_keys", values))

    def promote(
        self,
        outcomes: Sequence[StubOutcome],
        as_of: datetime,
        own_as_of: datetime | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        moved = 0
        for start in range(0, len(outcomes), _PROMOTED):
            given = StubOutcomes.of(outcomes[start : start + _PROMOTED])
            values = {"as_of": as_of, "own_as_of": own_as_of or as_of}
            moved += self._change(
                [Key(*key) for key in zip(*given.columns[:2], strict=True)],
                partial(self._promote, given, values, before_commit),
            )
        return moved

    def _promote(
        self,
        given: StubOutcomes,
        values: Mapping[str, Any],
        before_commit: Callable[[], None] | None,
        cursor: Cursor,
    ) -> int:
        # Nearly always there is none, and to compare all keys with none costs as much as to send them once more.
        cursor.execute(self._sql["any_late"])
        if cursor.fetchone() is not None:
            topics, message_ids = map(array_literal, given.columns[:2])
            self._recover_late(cursor, {"topics": topics, "message_ids": message_ids})
        cursor.execute(self._sql["by_key"])
        cursor.execute(self._sql["promote"], {**columns(list(_runs(given)), _RUN), **values})
        if before_commit is not None:
            before_commit()
        return cursor.rowcount

    def raise_numbers(self, handed: Sequence[Handed]) -> set[Key]:
        rows = [
            (
                *one.key,
                one.send_number,
                None if one.groups is None else json.dumps(list(one.groups), ensure_ascii=False),
                one.requested_by,
                one.at,
                str(one.outcome),
            )
            for one in handed
        ]
        names = (
            "topics",
            "message_ids",
            "send_numbers",
            "groups",
            "requested_by",
            "ats",
            "outcomes",
        )
        return self._changed(self._sql["raise_numbers"], columns(rows, names)) if rows else set()

    def closed_since(self, topics: Sequence[str], since: datetime) -> Iterator[list[Key]]:
        values = {"topics": list(topics), "since": since, "limit": _CHUNK}
        last = Key("", "")

        def page(cursor: Cursor) -> list[tuple[Any, ...]]:
            keys = only_readable(cursor, "m.topic", "m.message_id")
            statement = self._sql["closed_since"].replace("{only_readable}", keys)
            cursor.execute(statement, {**values, **last._asdict()})
            return cursor.fetchall()

        while found := self._connection.run(page):
            last = Key(*found[-1][:2])
            if closed := [Key(*row[:2]) for row in found if row[2]]:
                yield closed

    def reopen(self, keys: Sequence[Key]) -> int:
        values = self._keys(keys)

        def work(cursor: Cursor) -> int:
            cursor.execute(self._sql["by_key"])
            cursor.execute(self._sql["reopen"], values)
            reopened = cursor.rowcount
            cursor.execute(self._sql["still_closed"], values)
            ((closed,),) = cursor.fetchall()
            if closed:
                raise kept_closed(closed)
            return reopened

        return self._change(keys, work)

    def void(self, key: Key) -> bool:
        values = {
            **columns([key], ("topics", "message_ids")),
            "topic": key.topic,
            "message_id": key.message_id,
        }
        return bool(self._rows_after_recovery(self._sql["void"], values))

    def replace_content(self, key: Key, version: int, content: bytes) -> bool:
        values = {
            "topic": key.topic,
            "message_id": key.message_id,
            "version": version,
            "content": content,
        }
        return bool(self._connection.rows(self._sql["replace_content"], values))

    def raise_max_sends(self, key: Key, max_sends: int) -> bool:
        values = {"topic": key.topic, "message_id": key.message_id, "max_sends": max_sends}
        return bool(self._connection.rows(self._sql["raise_max_sends"], values))

    def check(self) -> list[Finding]:
        return check(self._connection, PRODUCER)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _change(self, keys: Sequence[Key], work: Callable[[Cursor], T]) -> T:
        """What `work` returns, committed. Raises RowsLocked, with those of these rows that another transaction holds."""
        return change_rows(
            self._subject,
            lambda longest: self._connection.run(work, lock_timeout=longest),
            lambda: self.held(keys),
        )

    def held(self, keys: Sequence[Key]) -> set[Key]:
        """Those of these messages whose row another transaction holds now."""
        values = columns(keys, ("topics", "message_ids"))
        statement = self._sql["by_key"] + "; " + self._sql["held"]
        return {Key(*row) for row in self._connection.rows(statement, values)}

    def _settle(self, values: Mapping[str, Any], cursor: Cursor) -> set[Key]:
        cursor.execute(self._sql["by_key"] + "; " + self._sql["settle"], values)
        return {Key(*row) for row in cursor.fetchall()}

    def _keys(self, keys: Iterable[Key]) -> dict[str, str]:
        return columns(self._connection.storable_keys(keys), ("topics", "message_ids"))

    def _by_key(self, query: str, keys: Iterable[Key], **values: Any) -> Iterator[tuple[Any, ...]]:
        # A row that cannot be read is no row; the scan shows it.
        for chunk in _chunks(self._connection.storable_keys(keys)):
            yield from self._connection.rows_of_keys(self._sql[query], chunk, values)[0]

    def _rows_after_recovery(
        self, statement: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """The statement's rows. An attempt of these messages whose deadline is over is first recorded as unknown, in the same
        transaction: it must not wait for a run that recovers everything. It may have begun as late as its deadline."""

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            self._recover_late(cursor, values)
            cursor.execute(statement, values)
            return cursor.fetchall()

        return self._connection.run(work)

    def _recover_late(self, cursor: Cursor, values: Mapping[str, Any]) -> None:
        keys = {name: values[name] for name in ("topics", "message_ids")}
        self._recover(cursor, "late_of_keys", {**keys, "max_send_seconds": 0.0})

    def _recover(self, cursor: Cursor, late: str, values: Mapping[str, Any]) -> list[Key]:
        """Of the attempts that the statement `late` finds: their messages; a key that is not UTF-8 ends its own attempt and no other."""
        recovered = readable(cursor, self._sql["recovered"], _KEY)
        cursor.execute(f"{self._sql[late]} {self._sql['recover']} {recovered}", values)
        return [Key(*row) for row in cursor.fetchall()]

    def _changed(self, statement: str, values: dict[str, Any]) -> set[Key]:
        return {
            Key(topic, message_id) for topic, message_id in self._connection.rows(statement, values)
        }


class _Terms:
    """What many rows of a batch have in common, each combination once."""

    def __init__(self, *names: str) -> None:
        self._names, self._places = names, dict[tuple[Any, ...], int]()

    def place(self, *values: Any) -> int:
        """The number of this combination."""
        return self._places.setdefault(values, len(self._places))

    def text(self) -> str:
        """All of them with their numbers, as a JSON array of objects."""
        terms = [
            {"place": place, **dict(zip(self._names, values, strict=True))}
            for values, place in self._places.items()
        ]
        return json.dumps(terms, ensure_ascii=False)


class _Nowhere(NamedTuple):
    queue_id: None = None
    offset: None = None
    epoch: None = None


_NOWHERE = _Nowhere()


def scope_values(as_of: datetime, scope: Scope) -> dict[str, Any]:
    """The parameters that every query over what is due takes."""
    return {
        "as_of": as_of,
        "topics": None if scope.topics is None else list(scope.topics),
        "created_from": scope.created_from,
        "created_to": scope.created_to,
    }


@cache
def _within(schema: str) -> dict[str, str]:
    """The statements, whose tables are in this schema, whatever else the login finds by their names."""
    return {name: _TABLE.sub(rf"{schema}.\1", text) for name, text in _SQL.items()}


def _runs(outcomes: StubOutcomes) -> Iterator[tuple[Any, ...]]:
    """Rows of _RUN: neighbours that differ only in their ids and next looks are one row, which ends with the texts of two arrays of
    these; null: none of them has a look."""
    topics, message_ids, *decided, looks = outcomes.columns
    start = 0
    for common, run in groupby(zip(topics, *decided, strict=True)):
        end = start + len(list(run))
        next_looks = looks[start:end]
        listed = None if set(next_looks) == {None} else array_literal(next_looks)
        yield *common, array_literal(message_ids[start:end]), listed
        start = end


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]


def _has_attempts(stubs: Any) -> bool:
    """Whether one of them was sent more than once, or first to some groups alone, as `attempts_of_due` asks."""
    import pyarrow.compute as pc

    again = pc.any(pc.greater(stubs.column("send_count"), 1)).as_py()
    return bool(again) or pc.all(stubs.column("first_to_all")).as_py() is False


def _published(row: tuple[Any, ...]) -> tuple[Key, Message]:
    topic, message_id, content, headers, tag, ordering_key, version = row
    named = sent_headers(topic, message_id, headers, version)
    message = Message(topic, message_id, bytes(content), named, tag, ordering_key)
    return Key(topic, message_id), message


def _stored_text(text: str) -> str:
    return text[:_ERROR_LENGTH].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
