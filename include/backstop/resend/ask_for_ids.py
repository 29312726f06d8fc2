"""Limits a run to a list of ids, and asks as a person for those of which nobody has asked for a send yet.

    ids | judged by key -> open already, asked for now, or said why not | the run looks at these messages and nothing else

Budget, send number, blast radius, canary and rate hold as for everybody: a person's request overrules order and dead letters,
no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.decision_log import append
from backstop.control.speaker import require_may, settings_for
from backstop.evidence.judge_by_key import Judge, Judgement
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError, DecisionRefused, Unavailable
from backstop.model.id_list import ids_in
from backstop.model.records import Key
from backstop.requests.ask import (
    Ask,
    ask,
    duplicates_of,
    erased_among,
    ramped_topics,
    sends_to_one_group,
    take_turns,
)
from backstop.requests.policy import BEGUN, LIST, NO_ROUTE, Postpone, Send, decide
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.verdicts.blast_radius import Radius, too_wide

_SQL = load("backstop.resend", "queries.sql")
_BATCH = 1_000
_TOLD = 1_000
"""So many ids of a list are in the log of decisions."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What becomes of one id of the list. `asks`: the request that is made for it, if any."""

    message_id: str
    says: str
    asks: Ask | None = None
    sendable: bool = False
    """It may go out in this run: somebody asked for it, or this list does."""

    def __str__(self) -> str:
        return f"{self.message_id}: {self.says}"


def read_ids(text: str, named: Iterable[str] = ()) -> tuple[str, ...]:
    """One id a line and those that are `named`, each once, in the order given; blank lines are none. Raises ConfigurationError when
    there is no id."""
    found = tuple(dict.fromkeys([*ids_in(text), *named]))
    if not found:
        raise ConfigurationError(
            "The list of ids is empty.",
            unaffected="Nothing was started.",
            next_step="Give one id a line.",
        )
    return found


def ask_for_ids(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    topic: str,
    ids: Sequence[str],
    who: str,
    why: str,
    *,
    listed_in: str | None = None,
) -> list[Listed]:
    """Asks, limits the run, one commit; in a dry run it writes only the limit. One answer for each id, in their order.

    `listed_in`: the run in Airflow that gives the list; it is taken once, so that nobody asks again in another's name by clearing
    their run. Raises ConfigurationError when the topic is not in mode repair or who or why are empty, DecisionRefused when the
    list was taken before or is more than the blast radius allows, Unavailable when something did not answer (then nothing was
    asked), RunLost.
    """
    settings = settings_for(control, settings)
    if topic not in settings.topics:
        raise ConfigurationError(
            f"The duties' settings have no topic {topic}.",
            unaffected="Nothing was asked for.",
            next_step="Add it to their backstop.yaml.",
        )
    if not settings.is_repaired(topic):
        raise ConfigurationError(
            f"Topic {topic} is in mode observe, in which nothing is ever sent.",
            unaffected="Nothing was asked for.",
            next_step="Set its mode to repair in backstop.yaml.",
        )
    if not who.strip() or not why.strip():
        raise ConfigurationError(
            "Sending a list of ids needs a name and a reason.",
            unaffected="Nothing was asked for.",
            next_step="Say who asks (--by) and why (--why).",
        )
    require_may(control, settings, who, "resend", topic)
    with control, control.cursor() as cursor:
        hold(cursor, run)
        if not run.dry_run:
            _take_once(cursor, run, listed_in)
        cursor.execute(_SQL["open_requests"], {"topic": topic, "ids": list(ids)})
        open_already = {message_id for (message_id,) in cursor.fetchall()}
        erased = {key.message_id for key in erased_among(cursor, [Key(topic, i) for i in ids])}
    with Judge(settings, connections, control) as judge:
        listed = [
            one
            for batch in _batches(ids)
            for one in _look(judge, topic, batch, open_already, erased, who, why)
        ]
    with control, control.cursor() as cursor:
        if not run.dry_run:
            take_turns(cursor)
        hold(cursor, run)
        if not run.dry_run:
            asks = [one.asks for one in listed if one.asks is not None]
            _stay_within_radius(cursor, settings, run, topic, asks)
            ask(cursor, asks, None, ramped_topics(settings))
        cursor.execute(_SQL["limit_run"], {"run_id": run.run_id, "ids": list(ids)})
        if not run.dry_run:
            asked = [one.message_id for one in listed if one.asks is not None]
            details = {
                "asked": len(asked),
                "ids": asked[:_TOLD],
                "run": run.run_id,
                "listed_in": listed_in,
            }
            append(cursor, who, "resend", f"{len(ids)} ids of {topic}", why, details)
    return listed


def _take_once(cursor: Any, run: Run, listed_in: str | None) -> None:
    """Also when nothing comes of it: whoever clears the run later is not who triggered it."""
    if listed_in is None:
        return
    cursor.execute(_SQL["listed_before"], {"listed_in": listed_in})
    if before := cursor.fetchone():
        raise DecisionRefused(
            f"The list of the run {listed_in} was taken before, by run {before[0]}.",
            unaffected="Nothing was asked for.",
            next_step="Trigger another run: it asks in the name of who triggers it.",
        )
    cursor.execute(_SQL["take_list"], {"run_id": run.run_id, "listed_in": listed_in})


def _stay_within_radius(
    cursor: Any, settings: Settings, run: Run, topic: str, asks: Sequence[Ask]
) -> None:
    """Raises DecisionRefused for a list that, with what was requested recently, looks like a mass loss."""
    for group in settings.groups_of(topic):
        policy = settings.policy_for(topic, group)
        number = sum(one.groups is None or group in one.groups for one in asks)
        cursor.execute(
            _SQL["radius"],
            {
                "topic": topic,
                "group": group,
                "as_of": run.as_of,
                "seconds": policy.blast_window.total_seconds(),
                "person": LIST,
                "ids": [one.message_id for one in asks],
            },
        )
        before, confirmed = cursor.fetchone()
        if number and too_wide(
            Radius(number + int(before), int(confirmed)), policy.blast_share, policy.blast_floor
        ):
            raise DecisionRefused(
                f"{number} deliveries to {group} are more than the blast radius of {topic} allows without an approval.",
                unaffected="Nothing was asked for.",
                next_step="Plan them, and let somebody say yes to the plan: the DAG replay_incident, or backstop replay.",
            )


def _look(
    judge: Judge,
    topic: str,
    ids: Sequence[str],
    open_already: set[str],
    erased: set[str],
    who: str,
    why: str,
) -> Iterator[Listed]:
    seen = judge.judgement([Key(topic, message_id) for message_id in ids])
    if seen.unreachable:
        raise Unavailable(
            f"The present state could not be read: {', '.join(sorted(seen.unreachable))} did not answer.",
            unaffected="Nothing was asked for.",
            next_step="Bring it back, then send the list again.",
        )
    for message_id in ids:
        if message_id in open_already:
            yield Listed(message_id, "a request for it is open already", sendable=True)
        elif message_id in erased:
            yield Listed(message_id, "its content was erased on request: it is never sent again")
        else:
            yield _answer(judge.sources, seen, Key(topic, message_id), who, why)


def _answer(sources: Sources, seen: Judgement, key: Key, who: str, why: str) -> Listed:
    settings = sources.settings
    shards, judged = seen.shards_of.get(key, []), seen.verdicts.get(key, ())
    if not shards:
        return Listed(key.message_id, "no shard has it")
    if len(shards) > 1:
        return Listed(
            key.message_id, f"it is on several shards: {', '.join(shards)}; fix that first"
        )
    promise = seen.stubs[key]
    if promise.status in ("confirmed", "voided"):
        return Listed(key.message_id, f"{promise.status.upper()} already")
    policy = settings.policy_for(key.topic)
    budget = policy.max_sends if promise.max_sends is None else promise.max_sends
    duplicates = duplicates_of(settings, key.topic)
    decision = decide(
        None,
        LIST + who,
        judged,
        as_of=seen.as_of,
        replay_from=promise.replay_from,
        policy=policy,
        duplicates=duplicates,
        own_retry_topic=sends_to_one_group(sources, key.topic),
        never_sent=promise.send_count <= promise.refusals,
        send_number=promise.send_count + 1,
    )
    if isinstance(decision, Send):
        if promise.status == "exhausted" or promise.send_count - promise.refusals >= budget:
            return Listed(
                key.message_id, "EXHAUSTED: its sends are used up; allow more by its case (raise)"
            )
        number, groups = promise.send_count + 1, decision.groups
        request = Ask(
            promise.shard,
            key.topic,
            key.message_id,
            number,
            groups,
            why,
            LIST + who,
            decision.route,
        )
        to = "all groups" if groups is None else ", ".join(groups)
        return Listed(
            key.message_id,
            f"to send to {to} as send {number}, when ramp and rate let it",
            request,
            sendable=True,
        )
    if isinstance(decision, Postpone):
        return Listed(key.message_id, f"not yet: {decision.why}")
    if decision.why == NO_ROUTE or any(
        one.verdict in BEGUN and duplicates.get(one.consumer_group) == "no" for one in judged
    ):
        # A list is written without looking at each message; its case shows what the copy would do.
        return Listed(
            key.message_id,
            "a copy would reach a group that it might harm; decide it by its case (resend)",
        )
    return Listed(key.message_id, f"nothing to send: {decision.why}")


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _BATCH):
        yield ids[start : start + _BATCH]
