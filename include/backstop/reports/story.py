"""Collects everything that is known of a message, over all databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backstop.control.read_rows import read
from backstop.evidence.forgotten import FORGOTTEN
from backstop.evidence.judge_by_key import Judge, Judged
from backstop.model.errors import Unavailable
from backstop.model.records import Attempt, Key, LogRow, Stub
from backstop.reports.explain import evidence, next_step
from backstop.reports.letters import letters_of_message
from backstop.restore.pause import paused as paused_now
from backstop.sql.named import load

_SQL = load("backstop.reports", "messages.sql")


@dataclass(slots=True)
class Delivery:
    """One group's part of the story."""

    consumer_group: str
    owed: bool
    verdict: str | None
    reason: str | None
    evidence: str
    next_step: str | None
    log: LogRow | None


@dataclass(slots=True)
class MessageHistory:
    """All that is known of one message; `found` is false when no store and no table of ours has a trace of it."""

    topic: str
    message_id: str
    found: bool = False
    shards: list[str] = field(default_factory=list)
    stub: Stub | None = None
    attempts: list[Attempt] = field(default_factory=list)
    under_way: int | None = None
    """The send number that was handed out and has not ended."""
    deliveries: list[Delivery] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    anomalies: list[dict[str, Any]] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)


def tell(
    judge: Judge, control: Any, topic: str, message_ids: Sequence[str]
) -> list[MessageHistory]:
    """One story for each id, in order. What did not answer is named in `unreachable`; it is never taken as "not there"."""
    keys = [Key(topic, message_id) for message_id in dict.fromkeys(message_ids)]
    stories = {key: MessageHistory(topic, key.message_id) for key in keys}
    seen = judge.judgement(keys)
    unreachable = dict(seen.unreachable)
    searched = _find_stubs(judge, keys, stories, unreachable)
    paused = {row["topic"]: f"{row['why']}, by {row['paused_by']}" for row in paused_now(control)}
    logs = _find_logs(judge, keys, topic, searched, unreachable)
    values = {"topic": topic, "message_ids": [key.message_id for key in keys]}
    mass_losses = {
        (row["message_id"], row["consumer_group"])
        for row in read(control, _SQL["mass_losses"], values)
    }
    by_key: dict[Key, list[Judged]] = {}
    for judged in seen.judged:
        by_key.setdefault(judged.key, []).append(judged)
    for key, story in stories.items():
        for name in ("requests", "cases", "decisions", "quarantine", "anomalies"):
            rows = read(
                control, _SQL[f"{name}_of_message"], {"topic": topic, "message_id": key.message_id}
            )
            setattr(story, name, rows)
        story.letters = letters_of_message(control, topic, key.message_id)
        mode = judge.settings.topics[topic].mode if topic in judge.settings.topics else "observe"
        forgotten = {
            one.consumer_group for one in seen.verdicts.get(key, ()) if one.reason == FORGOTTEN
        }
        # Reconcile quarantines an id that is on two shards: a verdict by the first one's stub would promise what never happens.
        for judged in by_key.get(key, ()) if len(story.shards) < 2 else ():
            story.deliveries.append(
                Delivery(
                    judged.consumer_group,
                    True,
                    str(judged.verdict),
                    judged.reason,
                    evidence(judged),
                    next_step(
                        judged,
                        mode=mode,
                        paused=paused.get(topic, paused.get("*")),
                        requests=story.requests,
                        in_mass_loss=(key.message_id, judged.consumer_group) in mass_losses,
                        is_forgotten=judged.consumer_group in forgotten,
                    ),
                    logs.get((judged.consumer_group, key)),
                )
            )
        told = {delivery.consumer_group for delivery in story.deliveries}
        # Of a topic that is not configured: the groups that logged the message.
        order = judge.settings.groups_of(topic) or tuple(
            group for group in judge.settings.groups if (group, key) in logs
        )
        for group in order:
            if group not in told:
                says = _why_no_verdict(
                    story,
                    group,
                    received=(group, key) in logs,
                    configured=topic in judge.settings.topics,
                    unreachable=unreachable,
                )
                story.deliveries.append(
                    Delivery(group, False, None, None, says, None, logs.get((group, key)))
                )
        story.deliveries.sort(key=lambda delivery: order.index(delivery.consumer_group))
        story.searched, story.unreachable = [*searched, "control database"], unreachable
        story.found = bool(
            story.stub
            or story.letters
            or story.requests
            or story.cases
            or story.decisions
            or story.quarantine
            or any(delivery.log for delivery in story.deliveries)
        )
    return [stories[Key(topic, message_id)] for message_id in message_ids]


def _find_stubs(
    judge: Judge,
    keys: Sequence[Key],
    stories: dict[Key, MessageHistory],
    unreachable: dict[str, str],
) -> list[str]:
    searched = []
    for shard in judge.settings.producers:
        try:
            store = judge.sources.shard(shard)
            found = store.stubs(keys)
            attempts = store.attempts(list(found)) if found else {}
        except Unavailable as error:
            unreachable[f"shard {shard}"] = error.what
            continue
        searched.append(f"shard {shard}")
        for key, stub in found.items():
            story = stories[key]
            story.shards.append(shard)
            if story.stub is None:
                story.stub, story.attempts = stub, attempts.get(key, [])
                ended = {attempt.send_number for attempt in story.attempts}
                story.under_way = next(
                    (n for n in range(stub.send_count, 0, -1) if n not in ended), None
                )
    return searched


def _find_logs(
    judge: Judge, keys: Sequence[Key], topic: str, searched: list[str], unreachable: dict[str, str]
) -> dict[tuple[str, Key], LogRow]:
    logs: dict[tuple[str, Key], LogRow] = {}
    # A topic that is not configured may still have been received: then every group is asked.
    groups = judge.settings.groups_of(topic) or tuple(judge.settings.groups)
    for group in groups:
        try:
            found = judge.sources.logs_of(group).logs(group, keys)
        except Unavailable as error:
            unreachable[f"logs of {group}"] = error.what
            continue
        searched.append(f"logs of {group}")
        logs.update({(group, key): log for key, log in found.items()})
    return logs


def _why_no_verdict(
    story: MessageHistory,
    group: str,
    *,
    received: bool,
    configured: bool,
    unreachable: Mapping[str, str],
) -> str:
    shard_away = any(subject.startswith("shard ") for subject in unreachable)
    if not configured:
        return "its topic is not in backstop.yaml, so it is not judged"
    if len(story.shards) > 1:
        return "its id is on more than one shard, so it is not judged"
    if story.stub is not None:
        return "the group does not owe it: its tags, its start or its active time leave it out"
    if received:
        answered = "that answered " if shard_away else ""
        return f"it was received, and no shard {answered}has its stub"
    if shard_away or f"logs of {group}" in unreachable:
        return "no stub and no log in what answered"
    return "no stub and no log"
