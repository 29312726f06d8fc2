"""Withdraws messages for a person, and writes down which withdrawals were really applied.

    control: begun | producer: voided, each a compare-and-set | control: applied, or forgotten where it was refused

Two databases: a crash before the last step leaves rows that are only begun. The next decision of the case looks
what became of them (`settle_begun`); a restore of the producer's database judges them first. What was applied outlives
the decision: a case that stays open for the rest, or is decided otherwise later, does not give a withdrawn message back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.decision_log import append
from backstop.evidence.sources import Sources
from backstop.model.records import Key, StubStatus
from backstop.sql.named import load

_SQL = load("backstop.decisions", "queries.sql")
_BATCH = 1_000


def withdraw(
    conn: Any, sources: Sources, intent: Mapping[str, Any], stubs: Iterable[tuple[str, Key]]
) -> set[Key]:
    """Voids each (shard, key) that is neither final nor under way; commits. Returns those that are voided now, whoever did it.

    intent: case_id, who, why. Raises StoreUnavailable when a shard does not answer: what was done before stays done, and a
    repetition counts it.
    """
    withdrawn, rest = set[Key](), iter(stubs)
    while batch := list(islice(rest, _BATCH)):
        _write(conn, "withdrawal_begun", intent, batch)
        done = [(shard, key) for shard, key in batch if sources.shard(shard).void(key)]
        applied = done + _voided(sources, [one for one in batch if one not in set(done)])
        _write(conn, "withdrawal_applied", intent, applied)
        _write(
            conn, "withdrawal_refused", intent, [one for one in batch if one not in set(applied)]
        )
        withdrawn.update(key for _, key in applied)
    return withdrawn


def settle_begun(
    conn: Any, settings: Settings, connections: Connections, intent: Mapping[str, Any]
) -> None:
    """What an earlier decision of this case had begun and could not finish: looks at the stubs, and writes down what they say.

    Raises StoreUnavailable when a shard does not answer; then it stays begun.
    """
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["withdrawals_begun"], intent)
        rest = iter(
            [(shard, Key(topic, message_id)) for shard, topic, message_id in cur.fetchall()]
        )
    with Sources(settings, connections) as sources:
        while batch := list(islice(rest, _BATCH)):
            voided = _voided(
                sources, [(shard, key) for shard, key in batch if shard in settings.producers]
            )
            gone = [one for one in batch if one not in set(voided)]
            with conn, conn.cursor() as cur:
                for query, rows in (
                    ("withdrawal_was_applied", voided),
                    ("withdrawal_refused", gone),
                ):
                    _execute(cur, query, intent, rows)
                append(
                    cur,
                    str(intent.get("approved_by") or intent["who"]),
                    "settle what was begun",
                    f"case {intent['case_id']}",
                    str(intent["why"]),
                    {"voided": len(voided), "not_voided": len(gone)},
                )


def _voided(sources: Sources, stubs: Sequence[tuple[str, Key]]) -> list[tuple[str, Key]]:
    """Those whose stubs are voided, one question to each shard."""
    by_shard: dict[str, list[Key]] = {}
    for shard, key in stubs:
        by_shard.setdefault(shard, []).append(key)
    return [
        (shard, key)
        for shard, keys in by_shard.items()
        for key, stub in sources.shard(shard).stubs(keys).items()
        if stub.status == StubStatus.VOIDED
    ]


def _write(
    conn: Any, query: str, intent: Mapping[str, Any], rows: Sequence[tuple[str, Key]]
) -> None:
    if rows:
        with conn, conn.cursor() as cur:
            _execute(cur, query, intent, rows)


def _execute(
    cur: Any, query: str, intent: Mapping[str, Any], rows: Sequence[tuple[str, Key]]
) -> None:
    cur.execute(
        _SQL[query],
        {
            **intent,
            "shards": [shard for shard, _ in rows],
            "topics": [key.topic for _, key in rows],
            "ids": [key.message_id for _, key in rows],
        },
    )
