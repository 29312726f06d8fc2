"""Judges a few messages by key, now and on the primaries: at the claim of a resend, for a person, and for open cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.forgotten import restored_at, with_known_verdicts
from backstop.evidence.read import read_after_logs, read_groups, read_shard_clocks
from backstop.evidence.read_logs import read_logs
from backstop.evidence.read_owing import read_owing
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Key, Verdict
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.stores.protocol import STUB_COLUMNS
from backstop.verdicts import frames
from backstop.verdicts.evaluate import Engine, table
from backstop.verdicts.frames import Row, instant, micros

_SQL = load("backstop.evidence", "queries.sql")


@dataclass(frozen=True, slots=True)
class Judged:
    """One delivery's verdict at an instant, and what it rests on (ids, offsets and instants; never a payload)."""

    shard: str
    topic: str
    message_id: str
    consumer_group: str
    status: str
    send_count: int
    refusals: int
    max_sends: int
    verdict: Verdict
    reason: str
    eligible: bool
    case_kind: str | None
    next_look_at: datetime | None
    evidence: Row

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)


class DeliveryVerdict(NamedTuple):
    """One delivery's verdict, as far as a decision needs it."""

    consumer_group: str
    verdict: Verdict
    reason: str
    eligible: bool
    next_look_at: datetime | None


@dataclass(frozen=True, slots=True)
class Promise:
    """What a judgement saw of a stub."""

    shard: str
    key: Key
    status: str
    send_count: int
    refusals: int
    max_sends: int | None
    created_at: datetime
    replay_from: datetime
    """The instant from which replay_horizon counts."""


class Judgement:
    """What a look by key found. The tables are Arrow's, by the relations of `frames`; everything else is read from them.

    `unreachable` says what did not answer: what it would have shown is unknown, and the verdicts say so.
    """

    def __init__(
        self,
        as_of: datetime,
        stub_table: pa.Table,
        judged_table: pa.Table,
        read_outcomes: Callable[[], pa.Table],
        unreachable: Mapping[str, str],
        restored: datetime | None,
    ) -> None:
        """`read_outcomes` evaluates outcome.sql; it is called when somebody asks for outcomes, which a claim does not. `restored`: as
        forgotten.restored_at."""
        self.as_of, self.unreachable = as_of, dict(unreachable)
        self.stub_table, self.judged_table, self._read_outcomes = (
            stub_table,
            judged_table,
            read_outcomes,
        )
        self._restored = restored

    @cached_property
    def outcome_table(self) -> pa.Table:
        """What outcome.sql gives: one row for each stub."""
        return self._read_outcomes()

    @cached_property
    def judged(self) -> list[Judged]:
        """One for each delivery owed; messages that no shard has, or of topics without policy, are absent."""
        return [_judged(row) for row in self.judged_table.to_pylist()]

    @cached_property
    def _known_table(self) -> pa.Table:
        return with_known_verdicts(self.judged_table, self._restored)

    @cached_property
    def verdicts(self) -> dict[tuple[str, str], tuple[DeliveryVerdict, ...]]:
        """The verdicts of each message's deliveries as decisions take them (see forgotten), by key, without what they rest on: the quick
        way through a batch."""
        names = (
            "topic",
            "message_id",
            "consumer_group",
            "verdict",
            "reason",
            "eligible",
            "next_look_at",
        )
        columns = (self._known_table.column(name).to_pylist() for name in names)
        # Most deliveries of a batch have the same verdict: one record for each that differs.
        same: dict[tuple[Any, ...], DeliveryVerdict] = {}
        by_key: dict[tuple[str, str], tuple[DeliveryVerdict, ...]] = {}
        for topic, message_id, *what in zip(*columns, strict=True):
            said = tuple(what)
            if said not in same:
                group, verdict, reason, eligible, next_look_at = said
                same[said] = DeliveryVerdict(
                    group, Verdict(verdict), reason, eligible, instant(next_look_at)
                )
            by_key[topic, message_id] = (*by_key.get((topic, message_id), ()), same[said])
        return by_key

    @cached_property
    def numbered(self) -> tuple[pa.Table, list[DeliveryVerdict]]:
        """(topic, message_id and `verdict_number` of each delivery; what each number means): thousands of deliveries have few
        different verdicts, and columns are quicker than records. As decisions take them (see forgotten)."""
        names = ("consumer_group", "verdict", "reason", "eligible", "next_look_at")
        numbers = _number_rows([self._known_table.column(name) for name in names])
        places = [pc.index(numbers, number).as_py() for number in range(len(pc.unique(numbers)))]
        firsts = self._known_table.select(names).take(pa.array(places, pa.int64()))
        return self.judged_table.select(["topic", "message_id"]).append_column(
            "verdict_number", numbers
        ), [
            DeliveryVerdict(group, Verdict(verdict), reason, eligible, instant(next_look_at))
            for group, verdict, reason, eligible, next_look_at in map(
                dict.values, firsts.to_pylist()
            )
        ]

    @cached_property
    def replay_from(self) -> dict[tuple[str, str], datetime]:
        """The instant from which replay_horizon counts, by key; of a message on several shards the first one's stub."""
        found: dict[tuple[str, str], datetime] = {}
        names = ("topic", "message_id", "created_at", "deliver_at")
        columns = (self.stub_table.column(name).to_pylist() for name in names)
        for topic, message_id, created, deliver in zip(*columns, strict=True):
            at = instant(created if deliver is None else max(created, deliver))
            assert at is not None  # the column is NOT NULL, and a stub without it is quarantined
            found.setdefault((topic, message_id), at)
        return found

    @cached_property
    def stubs(self) -> dict[Key, Promise]:
        """Each message's promise; of a message on several shards the first one's, which was judged."""
        found: dict[Key, Promise] = {}
        for row in self.stub_table.to_pylist():
            key = Key(row["topic"], row["message_id"])
            created_at = instant(row["created_at"])
            assert (
                created_at is not None
            )  # the column is NOT NULL, and a stub without it is quarantined
            found.setdefault(
                key,
                Promise(
                    row["shard"],
                    key,
                    row["status"],
                    row["send_count"],
                    row["refusals"],
                    row["max_sends"],
                    created_at,
                    self.replay_from[row["topic"], row["message_id"]],
                ),
            )
        return found

    @cached_property
    def shards_of(self) -> dict[tuple[str, str], list[str]]:
        """Every shard that has the message, by key: more than one breaks the contract."""
        shards: dict[tuple[str, str], list[str]] = {}
        columns = (
            self.stub_table.column(name).to_pylist() for name in ("topic", "message_id", "shard")
        )
        for topic, message_id, shard in zip(*columns, strict=True):
            shards.setdefault((topic, message_id), []).append(shard)
        return shards

    @cached_property
    def outcomes(self) -> list[Row]:
        """Rows of outcome.sql, one for each stub."""
        rows: list[Row] = self.outcome_table.to_pylist()
        return rows


class Judge:
    """Holds the stores and brokers open; `control` is a connection to the control database, left without a transaction."""

    def __init__(
        self,
        settings: Settings,
        connections: Connections,
        control: Any,
        sources: Sources | None = None,
    ) -> None:
        """`sources`: stores and brokers that the caller opened, and closes; null: the judge's own."""
        self.settings, self._control = settings, control
        self._own = sources is None
        self.sources = Sources(settings, connections) if sources is None else sources
        self.engine = Engine()

    def judge(self, keys: Sequence[Key]) -> list[Judged]:
        """One `Judged` for each delivery owed; messages that no shard has, or of topics without policy, are absent."""
        return self.judgement(keys).judged

    def judgement(self, keys: Sequence[Key]) -> Judgement:
        """Reads everything in the safe order and evaluates the rule once."""
        self.sources.unreachable.clear()
        with self._control, self._control.cursor() as cursor:
            cursor.execute(_SQL["control_clock"])
            as_of: datetime = cursor.fetchone()[0]
            restored = restored_at(cursor)
            stubs, attempts, shards, without_attempts = self._read_stubs(keys)
            once = _first_of_each(stubs)
            topics = set(once.column("topic").to_pylist())
            readings = read_groups(self.sources, cursor, as_of, topics, _went_to(once, attempts))
            read_shard_clocks(readings, self.sources, cursor, shards, without_attempts)
            owing = read_owing(cursor, self.settings, topics)
            owed = self.engine.run("deliveries", {**owing, "stub": once})
            logs, answered = read_logs(self.sources, owed, set())
            delivery = self.engine.run(
                "delivery", {"owed": owed, "found_log": logs, "answered": answered}
            )
            read_after_logs(readings, self.sources, cursor, once.column("message_id").to_pylist())
            names = {"topics": "topic", "ids": "message_id"}
            cursor.execute(
                _SQL["decisions"],
                {
                    name: array_literal(once.column(column).to_pylist())
                    for name, column in names.items()
                },
            )
            decisions = [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
        at = table(frames.INSTANT, [{"as_of": micros(as_of)}])
        judged = self.engine.run(
            "verdict",
            {
                "instant": at,
                "delivery": delivery,
                "attempt": attempts,
                "policy": owing["policy"],
                "group_state": table(frames.GROUP_STATE, readings.group_state_rows()),
                "shard_state": table(frames.SHARD_STATE, readings.shard_state_rows()),
                "progress": table(frames.PROGRESS, readings.progress_rows()),
                "waiting": table(frames.WAITING, readings.waiting_rows()),
                "delay_look": table(frames.DELAY_LOOK, readings.delay_rows()),
                "dead_letter": readings.dead.table(),
                "decision": table(frames.DECISION, decisions),
            },
        )

        def outcomes() -> pa.Table:
            # Perhaps after this judge was closed: an engine of its own.
            with closing(Engine()) as engine:
                return engine.run(
                    "outcome",
                    {
                        "instant": at,
                        "stub": once,
                        "judged": judged,
                        "no_taker": table(frames.NO_TAKER, frames.no_taker_rows(self.settings)),
                    },
                )

        owed_by = _distinct(owed, "topic", "consumer_group")
        needed = {subject for topic, group, subject in readings.unread if (topic, group) in owed_by}
        for _, _, subject in readings.unread:
            if subject not in needed:
                self.sources.unreachable.pop(
                    subject, None
                )  # nothing here waits for a group that owes none of these messages
        return Judgement(as_of, stubs, judged, outcomes, self.sources.unreachable, restored)

    def _read_stubs(self, keys: Sequence[Key]) -> tuple[pa.Table, pa.Table, list[str], list[str]]:
        """Stubs, attempts, the shards that answered, and those of them that did not give their attempts. Every shard is asked,
        because one id on two shards is a broken contract that must not be resent."""
        stubs = [table(STUB_COLUMNS, [])]
        attempts = [table(frames.ATTEMPT, [])]
        read: list[str] = []
        without_attempts: list[str] = []
        known = [key for key in dict.fromkeys(keys) if key.topic in self.settings.topics]
        for name in self.settings.producers:
            try:
                found = self.sources.shard(name).stub_table(known)
            except Unavailable as error:
                self.sources.missed(f"shard {name}", error)
                continue
            stubs.append(found)
            read.append(name)
            again = found.filter(
                pc.or_kleene(
                    pc.greater(found.column("send_count"), 1),
                    pc.invert(pc.fill_null(found.column("first_to_all"), False)),
                )
            )
            try:
                if again.num_rows:
                    attempts.append(self.sources.shard(name).attempt_table(_keys_of(again)))
            except Unavailable as error:
                self.sources.missed(f"shard {name}", error)
                without_attempts.append(name)
        return (
            pa.concat_tables(stubs).combine_chunks(),
            pa.concat_tables(attempts),
            read,
            without_attempts,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.close()
        if self._own:
            self.sources.close()


def _went_to(*copies: pa.Table) -> set[tuple[str, str]]:
    """(topic, broker) of these stubs and attempts, where the broker was recorded."""
    return {
        (topic, broker)
        for rows in copies
        for topic, broker in _distinct(rows, "topic", "broker")
        if broker is not None
    }


def _distinct(rows: pa.Table, *names: str) -> set[tuple[Any, ...]]:
    """Each combination of these columns once."""
    once = rows.group_by(list(names)).aggregate([])
    return set(zip(*(once.column(name).to_pylist() for name in names), strict=True))


def _keys_of(rows: pa.Table) -> list[Key]:
    return list(map(Key, rows.column("topic").to_pylist(), rows.column("message_id").to_pylist()))


def _number_rows(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """A number for each row, from 0; rows with the same values have the same one."""
    numbers = pa.array([0] * len(columns[0]), pa.int64())
    for column in columns:
        values = column.combine_chunks().dictionary_encode("encode")
        pairs = pc.add(
            pc.multiply(numbers, len(values.dictionary)), values.indices.cast(pa.int64())
        )
        numbers = pairs.dictionary_encode().indices.cast(pa.int64())
    return numbers


def _first_of_each(stubs: pa.Table) -> pa.Table:
    """Each message once, numbered; the first shard's promise where several have it."""
    if stubs.group_by(["topic", "message_id"]).aggregate([]).num_rows < stubs.num_rows:
        keys = _keys_of(stubs)
        places = {key: place for place, key in reversed(list(enumerate(keys)))}
        stubs = stubs.take(sorted(places.values()))
    return stubs.add_column(0, "stub_id", pa.array(range(stubs.num_rows), pa.int64()))


def _judged(row: dict[str, Any]) -> Judged:
    return Judged(
        shard=row["shard"],
        topic=row["topic"],
        message_id=row["message_id"],
        consumer_group=row["consumer_group"],
        status=row["status"],
        send_count=row["send_count"],
        refusals=row["refusals"],
        max_sends=row["budget"],
        verdict=Verdict(row["verdict"]),
        reason=row["reason"],
        eligible=row["eligible"],
        case_kind=row["case_kind"],
        next_look_at=instant(row["next_look_at"]),
        evidence={name: row[name] for name in frames.EVIDENCE},
    )
