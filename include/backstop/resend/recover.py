"""Recovers what a dead worker left, the shards first: attempts past their deadline are unknown, then requests
follow.

    stub loses its token, send_attempt says unknown | request closed if its number was taken, else open again
    |

Every run begins with it. A worker that is alive after all finds its token gone, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstop.evidence.recover_attempts import recover_attempts
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import WAITS_FOR_RELAY, Attempt, Counts, Key, RequestState, Stub
from backstop.resend.claim import Worker
from backstop.runs.run import hold
from backstop.sql.named import load

_SQL = load("backstop.resend", "queries.sql")
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A claimed request whose worker is late; `expired`: its claim is over."""

    request_id: int
    shard: str
    key: Key
    send_number: int
    claim_token: str
    expired: bool


def recover(worker: Worker) -> Counts:
    """Brings attempts and requests to an end; what does not answer stays as it is, and is named in
    `worker.missed`."""
    counts = Counts()
    recovered = recover_attempts(worker.judge.sources)
    if recovered.attempts:
        counts.add("recovered_attempts", recovered.attempts)
    for name, error in recovered.failed.items():
        if not isinstance(error, StoreFailed):
            worker.miss(f"shard {name}", error.what)
    worker.miss_all(recovered.missed())
    for batch in _left_behind(worker):
        waiting: list[dict[str, object]] = []
        ends = [
            end
            for shard in sorted({one.shard for one in batch})
            for end in _ends(worker, shard, batch, waiting)
        ]
        if waiting:
            with worker.control, worker.control.cursor() as cursor:
                hold(cursor, worker.run)
                values = {"waiting": json.dumps(waiting), "why": WAITS_FOR_RELAY}
                cursor.execute(_SQL["wait_on"], values)
        if ends:
            with worker.control, worker.control.cursor() as cursor:
                hold(cursor, worker.run)
                cursor.execute(
                    _SQL["recover"], {"ends": json.dumps(ends), "run_id": worker.run.run_id}
                )
                counts.add("recovered_requests", cursor.rowcount)
    return counts


def _ends(
    worker: Worker, shard: str, batch: Sequence[LeftBehind], waiting: list[dict[str, object]]
) -> list[dict[str, object]]:
    """What became of the requests of one shard. Adds to `waiting` those whose claim is over while their relay has not sent yet."""
    mine = [one for one in batch if one.shard == shard]
    keys = [one.key for one in mine]
    stubs: Mapping[Key, Stub] = {}
    attempts: Mapping[Key, list[Attempt]] = {}
    # A shard that backstop.yaml no longer names has no stubs for us.
    if shard in worker.settings.producers:
        if f"shard {shard}" in worker.missed:
            return []
        try:
            stubs = worker.judge.sources.shard(shard).stubs(keys)
            attempts = worker.judge.sources.shard(shard).attempts(keys)
        except Unavailable as error:
            worker.miss(f"shard {shard}", error.what)
            return []
    ends: list[dict[str, object]] = []
    for one in mine:
        end = end_of(one, stubs.get(one.key), attempts.get(one.key, []))
        if end is not None:
            state, why = end
            own = next((a for a in attempts.get(one.key, []) if is_own(one, a)), None)
            ends.append(
                {
                    "request_id": one.request_id,
                    "claim_token": one.claim_token,
                    "state": str(state),
                    "error": why,
                    # Their relay's copy names no group: such a request stays for those that it was made for.
                    "addressed": own is not None and not worker.settings.rearms(shard),
                    "groups": None if own is None or own.groups is None else list(own.groups),
                }
            )
        elif one.expired and worker.settings.rearms(shard):
            longest = worker.settings.policy_for(None).backoff_cap.total_seconds()
            waiting.append(
                {
                    "request_id": one.request_id,
                    "claim_token": one.claim_token,
                    "seconds": longest,
                }
            )
    return ends


def is_own(one: LeftBehind, attempt: Attempt) -> bool:
    """Whether the attempt is the send of this request."""
    return (attempt.send_number, attempt.requested_by) == (
        one.send_number,
        f"request {one.request_id}",
    )


def end_of(
    one: LeftBehind, stub: Stub | None, attempts: Sequence[Attempt]
) -> tuple[RequestState, str | None] | None:
    """What the shard says of a request left behind (pure); null: leave it, its number may still be under way.

    An attempt that ended tells by itself, whatever the claim's deadline: the number is used up. A number that
    was not taken is free again once the claim is over. The stub was read before the attempts: a number that
    ended in between tells by its attempt.
    """
    ended = next((a for a in attempts if a.send_number == one.send_number), None)
    if ended is not None:
        if ended.requested_by != f"request {one.request_id}":
            return RequestState.SUPERSEDED, f"its number was taken by {ended.requested_by}"
        return RequestState(ended.outcome), ended.error
    if not one.expired:
        return None
    if stub is None:
        return RequestState.NOT_NEEDED, "its stub is not there any more"
    if stub.send_count < one.send_number:
        return RequestState.OPEN, "its worker was gone before the number was taken"
    if stub.attempt_token is not None and stub.send_count == one.send_number:
        return None
    return RequestState.UNKNOWN, "its worker was gone; the outcome of its number is unknown"


def _left_behind(worker: Worker) -> Iterator[list[LeftBehind]]:
    shortest = min(worker.policy(topic).attempt_timeout for topic in worker.settings.topics)
    after = 0
    while True:
        with worker.control, worker.control.cursor() as cursor:
            cursor.execute(
                _SQL["left_behind"],
                {"after": after, "seconds": shortest.total_seconds(), "limit": _BATCH},
            )
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        yield [LeftBehind(row[0], row[1], Key(row[2], row[3]), *row[4:]) for row in rows]
