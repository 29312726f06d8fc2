"""Judges a few messages by key, now and on the primaries: at the claim of a resend, for a person, and for open cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import Unavailable
from backstop.named_sql import load
from backstop.records import Attempt, Key, LogRow, Stub, Verdict
from backstop.verdicts import evaluate, frames, look
from backstop.verdicts.frames import Row, instant, micros
from backstop.verdicts.sources import Sources

_SQL = load("backstop.verdicts", "queries.sql")


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` saw. `shards_of` names every shard that has the message: more than one breaks the contract."""

    as_of: datetime
    judged: list[Judged]
    stubs: dict[Key, Stub]
    shards_of: dict[Key, list[str]]
    outcomes: list[Row]
    """Rows of outcome.sql, one for each stub."""
    unreachable: dict[str, str]


class Judge:
    """Holds the stores and brokers open; `control` is a connection to the control database, left without a transaction."""

    def __init__(self, settings: Settings, connections: Connections, control: Any) -> None:
        self.settings, self._control = settings, control
        self.sources = Sources(settings, connections)

    def judge(self, keys: Sequence[Key]) -> list[Judged]:
        """One `Judged` for each delivery owed; messages that no shard has, or of topics without policy, are absent."""
        return self.judgement(keys).judged

    def judgement(self, keys: Sequence[Key]) -> Judgement:
        """Reads everything in the safe order and evaluates the rule once, in the control database."""
        self.sources.unreachable.clear()
        with self._control, self._control.cursor() as cursor:
            cursor.execute(_SQL["control_clock"])
            as_of: datetime = cursor.fetchone()[0]
            shards_of, stubs, attempts, shards = self._read_stubs(keys)
            looks = look.look_at_groups(self.sources, cursor, as_of, {key.topic for key in stubs})
            look.look_at_shards(looks, self.sources, cursor, shards)
            stub_rows = [
                {**stub_row(stub), "stub_id": number} for number, stub in enumerate(stubs.values())
            ]
            owed = evaluate.owed(cursor, {
                "stub": stub_rows, "policy": frames.policy_rows(self.settings, {key.topic for key in stubs}),
                "group_tag": frames.group_tag_rows(self.settings),
                "start_offset": frames.start_offset_rows(self.settings),
            })  # fmt: skip
            deliveries = self._read_logs(owed)
            look.look_after_logs(looks, self.sources)
            cursor.execute(
                _SQL["decisions"], {"topics": [k.topic for k in stubs], "ids": [k.message_id for k in stubs]}
            )
            decisions = [dict(zip(frames.DECISION, row, strict=True)) for row in cursor.fetchall()]
            judged = evaluate.judge(cursor, {
                "instant": [{"as_of": micros(as_of)}], "delivery": deliveries, "attempt": attempts,
                "policy": frames.policy_rows(self.settings, {key.topic for key in stubs}),
                "group_state": looks.group_state_rows(), "shard_state": looks.shard_state_rows(),
                "progress": looks.progress_rows(), "dead_letter": looks.dead, "decision": decisions,
            })  # fmt: skip
            outcomes = evaluate.outcome(cursor, {
                "instant": [{"as_of": micros(as_of)}], "stub": stub_rows, "judged": judged,
                "no_taker": frames.no_taker_rows(self.settings),
            })  # fmt: skip
        return Judgement(
            as_of, [_judged(row) for row in judged], stubs, shards_of, outcomes, dict(self.sources.unreachable)
        )

    def _read_stubs(
        self, keys: Sequence[Key]
    ) -> tuple[dict[Key, list[str]], dict[Key, Stub], list[Row], dict[str, bool]]:
        """Every shard is asked, because one id on two shards is a broken contract that must not be resent."""
        shards_of: dict[Key, list[str]] = {}
        stubs: dict[Key, Stub] = {}
        attempts: list[Row] = []
        read: dict[str, bool] = {}
        known = [key for key in dict.fromkeys(keys) if key.topic in self.settings.topics]
        for name in self.settings.producers:
            try:
                found = self.sources.shard(name).stubs(known)
            except Unavailable as error:
                self.sources.missed(f"shard {name}", error)
                continue
            for key, stub in found.items():
                shards_of.setdefault(key, []).append(name)
                stubs.setdefault(key, stub)
            again = [key for key, stub in found.items() if stub.send_count > 1]
            try:
                for key, ended in self.sources.shard(name).attempts(again).items() if again else ():
                    if stubs[key].shard == name:
                        attempts.extend(row for attempt in ended for row in attempt_rows(attempt))
                read[name] = True
            except Unavailable as error:
                self.sources.missed(f"shard {name}", error)
                read[name] = False
        return shards_of, stubs, attempts, read

    def _read_logs(self, owed: Iterable[Row]) -> list[Row]:
        by_group: dict[str, list[Row]] = {}
        for delivery in owed:
            by_group.setdefault(str(delivery["consumer_group"]), []).append(delivery)
        answered: list[Row] = []
        for group, deliveries in by_group.items():
            keys = [Key(str(d["topic"]), str(d["message_id"])) for d in deliveries]
            try:
                logs: dict[Key, LogRow] | None = self.sources.logs_of(group).logs(group, keys)
            except Unavailable as error:
                self.sources.missed(f"store {self.settings.groups[group].store}", error)
                logs = None
            for key, delivery in zip(keys, deliveries, strict=True):
                row = log_row(None if logs is None else logs.get(key), answered=logs is not None)
                answered.append({**delivery, **row})
        return answered

    def __enter__(self) -> Self:
        self.sources.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sources.__exit__(kind, error, trace)


def stub_row(stub: Stub) -> Row:
    """A stub as a row of frames.STUB, without its stub_id."""
    return {
        "shard": stub.shard, "topic": stub.topic, "message_id": stub.message_id, "tag": stub.tag,
        "status": str(stub.status), "send_count": stub.send_count, "refusals": stub.refusals,
        "max_sends": stub.max_sends, "next_check_at": micros(stub.next_check_at),
        "created_at": micros(stub.created_at), "first_seen_at": micros(stub.first_seen_at),
        "judged_at": micros(stub.judged_at), "deliver_at": micros(stub.deliver_at),
        "attempted_at": micros(stub.attempted_at), "sent_at": micros(stub.sent_at),
        "attempt_deadline": micros(stub.attempt_deadline), "queue_id": stub.queue_id,
        "queue_offset": stub.queue_offset, "queue_epoch": stub.queue_epoch,
    }  # fmt: skip


def attempt_rows(attempt: Attempt) -> list[Row]:
    """An ended send number as rows of frames.ATTEMPT, one for each group it was addressed to."""
    groups: Sequence[str | None] = (None,) if attempt.groups is None else attempt.groups
    return [
        {
            "topic": attempt.topic, "message_id": attempt.message_id, "send_number": attempt.send_number,
            "consumer_group": group, "outcome": str(attempt.outcome), "queue_id": attempt.queue_id,
            "queue_offset": attempt.queue_offset, "queue_epoch": attempt.queue_epoch,
            "started_at": micros(attempt.started_at), "finished_at": micros(attempt.finished_at),
        }
        for group in groups
    ]  # fmt: skip


def log_row(log: LogRow | None, *, answered: bool) -> Row:
    """A log row, or its proven absence, as the columns of frames.LOG."""
    if log is None:
        return {**dict.fromkeys(frames.LOG), "log_answered": answered, "log_found": False}
    return {
        "log_answered": answered, "log_found": True, "log_valid": log.invalid is None, "log_broken": log.invalid,
        "log_state": str(log.state), "lease_expires_at": micros(log.lease_expires_at),
        "log_updated_at": micros(log.updated_at), "log_consumed_at": micros(log.consumed_at),
    }  # fmt: skip


def _judged(row: Row) -> Judged:
    values: Any = row
    return Judged(
        shard=values["shard"], topic=values["topic"], message_id=values["message_id"],
        consumer_group=values["consumer_group"], status=values["status"], send_count=values["send_count"],
        refusals=values["refusals"], max_sends=values["budget"], verdict=Verdict(values["verdict"]),
        reason=values["reason"], eligible=values["eligible"], case_kind=values["case_kind"],
        next_look_at=instant(values["next_look_at"]), evidence={name: row[name] for name in frames.EVIDENCE},
    )  # fmt: skip
