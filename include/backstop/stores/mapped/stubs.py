"""A producer's own message table, read and never written: what runs remember of it is in the control database.

    their table -> look -> mapped_stub (control database) -> scan | by key, beside what the table says now

Nothing here rests on the table's own times. A look brackets each row between two instants of the control database: a row that
is met as sent was sent by the end of the look, and a row that the look before would have met was committed after that began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from psycopg2.extensions import cursor as Cursor

from backstop.brokers.protocol import Finding
from backstop.config.mapped import StubMapping
from backstop.model.errors import StoreFailed, StoreUnavailable
from backstop.model.records import (
    EARLIEST,
    ID_BYTES,
    LATEST,
    TOPIC_BYTES,
    Attempt,
    Key,
    Message,
    Stub,
)
from backstop.sql.array_literal import array_literal
from backstop.sql.connection import STATEMENT_TIMEOUT, PostgresConnection, columns, storable_keys
from backstop.sql.named import load
from backstop.stores.mapped.check import check_stubs
from backstop.stores.mapped.overlay import parameters
from backstop.stores.mapped.table import Look, StubRow, Table, open_table
from backstop.stores.postgresql.scan import scan
from backstop.stores.postgresql.stubs import scope_values
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
)

_SHARED = ("number_one", "later_numbers", "brokers_of", "only_broker", "is_open_again")
"""Queries that others take in, by {name}."""


def _with_shared(queries: Mapping[str, str]) -> dict[str, str]:
    whole = dict(queries)
    for name in _SHARED:
        whole = {
            other: text.replace("{" + name + "}", queries[name]) for other, text in whole.items()
        }
    return whole


_SQL = _with_shared(load("backstop.stores.mapped", "stubs.sql"))
_CHUNK = 10_000
_EPOCH = datetime.fromtimestamp(0, EARLIEST.tzinfo)
ZONES = timedelta(hours=26)
"""No two time zones are further apart: a wrong `time_zone` makes a row at most so much younger than it is."""
LOOK_AGAIN = timedelta(minutes=40)
"""A look is due after this, whatever is new: less than the safety interval of the duties."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LastLook:
    """The newest complete look at a table."""

    mapping: str
    server: str
    began_at: datetime
    ended_at: datetime
    window_from: datetime
    newest_at: datetime | None
    rows: int
    left_out: int


class LeftOut(NamedTuple):
    """A row whose key no table of the control database can hold: as much of it as shows that, and the SHA-256 of all of it."""

    topic: str
    message_id: str
    digest: str


class MappedStubs:
    """A mapped table as a store of stubs; see stores.protocol.StubStore. Of what that changes, only a promotion and a reopening do
    anything, in the control database: no send number is handed out. `overlaid.OverlaidStubs` hands them out."""

    repairs = False
    """Whether numbers are handed out here."""

    _by_key = "of_keys"
    _by_looks_alone = True
    """Whether nothing but looks says which numbers were handed out."""

    def __init__(
        self,
        shard: str,
        url: str,
        control_url: str,
        mapping: StubMapping,
        doubt: timedelta = ZONES,
        patience: timedelta = STATEMENT_TIMEOUT,
        table: Table | None = None,
    ) -> None:
        """`doubt`: how much earlier than its time says a row may have been committed that the first look met; only logs that are
        purged by age need it. `patience`: so long may a statement take."""
        self._shard, self._mapping, self._doubt = shard, mapping, doubt
        self._theirs = table or open_table(f"shard {shard}", url, mapping, patience)
        self._control = PostgresConnection("control", control_url, statement_timeout=patience)

    def __repr__(self) -> str:
        return f"MappedStubs({self._shard})"

    @property
    def shard(self) -> str:
        return self._shard

    def clock(self) -> datetime:
        return self._theirs.clock()

    def tables(self) -> str | None:
        return None

    @property
    def _look_again(self) -> timedelta:
        return LOOK_AGAIN

    @property
    def _known(self) -> dict[str, Any]:
        """Parameters of `stub_columns`."""
        return {
            "store": self._shard,
            "doubt": self._doubt,
            "zones": ZONES,
            "repairs": self.repairs,
        }

    # A look

    def look(self, into: BinaryIO) -> Look:
        """Writes the rows of the window into a file, as CSV for `remember`: one snapshot of the primary. Raises
        StoreUnavailable."""
        return self._theirs.look(self._mapping, into)

    def remember(
        self,
        cursor: Any,
        look: Look,
        rows: BinaryIO,
        began_at: datetime,
        ended_at: datetime,
        as_of: datetime,
        run_id: int,
        kept: timedelta,
        brokers: Mapping[str, str],
    ) -> list[LeftOut] | None:
        """Keeps a look in the control database, in the transaction of `cursor`; returns messages that it left out because their key
        is longer than the contract allows, 10,000 of them at most. None: a later look is kept already.

        `began_at`, `ended_at`: the control database's clock before and after the look; new rows are due at `as_of`; closed rows
        that were not met for `kept` are forgotten. `brokers`: by topic, where it is now.
        """
        values: dict[str, Any] = {
            "store": self._shard,
            "mapping": self._mapping.fingerprint,
            "server": look.server,
            "began_at": began_at,
            "ended_at": ended_at,
            "window_from": look.window_from,
            "as_of": as_of,
            "run_id": run_id,
            "kept": kept,
            "topic_bytes": TOPIC_BYTES,
            "id_bytes": ID_BYTES,
            "wal": look.wal,
            "slot_at": look.slot_at,
            "known_from": None,
            "known_since": None,
            **columns(sorted(brokers.items()), ("at_topics", "at_brokers")),
        }
        cursor.execute(_SQL["last_look"], values)
        for last in (LastLook(*row) for row in cursor.fetchall()):
            if last.began_at >= began_at:
                return None
            if (last.mapping, last.server) == (self._mapping.fingerprint, look.server):
                values |= {"known_from": last.window_from, "known_since": last.began_at}
        cursor.execute(_SQL["note_brokers"], values)
        cursor.execute(_SQL["make_room"])
        rows.seek(0)
        cursor.copy_expert("COPY mapped_row FROM STDIN (FORMAT csv)", rows)
        cursor.execute(_SQL["one_row_a_key"], values)
        cursor.execute(_SQL["left_out"], {**values, "listed": _CHUNK})
        left_out = [LeftOut(*row) for row in cursor.fetchall()]
        if look.slot_at is not None:
            cursor.execute(_SQL["slot_is_past"], values)
        for name in ("remember", *self._remember_more(values), "record_look", "of_another_mapping"):
            cursor.execute(_SQL[name], values)
        for name in ("remember_gone", "forget") if look.tells_gone else ("forget",):
            cursor.execute(_SQL[name], values)
        cursor.execute("DROP TABLE mapped_seen, mapped_row")
        return left_out

    def last_look(self) -> LastLook | None:
        """Null: there was none."""
        found = self._control.rows(_SQL["read_last_look"], {"store": self._shard})
        return LastLook(*found[0]) if found else None

    # What is read to judge

    def count_due(self, as_of: datetime, scope: Scope, limit: int) -> int:
        """Also 1 where the last look is old: rows that committed late, or have no time or a wrong one, are met by a look alone."""
        values = {**scope_values(as_of, scope), "store": self._shard, "limit": limit}
        ((remembered,),) = self._control.rows(_SQL["count_due"], values)
        last = self.last_look()

        ((now,),) = self._control.rows(_SQL["clock"])
        newest_at = None
        if last is not None and last.newest_at is not None:
            # A time after the look itself is wrong, and would hide every row to come.
            newest_at = min(last.newest_at, last.ended_at)
        newer = self._theirs.count_newer(
            self._mapping, now - self._mapping.lookback, newest_at, scope.topics, limit
        )
        is_old = last is None or now - last.ended_at > self._look_again
        return min(limit, max(int(remembered) + newer, int(is_old)))

    def scan_due(
        self, as_of: datetime, scope: Scope, partitions: int
    ) -> AbstractContextManager[Scan]:
        last = self.last_look()
        if last is None or last.began_at < as_of or last.mapping != self._mapping.fingerprint:
            raise StoreUnavailable(
                f"The mapped table of shard {self._shard} was not looked at in this run.",
                unaffected="Nothing was decided by what earlier looks saw; its messages stay due.",
                next_step="See why the look failed; the next run looks again.",
            )
        selects = {
            "stubs": f"{_SQL['stub_columns']} {_SQL['of_due']}",
            "attempts": f"{_SQL['attempt_columns']} {_SQL['attempts_of_due']}",
        }
        values = {
            **scope_values(as_of, scope),
            **self._known,
        }
        return scan(self._control, selects, _SQL["bounds"], values, partitions)

    def scan_window(
        self, topic: str, start: datetime, end: datetime, partitions: int
    ) -> AbstractContextManager[Scan]:
        if topic not in self._mapping.topics.values():
            return nullcontext(Scan([], 0))
        raise StoreUnavailable(
            f"Shard {self._shard} is a mapped table: what was deleted there before a look met it is not known.",
            unaffected="Nothing was proved without it.",
            next_step="A proof of the window needs stubs of Backstop's own; reconcile judges what the table holds.",
        )

    def read_part(self, part: Part, keep: Callable[[str, Any], T]) -> list[T]:
        return self._control.copy_parts(part.statements, PART_COLUMNS, part.snapshot, keep)

    def stub_table(self, keys: Sequence[Key]) -> Any:
        from backstop.sql.arrow import concat  # needs pyarrow, which not every caller has

        select = f"SELECT {', '.join(STUB_COLUMNS)} FROM ({_SQL['stub_columns']} {_SQL[self._by_key]}) AS found"
        asked = storable_keys(keys)
        chunks = [asked[start : start + _CHUNK] for start in range(0, len(asked), _CHUNK)] or [[]]
        return concat(
            [self._control.copy(select, self._met(chunk), STUB_COLUMNS) for chunk in chunks]
        )

    def attempt_table(self, keys: Sequence[Key]) -> Any:
        select = f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM ({_SQL['attempt_columns']} {_SQL['attempts_of_keys']}) AS found"
        values = {
            "store": self._shard,
            "later_numbers": self._by_looks_alone,
            **columns(storable_keys(keys), ("topics", "message_ids")),
        }
        return self._control.copy(select, values, ATTEMPT_COLUMNS)

    def stubs(self, keys: Iterable[Key]) -> dict[Key, Stub]:
        found: dict[Key, Stub] = {}
        for row in self.stub_table(list(keys)).to_pylist():
            at = {
                name: _instant(row[name])
                for name in (
                    "next_check_at",
                    "created_at",
                    "created_latest",
                    "first_seen_at",
                    "attempted_at",
                    "sent_at",
                    "attempt_deadline",
                    "judged_at",
                )
            }
            stub = Stub(
                shard=self._shard,
                topic=row["topic"],
                message_id=row["message_id"],
                status=row["status"],
                send_count=row["send_count"],
                refusals=row["refusals"],
                max_sends=row["max_sends"],
                **at,  # type: ignore[arg-type]
                attempt_token=None if row["settled"] else "theirs",
            )
            found[stub.key] = stub
        return found

    def oldest_due(self) -> datetime | None:
        found = self._control.rows(_SQL["oldest_due"], {"store": self._shard})
        return found[0][0] if found else None

    def known_until(self, topic: str, as_of: datetime) -> datetime | None:
        """Only a look of a run meets rows: what was committed since the last one began is not known yet."""
        if topic not in self._mapping.topics.values():
            return as_of
        last = self.last_look()
        if last is None or last.mapping != self._mapping.fingerprint:
            return None
        return min(as_of, last.began_at)

    def recorded_between(self, start: datetime, end: datetime) -> dict[str, Recorded]:
        values = {"store": self._shard, "start": start, "end": end}
        return {
            topic: Recorded(number, 0, 0, 0)
            for topic, number in self._control.rows(_SQL["recorded_between"], values)
        }

    def lives(self, topics: Sequence[str]) -> dict[str, set[Life]]:
        values = {"store": self._shard, "topics": list(topics)}
        found: dict[str, set[Life]] = {topic: set() for topic in topics}
        for topic, broker in self._control.rows(_SQL["lives"], values):
            found[topic].add(Life(broker, None, None))
        return found

    def proves(self, topic: str) -> bool:
        if topic not in self._mapping.topics.values():
            return True
        values = {"store": self._shard, "mapping": self._mapping.fingerprint, "topic": topic}
        ((found,),) = self._control.rows(_SQL["proves"], values)
        return bool(found)

    # What a mapped table has none of

    def attempts(self, keys: Iterable[Key]) -> dict[Key, list[Attempt]]:
        return {}

    def neighbours(self, keys: Iterable[Key]) -> dict[Key, Neighbours]:
        return {}

    def open_in_line(
        self, topic: str, ordering_key: str, after: str | None, limit: int
    ) -> list[str]:
        return []

    def named(self, topics: Sequence[str], text: str, limit: int) -> list[tuple[Key, str]]:
        return [(key, "id") for key in self.stubs([Key(topic, text) for topic in topics])][:limit]

    def sent_as(
        self, topics: Sequence[str], broker_message_id: str, created_from: datetime, limit: int
    ) -> list[tuple[Key, str]]:
        return []

    def contents(self, keys: Iterable[Key]) -> dict[Key, Message]:
        return {}

    def contents_beside(self, key: Key, limit: int, most_bytes: int) -> list[bytes]:
        return []

    def sizes(self, keys: Iterable[Key], above: int = -1) -> dict[Key, int]:
        return {}

    # What is changed: only what is remembered

    def promote(
        self,
        outcomes: Sequence[StubOutcome],
        as_of: datetime,
        own_as_of: datetime | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        given = map(array_literal, StubOutcomes.of(outcomes).columns)
        by_name = dict(zip(StubOutcomes.NAMES, given, strict=True))

        def move(cursor: Cursor) -> int:
            values = {**by_name, "store": self._shard, "as_of": as_of}
            cursor.execute(_SQL["promote"], values)
            if before_commit is not None:
                before_commit()
            return cursor.rowcount

        return self._control.run(move) if outcomes else 0

    def closed_since(self, topics: Sequence[str], since: datetime) -> Iterator[list[Key]]:
        values = {"store": self._shard, "topics": list(topics), "since": since, "limit": _CHUNK}
        last = Key("", "")
        while found := self._control.rows(_SQL["closed_since"], {**values, **last._asdict()}):
            closed = [Key(*row) for row in found]
            yield closed
            last = closed[-1]

    def reopen(self, keys: Sequence[Key]) -> int:
        def move(cursor: Cursor) -> int:
            cursor.execute(
                _SQL["reopen"],
                {"store": self._shard, **columns(storable_keys(keys), ("topics", "message_ids"))},
            )
            return cursor.rowcount

        return self._control.run(move)

    def claim(self, claims: Sequence[Claim]) -> dict[Key, Message]:
        return {}

    def unsendable(self, keys: Iterable[Key]) -> dict[Key, StoreFailed]:
        return {}

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        return set()

    def recover(self, limit: int, max_send_seconds: float | None = None) -> list[Key]:
        return []

    def late(self, after: Key, limit: int) -> list[Key]:
        return []

    def recover_of(self, keys: Sequence[Key], max_send_seconds: float) -> list[Key]:
        return []

    def raise_numbers(self, handed: Sequence[Handed]) -> set[Key]:
        return set()

    def void(self, key: Key) -> bool:
        return False

    def replace_content(self, key: Key, version: int, content: bytes) -> bool:
        return False

    def raise_max_sends(self, key: Key, max_sends: int) -> bool:
        return False

    def check(self) -> list[Finding]:
        return check_stubs(self._theirs, self._mapping, self.last_look())

    def close(self) -> None:
        self._theirs.close()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _met(self, keys: Sequence[Key]) -> dict[str, Any]:
        """The parameters of `of_keys`: what the table says of these messages now."""
        met, slot_at = self._theirs.rows_of_keys(self._mapping, keys) if keys else ([], None)
        names = ("met_topics", "met_ids", "met_created", "met_states", "met_versions")
        return {
            **self._known,
            "slot_at": slot_at,
            **columns(keys, ("topics", "message_ids")),
            **columns(met, names),
            **self._numbered(keys, met),
        }

    def _numbered(self, keys: Sequence[Key], met: Sequence[StubRow]) -> dict[str, Any]:
        """The parameters that overlay.parameters gives: there is no overlay. `met`: the rows of these messages now."""
        return parameters([])

    def _remember_more(self, values: dict[str, Any]) -> Sequence[str]:
        """Further statements that keep a look, whose parameters are added to `values`."""
        return ()


class MappedStubAudit:
    """What the audit asks of a mapped table; see stores.audit.StubAudit. Its invariants are held by the control database."""

    def __init__(self, shard: str, control_url: str) -> None:
        self._shard, self._control = shard, PostgresConnection("control", control_url)

    @property
    def shard(self) -> str:
        return self._shard

    def exhausted(self, after: Key, limit: int) -> list[Key]:
        values = {
            "store": self._shard,
            "after_topic": after.topic,
            "after_id": after.message_id,
            "limit": limit,
        }
        return [Key(*row) for row in self._control.rows(_SQL["exhausted"], values)]

    def numbers_beyond(self, start: datetime, end: datetime, limit: int) -> list[Key]:
        return []

    def never_ended(self, since: datetime, limit: int) -> list[Key]:
        return []

    def never_looked_at(self, since: datetime, until: datetime, limit: int) -> list[Key]:
        values = {"store": self._shard, "since": since, "until": until, "limit": limit}
        return [Key(*row) for row in self._control.rows(_SQL["never_looked_at"], values)]

    def overdue(self, since: Mapping[str, datetime], after: Key, limit: int) -> list[Key]:
        values = {
            "store": self._shard,
            "topics": list(since),
            "instants": list(since.values()),
            "after_topic": after.topic,
            "after_id": after.message_id,
            "limit": limit,
        }
        return [Key(*row) for row in self._control.rows(_SQL["overdue"], values)]

    def confirmed_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        return []

    def voided_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        return []

    def no_taker_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        values = {
            "store": self._shard,
            "topic": topic,
            "start": start,
            "end": end,
            "after_moved": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        found = self._control.rows(_SQL["no_taker_between"], values)
        return [(Key(found_topic, message_id), moved) for found_topic, message_id, moved in found]

    def not_voided(self, keys: Sequence[Key]) -> list[Key]:
        return []

    def not_erased(self, keys: Sequence[Key]) -> list[Key]:
        return []

    def close(self) -> None:
        self._control.close()


def _instant(micros: int | None) -> datetime | None:
    if micros is None:
        return None
    return max(EARLIEST, min(LATEST, _EPOCH + timedelta(microseconds=micros)))
