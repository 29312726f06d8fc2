"""Reads and changes stubs in a MariaDB database; every change is a compare-and-set on the row itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from backstop.brokers.protocol import Finding
from backstop.model.errors import ContentErased, StoreFailed
from backstop.model.records import Attempt, Key, Message, Stub
from backstop.model.storable_text import fits
from backstop.sql.connection import BULK_TIMEOUT, STATEMENT_TIMEOUT
from backstop.sql.mysql import MysqlConnection, server_of
from backstop.stores.locked_rows import change_rows
from backstop.stores.mariadb import change_stubs
from backstop.stores.mariadb.change_stubs import SQL, change_one, rows_of_keys
from backstop.stores.mariadb.check import PRODUCER, check
from backstop.stores.mariadb.keys import KeyWalk, as_text, naive, of_micros
from backstop.stores.mariadb.stub_rows import (
    attempt_of,
    attempt_table,
    key_of,
    message_of,
    stub_of,
    stub_table,
)
from backstop.stores.protocol import (
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

_STUBS = f"SELECT {SQL['stub_columns']}"
_PIECE = 50_000
"""Rows of one Arrow table."""
_CHUNK = 10_000
"""Stubs of one commit that reopens them."""
_PROMOTED = 20_000
"""Rows of one commit of a promotion."""
_FIRST_LATE = {"after": "0000-00-00", "after_topic": b"", "after_id": b""}
"""Before every attempt that is late."""
_STATUSES = ("pending", "exhausted", "confirmed", "voided", "no_taker")
T = TypeVar("T")


class MariaStubs:
    """The stubs of one producer database; see stores.protocol.StubStore, and PostgresStubs for what a stub's position describes."""

    def __init__(self, shard: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        """`patience`: so long may a statement take."""
        self._shard, self._url = shard, url
        self._subject = f"shard {shard}"
        self._connection = MysqlConnection(self._subject, url, statement_timeout=patience)
        self._late = KeyWalk()

    def __repr__(self) -> str:
        return f"MariaStubs({self._shard})"

    @property
    def shard(self) -> str:
        return self._shard

    def clock(self) -> datetime:
        return self._connection.run(_clock)

    def tables(self) -> str | None:
        def ask(cursor: Any) -> str:
            cursor.execute("SELECT DATABASE()")
            ((database,),) = cursor.fetchall()
            return f"mysql {server_of(cursor)} {database}"

        return self._connection.run(ask)

    # What is read to judge

    def count_due(self, as_of: datetime, scope: Scope, limit: int) -> int:
        due, values = _due(as_of, scope)
        statement = SQL["count_due"].replace("{due}", due)
        ((number,),) = self._connection.rows(statement, {**values, "limit": limit})
        return int(number)

    def scan_due(
        self, as_of: datetime, scope: Scope, partitions: int
    ) -> AbstractContextManager[Scan]:
        """One part: sessions there share no snapshot, and a stub that moves meanwhile would be in two of them, or in none."""
        due, values = _due(as_of, scope)

        def rows_of(cursor: Any) -> int:
            cursor.execute(f"SELECT COUNT(*) {due}", values)
            ((number,),) = cursor.fetchall()
            return int(number)

        return self._scan(due, values, rows_of)

    def scan_window(
        self, topic: str, start: datetime, end: datetime, partitions: int
    ) -> AbstractContextManager[Scan]:
        values = {"topic": topic.encode(), "created_from": naive(start), "created_to": naive(end)}

        def rows_of(cursor: Any) -> int:
            cursor.execute(f"EXPLAIN SELECT 1 {SQL['window']}", values)
            names = [column[0] for column in cursor.description]
            (plan,) = cursor.fetchall()
            return max(1, int(plan[names.index("rows")] or 0))

        return self._scan(SQL["window"], values, rows_of)

    @contextmanager
    def _scan(
        self, found: str, values: Mapping[str, Any], rows_of: Callable[[Any], int]
    ) -> Iterator[Scan]:
        attempts = SQL["attempt_columns"].replace("{of_stubs}", f"{found} {SQL['attempts_too']}")

        def plan(cursor: Any) -> Scan:
            # Before the snapshot of the part: what changes in between counts as changed after it.
            read_at, rows = _clock(cursor), rows_of(cursor)
            texts = {"stubs": f"{_STUBS} {found}", "attempts": attempts}
            part = Part({name: cursor.mogrify(text, values) for name, text in texts.items()})
            return Scan([part] if rows else [], rows, read_at)

        yield self._connection.run(plan)

    def proves(self, topic: str) -> bool:
        return True

    def read_part(self, part: Part, keep: Callable[[str, Any], T]) -> list[T]:
        reader = MysqlConnection(self._subject, self._url, statement_timeout=BULK_TIMEOUT)
        try:
            return reader.run(partial(self._read, part, keep), unbuffered=True)
        finally:
            reader.close()

    def _read(self, part: Part, keep: Callable[[str, Any], T], cursor: Any) -> list[T]:
        tables: dict[str, Callable[[Any], Any]] = {
            "stubs": partial(stub_table, self._shard),
            "attempts": attempt_table,
        }
        kept: list[T] = []
        for name, statement in part.statements.items():
            cursor.execute(statement)
            while rows := cursor.fetchmany(_PIECE):
                kept.append(keep(name, tables[name](rows)))
        return kept

    def stub_table(self, keys: Sequence[Key]) -> Any:
        return stub_table(self._shard, self._by_key(f"{_STUBS} {SQL['of_keys']}", keys))

    def attempt_table(self, keys: Sequence[Key]) -> Any:
        asked = f"{SQL['of_keys']} WHERE TRUE {SQL['attempts_too']}"
        return attempt_table(
            self._by_key(SQL["attempt_columns"].replace("{of_stubs}", asked), keys)
        )

    # What duties and people ask

    def stubs(self, keys: Iterable[Key]) -> dict[Key, Stub]:
        statement = f"{_STUBS}, {SQL['more_columns']} {SQL['of_keys']}"
        found = (stub_of(self._shard, row) for row in self._by_key(statement, keys))
        return {stub.key: stub for stub in found}

    def oldest_due(self) -> datetime | None:
        found = self._connection.rows(SQL["oldest_due"])
        return of_micros(found[0][0]) if found else None

    def known_until(self, topic: str, as_of: datetime) -> datetime | None:
        return as_of

    def recorded_between(self, start: datetime, end: datetime) -> dict[str, Recorded]:
        values = {"start": naive(start), "end": naive(end)}
        found = self._connection.rows(SQL["recorded_between"], values)
        return {as_text(topic): Recorded(*map(int, numbers)) for topic, *numbers in found}

    def attempts(self, keys: Iterable[Key]) -> dict[Key, list[Attempt]]:
        found: dict[Key, list[Attempt]] = {}
        for row in self._by_key(SQL["attempts"], keys):
            found.setdefault(key_of(row), []).append(attempt_of(row))
        return found

    def lives(self, topics: Sequence[str]) -> dict[str, set[Life]]:
        found: dict[str, set[Life]] = {topic: set() for topic in topics}
        if not topics:
            return found
        for topic, broker, queue, epoch in self._connection.rows(
            SQL["lives"], {"topics": _encoded(topics)}
        ):
            life = Life(
                None if broker is None else as_text(broker),
                queue,
                None if epoch is None else as_text(epoch),
            )
            found[as_text(topic)].add(life)
        return found

    def neighbours(self, keys: Iterable[Key]) -> dict[Key, Neighbours]:
        def ask(cursor: Any) -> dict[Key, Neighbours]:
            in_line = list(rows_of_keys(cursor, SQL["in_line"], keys))
            return {key_of(row): _neighbours(cursor, row) for row in in_line}

        return self._connection.run(ask)

    def open_in_line(
        self, topic: str, ordering_key: str, after: str | None, limit: int
    ) -> list[str]:
        values = {
            "topic": topic.encode(),
            "ordering_key": ordering_key.encode(),
            "after": None if after is None else after.encode(),
            "limit": limit,
        }
        return [as_text(found) for (found,) in self._connection.rows(SQL["open_in_line"], values)]

    def named(self, topics: Sequence[str], text: str, limit: int) -> list[tuple[Key, str]]:
        return self._search("named", topics, text, limit=limit)

    def sent_as(
        self, topics: Sequence[str], broker_message_id: str, created_from: datetime, limit: int
    ) -> list[tuple[Key, str]]:
        since = naive(created_from)
        return self._search("sent_as", topics, broker_message_id, limit=limit, created_from=since)

    def _search(
        self, query: str, topics: Sequence[str], text: str, **values: Any
    ) -> list[tuple[Key, str]]:
        if not topics or not fits(text):
            return []  # no row has such a text
        given = {"topics": _encoded(topics), "text": text.encode(), **values}
        return [(key_of(row), row[2]) for row in self._connection.rows(SQL[query], given)]

    def contents(self, keys: Iterable[Key]) -> dict[Key, Message]:
        found = self._by_key(f"SELECT {SQL['content_columns']} {SQL['of_keys']}", keys)
        return {message.key: message for message in map(message_of, found)}

    def contents_beside(self, key: Key, limit: int, most_bytes: int) -> list[bytes]:
        if not (fits(key.topic) and fits(key.message_id)):
            return []
        values = {
            "topic": key.topic.encode(),
            "message_id": key.message_id.encode(),
            "limit": limit,
            "most_bytes": most_bytes,
        }
        found = self._connection.rows(SQL["contents_beside"], values)
        return [bytes(content) for (content,) in found]

    def sizes(self, keys: Iterable[Key], above: int = -1) -> dict[Key, int]:
        return {key_of(row): int(row[2]) for row in self._by_key(SQL["sizes"], keys, above=above)}

    def _by_key(self, statement: str, keys: Iterable[Key], **more: Any) -> list[Any]:
        return self._connection.run(lambda cursor: [*rows_of_keys(cursor, statement, keys, **more)])

    # What is changed

    def _change(self, keys: Sequence[Key], work: Callable[[Any], T]) -> T:
        """What `work` returns, committed. Raises RowsLocked, with those of these rows that another transaction holds."""

        def held() -> set[Key]:
            return self._connection.change(lambda cursor: change_stubs.held(cursor, keys))

        return change_rows(
            self._subject,
            lambda longest: self._connection.change(work, lock_timeout=longest),
            held,
        )

    def claim(self, claims: Sequence[Claim]) -> dict[Key, Message]:
        refuse_two_numbers(claims)
        if not claims:
            return {}
        # A row that cannot be sent undoes its number.
        taken = self._change(
            [one.key for one in claims],
            lambda cursor: [*map(message_of, change_stubs.claim(cursor, claims))],
        )
        return {message.key: message for message in taken}

    def unsendable(self, keys: Iterable[Key]) -> dict[Key, StoreFailed]:
        erased = [key_of(row) for row in self._by_key(SQL["erased"], keys)]
        return {key: ContentErased.of(key.message_id, key.topic) for key in erased}

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        if not settlements:
            return set()
        return self._change(
            [one.key for one in settlements],
            lambda cursor: change_stubs.settle(cursor, settlements),
        )

    def recover(self, limit: int, max_send_seconds: float | None = None) -> list[Key]:
        seconds = max_send_seconds or 0.0
        values: dict[str, Any] = {**_FIRST_LATE, "limit": limit}
        # A page of which none can be recovered (another transaction holds them, their ids are no text) hides none behind it.
        while page := self._connection.rows(SQL["late"], values):
            late = [key_of(row[1:]) for row in page]
            work = partial(change_stubs.recover, keys=late, max_send_seconds=seconds)
            if recovered := self._connection.change(partial(work, skip_locked=True)):
                return recovered
            values |= dict(zip(_FIRST_LATE, page[-1], strict=True))
        return []

    def late(self, after: Key, limit: int) -> list[Key]:
        after_topic, after_id = self._late.behind(*after)
        values = {"after_topic": after_topic, "after_id": after_id, "limit": limit}
        return self._late.page(self._connection.rows(SQL["late_behind"], values))

    def recover_of(self, keys: Sequence[Key], max_send_seconds: float) -> list[Key]:
        return self._change(
            keys, lambda cursor: change_stubs.recover(cursor, keys, max_send_seconds)
        )

    def promote(
        self,
        outcomes: Sequence[StubOutcome],
        as_of: datetime,
        own_as_of: datetime | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        values = {"as_of": naive(as_of), "own_as_of": naive(own_as_of or as_of)}
        moved = 0
        for start in range(0, len(outcomes), _PROMOTED):
            given = StubOutcomes.of(outcomes[start : start + _PROMOTED])
            moved += self._change(
                [one.key for one in given],
                partial(
                    change_stubs.promote,
                    outcomes=given,
                    values=values,
                    before_commit=before_commit,
                ),
            )
        return moved

    def raise_numbers(self, handed: Sequence[Handed]) -> set[Key]:
        if not handed:
            return set()
        return self._connection.change(lambda cursor: change_stubs.raise_numbers(cursor, handed))

    def closed_since(self, topics: Sequence[str], since: datetime) -> Iterator[list[Key]]:
        after = (b"", b"")
        while topics:
            values = {
                "topics": _encoded(topics),
                "since": naive(since),
                "after_topic": after[0],
                "after_id": after[1],
                "limit": _CHUNK,
            }
            page = self._connection.rows(SQL["closed_since"], values)
            if not page:
                break
            if closed := [key_of(row) for row in page if row[2]]:
                yield closed
            after = (bytes(page[-1][0]), bytes(page[-1][1]))

    def reopen(self, keys: Sequence[Key]) -> int:
        return self._change(keys, partial(change_stubs.reopen, keys=keys))

    def void(self, key: Key) -> bool:
        def work(cursor: Any) -> bool:
            # An attempt past its deadline must not wait for a run that recovers everything.
            change_stubs.recover(cursor, [key], 0.0)
            return change_one(cursor, key, "hold_open", "void", {})

        return self._connection.change(work)

    def replace_content(self, key: Key, version: int, content: bytes) -> bool:
        values = {"version": version, "content": content}
        return self._connection.change(
            lambda cursor: change_one(cursor, key, "hold_version", "replace_content", values)
        )

    def raise_max_sends(self, key: Key, max_sends: int) -> bool:
        values = {"max_sends": max_sends}
        return self._connection.change(
            lambda cursor: change_one(cursor, key, "hold_raised", "raise_max_sends", values)
        )

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


def _clock(cursor: Any) -> datetime:
    cursor.execute(SQL["clock"])
    ((now,),) = cursor.fetchall()
    return now.replace(tzinfo=UTC)  # type: ignore[no-any-return]


def _due(as_of: datetime, scope: Scope) -> tuple[str, dict[str, Any]]:
    """What is due within a scope: the statement's end, and its values."""
    topics = None if scope.topics is None else _encoded(scope.topics)
    within = "" if topics is None else "AND s.topic IN %(topics)s" if topics else "AND FALSE"
    values = {
        "as_of": naive(as_of),
        "topics": topics,
        "created_from": None if scope.created_from is None else naive(scope.created_from),
        "created_to": None if scope.created_to is None else naive(scope.created_to),
    }
    return SQL["due"].replace("{topics}", within), values


def _neighbours(cursor: Any, row: Sequence[Any]) -> Neighbours:
    """Of a row of in_line: an index leads to the first open message of each status, and to the first later one of each."""
    topic, message_id, ordering_key, place, created_at, created = row
    values = {
        "topic": topic,
        "message_id": message_id,
        "ordering_key": ordering_key,
        "place": place,
        "created_at": created_at,
    }
    cursor.execute(SQL["first_open"], values)
    before = [one for one in cursor.fetchall() if one < (place, created, message_id)]
    after: list[tuple[Any, ...]] = []
    for status in _STATUSES:
        cursor.execute(SQL["sent_after"], {**values, "status": status})
        after += cursor.fetchall()
    return Neighbours(
        as_text(ordering_key),
        as_text(min(before)[2]) if before else None,
        as_text(min(after)[2]) if after else None,
    )


def _encoded(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts if fits(text))
