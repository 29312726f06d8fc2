"""Advances each topic's live batch by at most one step: judges what was released last, then releases, waits, stops or closes.

    held requests of a topic | judge the step released last by key | one transaction: the batch moves on and its next
                                                                     requests may be claimed

A crash before the commit leaves the batch where it was, for the next run. Two runs at once judge the same step; the row
moves only from the step that was judged, so that only one of them releases.
"""

from __future__ import annotations

from typing import Any

from backstop.cases.open import open_case
from backstop.evidence.judge_by_key import Judged
from backstop.model.records import Counts, Key
from backstop.resend.claim import Worker
from backstop.resend.earlier_dead_letters import EarlierDeadLetters
from backstop.resend.ramp_policy import (
    A_PERSONS,
    Close,
    Next,
    Release,
    Released,
    StepLook,
    Stop,
    Wait,
    count,
    examples,
    next_step,
    stand,
    step_size,
)
from backstop.runs.run import hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load

_SQL = load("backstop.resend", "ramp.sql")
_PAGE = 5_000


def advance_batches(worker: Worker) -> Counts:
    """Returns `batches`, `released`, `batches_waiting`, `batches_stopped`, `batches_closed`; each topic commits by itself.

    A few requests (at most the canary) are released at once, without a batch. Paused topics, and those in mode observe,
    stay as they are. Raises RunLost.
    """
    counts = Counts()
    topics = worker.settings.repaired(topics_of(worker.run.scope))
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["topics"], {"topics": topics})
        busy = [topic for (topic,) in cursor.fetchall()]
    for topic in busy:
        with worker.control, worker.control.cursor() as cursor:
            hold(cursor, worker.run)
            values = {"topic": topic, "why": A_PERSONS, "run_id": worker.run.run_id}
            cursor.execute(_SQL["close_a_persons"], values)
        with worker.control, worker.control.cursor() as cursor:
            cursor.execute(_SQL["live"], {"topic": topic})
            batch = cursor.fetchone()
        if batch is None:
            counts += _begin(worker, topic)
        elif batch[1] == "ramping":
            counts += _advance(worker, topic, *batch)
    return counts


def _begin(worker: Worker, topic: str) -> Counts:
    """The first step of what is held: everything when it is no more than a canary, else a batch with its canary."""
    counts, canary = Counts(), worker.policy(topic).canary
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["lock_topic"], {"topic": topic})
        cursor.execute(_SQL["live"], {"topic": topic})
        if cursor.fetchone() is not None:
            return counts  # another run began it a moment ago
        cursor.execute(_SQL["held"], {"topic": topic, "limit": canary + 1})
        held = int(cursor.fetchone()[0])
        batch_id: int | None = None
        if 0 < canary < held:
            cursor.execute(_SQL["begin"], {"topic": topic})
            batch_id = cursor.fetchone()[0]
            counts.add("batches")
        number = _release(cursor, topic, batch_id, 1, step_size(0, worker.policy(topic)))
        if batch_id is not None:
            cursor.execute(_SQL["first_step"], {"batch_id": batch_id, "size": number})
    return counts + Counts(released=number) if number else counts


def _advance(
    worker: Worker,
    topic: str,
    batch_id: int,
    _: str,
    step: int,
    size: int,
    released: int,
    released_at: Any,
    pardoned: int,
) -> Counts:
    look, letters = StepLook(), EarlierDeadLetters(worker, topic, released_at)
    for page in _pages(worker, batch_id, step):
        judgement = worker.judge.judgement([Key(topic, one.message_id) for one in page])
        worker.miss_all(judgement.unreachable)
        by_key: dict[str, list[Judged]] = {}
        for judged in judgement.judged:
            by_key.setdefault(judged.message_id, []).append(judged)
        for one in page:
            judged_of = by_key.get(one.message_id, [])
            # What did not answer tells nothing: a message that no shard seems to have may be in the one that is away.
            away = not judged_of and judgement.unreachable
            old = letters.groups(judged_of)
            look.add(
                one.message_id,
                "waits" if away or old is None else stand(one, judged_of, released_at, old),
            )
    counts, policy = Counts(), worker.policy(topic)
    where = {"batch_id": batch_id, "step": step, "pardoned": pardoned}
    with worker.control, worker.control.cursor() as cursor:
        hold(cursor, worker.run)
        cursor.execute(_SQL["still_ramping"], where)
        if cursor.fetchone() is None:
            return counts  # another run, or a person, moved it meanwhile
        cursor.execute(_SQL["held"], {"topic": topic, "limit": 1})
        held = int(cursor.fetchone()[0]) > 0
        decision: Next = next_step(
            look, held=held, size=size, pardoned=pardoned == step, policy=policy
        )
        match decision:
            case Wait():
                counts.add("batches_waiting")
            case Close():
                cursor.execute(_SQL["close"], where)
                counts.add("batches_closed")
            case Release(number):
                number = _release(cursor, topic, batch_id, step + 1, number)
                cursor.execute(_SQL["next_step"], {**where, "size": number})
                counts.add("released", number)
            case Stop(why):
                _stop(worker, cursor, topic, batch_id, step, released, look, why)
                counts.add("batches_stopped")
                counts.add("cases")
    return counts


def _release(cursor: Any, topic: str, batch_id: int | None, step: int, number: int) -> int:
    cursor.execute(
        _SQL["release"],
        {
            "topic": topic,
            "batch_id": batch_id,
            "step": None if batch_id is None else step,
            "number": number,
        },
    )
    return int(cursor.rowcount)


def _stop(
    worker: Worker,
    cursor: Any,
    topic: str,
    batch_id: int,
    step: int,
    released: int,
    look: StepLook,
    why: str,
) -> None:
    cursor.execute(_SQL["hold_again"], {"batch_id": batch_id})
    harmed = count(look.harm.values())
    # Without members: a delivery that is repaired later must not close the case, only a person goes on or gives up.
    case_id = open_case(
        cursor,
        kind="ramp_stopped",
        topic=topic,
        group="*",
        subject=f"batch {batch_id}",
        severity="critical",
        summary=f"Resending {topic} stopped at step {step} after {released} messages, {harmed} of them went wrong: {why}",
        evidence={
            "batch_id": batch_id,
            "step": step,
            "released": released,
            "done": look.done,
            "waiting": look.waits,
            "harm": {name: len(ids) for name, ids in look.harm.items()},
            "examples": examples(look),
        },
        members=[],
        run_id=worker.run.run_id,
    )
    cursor.execute(_SQL["stop"], {"batch_id": batch_id, "case_id": case_id})


def _pages(worker: Worker, batch_id: int, step: int) -> Any:
    after = 0
    while True:
        with worker.control, worker.control.cursor() as cursor:
            cursor.execute(
                _SQL["step"], {"batch_id": batch_id, "step": step, "after": after, "limit": _PAGE}
            )
            rows = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        yield [
            Released(
                row[0], row[2], row[3], None if row[4] is None else tuple(row[4]), row[5], row[6]
            )
            for row in rows
        ]
