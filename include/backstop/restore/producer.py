"""After a producer's database was restored: no send number that was handed out since the backup is handed out again.

    requests that took a number, since the backup -> stub: send count raised, each missing number recorded as unknown |
    messages that a person withdrew -> voided | a withdrawal that was cut short: judged first, done stays done

How those numbers ended is not known any more, so they count as copies that may be there: the message is sent again only when
every group is past the time at which they can have been stored. Safe to run twice; until it is done, nobody resumes sending.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.judge_by_key import Judge
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.records import Counts, Key, Outcome, StubStatus, Verdict
from backstop.restore.paused import begin, end
from backstop.sql.named import load
from backstop.stores.protocol import Handed, StubStore

_SQL = load("backstop.restore", "queries.sql")
_PAGE = 2_000


def restore_producer(
    settings: Settings, connections: Connections, control: Any, shard: str, since: datetime
) -> Counts:
    """`since`: an instant before the backup was taken. Returns `recovered`, `numbers`, `raised`, `voided`, `not_voided`
    (withdrawn once, and an attempt to send it is under way now).

    Raises ConfigurationError for an unknown shard, DecisionRefused unless everything is paused, StoreUnavailable.
    """
    if shard not in settings.producers:
        raise ConfigurationError(
            f"There is no shard {shard!r}.",
            unaffected="Nothing was changed.",
            next_step=f"Name one of: {', '.join(settings.producers)}.",
        )
    place = f"producer {shard}"
    since = begin(control, place, since)
    counts = Counts()
    with Judge(settings, connections, control) as judge:
        store = judge.sources.shard(shard)
        shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
        # First sends that were under way in the backup ended long ago: nobody will settle them any more.
        while recovered := store.recover(_PAGE, shortest.total_seconds()):
            counts.add("recovered", len(recovered))
        _raise_numbers(control, store, shard, since, counts)
        _withdraw_again(control, judge, shard, counts)
    if not counts.get("not_voided"):
        end(control, place)
    return counts


def _raise_numbers(
    control: Any, store: StubStore, shard: str, since: datetime, counts: Counts
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
        counts.add("raised", len(store.raise_numbers(handed)))


def _withdraw_again(control: Any, judge: Judge, shard: str, counts: Counts) -> None:
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
                counts.add("voided", int(store.void(key)))
        left = store.stubs([key for key in withdrawn if key not in kept])
        counts.add(
            "not_voided",
            sum(
                stub.status in (StubStatus.PENDING, StubStatus.EXHAUSTED) for stub in left.values()
            ),
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
