"""After a producer's database was restored: no send number that was handed out since the backup is handed out again.

    requests that took a number, since the backup -> stub: send count raised, each missing number recorded as unknown |
    contents that a person replaced since -> their newest version again |
    messages that a person withdrew -> voided | a withdrawal that was cut short: judged first, done stays done

How those numbers ended is not known any more, so they count as copies that may be there: the message is sent again only when
every group is past the time at which they can have been stored. Safe to run twice; until it is done, nobody resumes sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.judge_by_key import Judge
from backstop.evidence.recover_attempts import recover_apart
from backstop.model.errors import ConfigurationError, StoreFailed, StoreUnavailable
from backstop.model.records import (
    VERSION_HEADER,
    Counts,
    Key,
    Outcome,
    Stub,
    StubStatus,
    Verdict,
)
from backstop.restore.hold import hold
from backstop.restore.paused import begin, end
from backstop.restore.refused import refused_rows
from backstop.sql.named import load
from backstop.stores.protocol import Handed, StubStore

_SQL = load("backstop.restore", "queries.sql")
_PAGE = 2_000
UNFINISHED = ("not_raised", "not_edited", "not_voided")
"""Counts of messages that a send under way keeps from being restored: while there are any, the restore is not done."""
_OPEN = (StubStatus.PENDING, StubStatus.EXHAUSTED)


def restore_producer(
    settings: Settings, connections: Connections, control: Any, shard: str, since: datetime
) -> Counts:
    """`since`: an instant before the backup was taken. Returns `recovered`, `numbers`, `raised`, `edited`, `voided`; `content_gone`
    (messages held for a person, because their newest content is kept no longer); and of messages that an attempt to send is under
    way of now, so that this has to be run again after it: `not_raised`, `not_edited`, `not_voided`.

    Raises ConfigurationError for an unknown shard, DecisionRefused unless everything is paused, StoreUnavailable.
    """
    if shard not in settings.producers:
        raise ConfigurationError(
            f"There is no shard {shard!r}.",
            unaffected="Nothing was changed.",
            next_step=f"Name one of: {', '.join(settings.producers)}.",
        )
    place = f"producer {shard}"
    begun = begin(control, place, since)
    # The control database's clock may differ from the one that `since` was read from.
    since = begun - max(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    counts = Counts()
    with Judge(settings, connections, control) as judge:
        store = judge.sources.shard(shard)
        shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
        refused: list[tuple[Key, StoreFailed]] = []
        # First sends that were under way in the backup ended long ago: nobody will settle them any more.
        if recovered := recover_apart(store, shortest.total_seconds(), refused):
            counts.add("recovered", recovered)
        _raise_numbers(control, store, shard, since, counts, refused)
        _edit_again(control, store, shard, since, counts, refused)
        _withdraw_again(control, judge, shard, counts, refused)
    if refused:
        raise StoreFailed(
            f"Shard {shard} refuses to change {refused_rows(refused)}",
            unaffected="What is known of the other messages was put back; nothing was sent.",
            next_step="Find out what refuses it (a trigger, a policy, another transaction), and run this again: it is safe to run"
            " twice.",
        )
    if not any(counts.get(name) for name in UNFINISHED):
        end(control, place, begun)
    return counts


def _raise_numbers(
    control: Any,
    store: StubStore,
    shard: str,
    since: datetime,
    counts: Counts,
    refused: list[tuple[Key, StoreFailed]],
) -> None:
    after = 0
    while True:
        with control, control.cursor() as cursor:
            cursor.execute(
                _SQL["handed_out"], {"shard": shard, "since": since, "after": after, "limit": _PAGE}
            )
            rows = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        handed = sorted(
            (
                Handed(
                    Key(topic, message_id),
                    number,
                    groups,
                    f"request {request_id}",
                    at,
                    Outcome(outcome),
                )
                for request_id, topic, message_id, number, groups, at, outcome in rows
            ),
            key=lambda one: (one.key, one.send_number),
        )
        counts.add("numbers", len(handed))
        # All numbers of a message at once, and none above one that was refused: it could never be recorded any more.
        barred = {key for key, _ in refused}
        of: dict[Key, list[Handed]] = {}
        for one in handed:
            if one.key not in barred:
                of.setdefault(one.key, []).append(one)
        raised = apply_apart(list(of), partial(_raise, store, of), refused)
        counts.add("raised", sum(map(len, raised)))
        stubs = store.stubs({one.key for one in handed})
        behind = {one.key for one in handed if _is_behind(stubs.get(one.key), one.send_number)}
        if behind:
            counts.add("not_raised", len(behind))
        with control, control.cursor() as cursor:
            closed = [row[0] for row in rows if Key(*row[1:3]) not in behind]
            cursor.execute(_SQL["close_reopened"], {"ids": closed})
            gone = [row[0] for row in rows if Key(*row[1:3]) not in stubs]
            cursor.execute(_SQL["free_numbers"], {"ids": gone})


def _raise(store: StubStore, of: Mapping[Key, Sequence[Handed]], keys: Sequence[Key]) -> set[Key]:
    return store.raise_numbers([one for key in keys for one in of[key]])


def _is_behind(stub: Stub | None, number: int) -> bool:
    """Whether the stub could not be raised: a send of it was under way, and has perhaps ended since."""
    return stub is not None and stub.send_count < number


def _edit_again(
    control: Any,
    store: StubStore,
    shard: str,
    since: datetime,
    counts: Counts,
    refused: list[tuple[Key, StoreFailed]],
) -> None:
    """Gives messages the contents back that a person replaced since the backup. What was only begun is carried out, as the person
    wanted; what is kept no longer is not sent before somebody decides."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["edited"], {"shard": shard, "since": since})
        edits = cursor.fetchall()
    # One at a time: contents are large, and people edit few.
    for topic, message_id, newest, gone in edits:
        edit = partial(_edit, control, store, newest, gone, counts)
        apply_apart([Key(topic, message_id)], edit, refused)


def _edit(
    control: Any, store: StubStore, newest: int, gone: bool, counts: Counts, keys: Sequence[Key]
) -> None:
    (key,) = keys
    now = store.contents([key]).get(key)
    version = newest if now is None else int(now.headers.get(VERSION_HEADER, "1"))
    if version >= newest:
        return
    if gone:
        stub = store.stubs([key]).get(key)
        if stub is not None and stub.status in _OPEN:
            counts.add("content_gone" if hold(control, store, stub) else "not_edited")
        return
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["content"], {**key._asdict(), "version": newest})
        content = bytes(cursor.fetchone()[0])
    # The versions between are used up, too; whoever is cut short here begins again where it stands.
    while version < newest and store.replace_content(key, version, content):
        version += 1
    if version == newest:
        counts.add("edited")
    elif (stub := store.stubs([key]).get(key)) is not None and stub.status in _OPEN:
        counts.add("not_edited")


def _withdraw_again(
    control: Any,
    judge: Judge,
    shard: str,
    counts: Counts,
    refused: list[tuple[Key, StoreFailed]],
) -> None:
    """Voids what was voided before. Whether a begun withdrawal was applied is not known any more: it is applied, as the person
    wanted, unless every group has done its work meanwhile or one is at it."""
    store, last = judge.sources.shard(shard), Key("", "")
    while True:
        with control, control.cursor() as cursor:
            cursor.execute(_SQL["withdrawn"], {"shard": shard, **last._asdict(), "limit": _PAGE})
            rows = cursor.fetchall()
        if not rows:
            return
        withdrawn = {Key(topic, message_id): applied for topic, message_id, applied in rows}
        last = Key(*rows[-1][:2])
        begun = [key for key, applied in withdrawn.items() if not applied]
        kept = _kept(judge, begun) if begun else set()
        for key in withdrawn:
            if key not in kept:
                voided = apply_apart([key], lambda keys: store.void(keys[0]), refused)
                counts.add("voided", sum(voided))
        left = store.stubs([key for key in withdrawn if key not in kept])
        counts.add(
            "not_voided",
            sum(stub.status in _OPEN for stub in left.values()),
        )


def _kept(judge: Judge, begun: list[Key]) -> set[Key]:
    """Of withdrawals that were only begun: messages that are done for every group, or that a consumer is working on."""
    seen = judge.judgement(begun)
    if seen.unreachable:
        raise StoreUnavailable(
            f"Not everything answered: {', '.join(sorted(seen.unreachable))}.",
            unaffected="Send numbers were raised; nothing was sent.",
            next_step="Bring it back, and run this again: it is safe to run twice.",
        )
    verdicts: dict[Key, set[Verdict]] = {}
    for judged in seen.judged:
        verdicts.setdefault(judged.key, set()).add(judged.verdict)
    return {
        key
        for key, found in verdicts.items()
        if found <= {Verdict.CONFIRMED, Verdict.VOIDED} or Verdict.IN_PROGRESS in found
    }
