"""Decides (pure) what becomes of an open dead letter: discard it, replay it, ask a person, or wait.

First match wins, in the order of `decide`. Only the log, or a person, discards; whatever a machine cannot be sure of is
escalated. Boundary instants belong to the later state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from backstop.config.policy import Policy
from backstop.model.records import Category, LogRow, LogState, Stub, StubStatus

LEFT = "left"
"""The reason of a letter that a person left on purpose: no machine touches it before a person does."""
GIVEN_UP = "given_up"
STICKY = frozenset({GIVEN_UP, "refused_for_good", "no_route"})
"""Ends of a request that bar every machine from asking again (settle_replays), until a person takes the letter up."""
PERSONS = frozenset({Category.POISON, Category.CONFLICT, Category.UNKNOWN})
"""Categories of which no machine replays anything."""
_NO_LEASE = frozenset({LogState.CONSUMED, LogState.FAILED, LogState.EXPIRED, LogState.PARKED})


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one open letter's delivery at one look."""

    as_of: datetime
    category: str | None
    """Null: not classified yet."""
    barred: str | None = None
    """Which end of an earlier request bars every machine from asking again: one of STICKY."""
    unaddressable: str | None = None
    """Why it names no delivery that could be replayed: no_id, no_topic, unknown_topic, unknown_group, not_owed, invalid."""
    discarded: Mapping[str, Any] | None = None
    """The decision by which a person gave this delivery up, or withdrew the message."""
    log: LogRow | None = None
    unread: str | None = None
    """What could not be read, or whose clock is off; null: everything answered."""
    stub: Stub | None = None
    shards: tuple[str, ...] = ()
    """Every shard that has the message."""
    log_floor: datetime | None = None
    left: int | None = None
    """The case in which a person left this letter, or another of its delivery, on purpose."""
    replays: int = 0
    """Letters of this delivery that were replayed before, each counted once a send number."""
    observed: bool = False
    """Its topic is in mode observe."""
    route: str | None = "topic"
    duplicates: str = "guard"
    asked: str | None = None
    """Why a request for the message is under way that a new one could not join; null: none is."""
    forgotten: bool = False
    """A newer letter of the delivery may have been forgotten with what the control database was restored from (evidence/forgotten.py)."""
    before: str | None = None
    """An earlier message of its ordering key that a person must decide; null: none."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Nothing is left to do, and this shows it."""

    proof: Mapping[str, Any]
    by: str = "triage"


@dataclass(frozen=True, slots=True)
class Replay:
    """Ask for the next send, for this group alone."""

    reason: str


@dataclass(frozen=True, slots=True)
class Escalate:
    """A person decides, in the case of its cause."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again then."""

    until: datetime
    reason: str


Decision = Discard | Replay | Escalate | Wait


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason to ask a person is called in a sentence about letters, and how grave it is."""

    says: str
    critical: bool = field(default=False)


REASONS: Mapping[str, Meaning] = {
    "no_id": Meaning("carry no id that can be read"),
    "no_topic": Meaning("do not say of which topic they are"),
    "unknown_topic": Meaning("are of a topic that the settings do not name"),
    "unknown_group": Meaning("are of no group that the settings name for the topic"),
    "not_owed": Meaning("are of messages that the group does not owe"),
    "invalid": Meaning("break the contract of a message"),
    "invalid_log": Meaning("have a log that breaks its contract"),
    "no_stub": Meaning("are of messages that no shard promised"),
    "two_shards": Meaning("are of messages that are on more than one shard"),
    "too_old": Meaning("are older than the replay horizon"),
    "log_purged": Meaning("are older than the group's logs"),
    "stub_closed": Meaning(
        "are of messages whose stub is closed, and the log does not prove the work done"
    ),
    "poison": Meaning("have a content that the handler cannot process"),
    "conflict": Meaning("came with different content under the same id", critical=True),
    "unknown": Meaning("died of something that no rule matches"),
    "expired": Meaning("were not taken before their time to live ended"),
    "not_confirmed_any_more": Meaning(
        "were found done when they were classified, and are not now", critical=True
    ),
    "forgotten": Meaning(
        "may have a newer dead letter, forgotten when the control database was restored"
    ),
    "loop": Meaning("died again after every replay", critical=True),
    "budget": Meaning("have used up their sends or refusals", critical=True),
    "observe": Meaning("are of a topic in mode observe"),
    "no_duplicates": Meaning("are of a group that takes no duplicates"),
    "no_route": Meaning("cannot be replayed without reaching a group that a copy might harm"),
    "given_up": Meaning("are of messages whose resend a person gave up"),
    "refused_for_good": Meaning("were refused for good, by the broker or because of an erasure"),
}
"""Every reason to escalate."""


def decide(facts: Facts, policy: Policy) -> Decision:
    """What becomes of a letter whose delivery looks like this."""
    soon = facts.as_of + policy.recheck
    if facts.discarded is not None:
        return Discard(facts.discarded, str(facts.discarded.get("decided_by", "triage")))
    log, done = facts.log, is_done(facts)
    # A conflict's content is not the one that was consumed; an unclassified letter may be one.
    if log is not None and done and facts.category is not None and not is_conflict(facts):
        return Discard(proof_of(log))
    if facts.left is not None:
        return Wait(facts.as_of + _aged(policy), LEFT)
    if facts.unread is not None:
        return Wait(soon, f"unread: {facts.unread}")
    if log is not None and (until := busy_until(log, facts.as_of, policy)) is not None:
        # A lease may say that it ends in the year 9000, and be corrected tomorrow.
        return Wait(
            min(until, facts.as_of + _aged(policy)),
            "parked" if log.state == LogState.PARKED else "in_progress",
        )
    if facts.category is None:
        return Wait(soon, "not_classified")
    if done:
        return Escalate("conflict")
    if facts.unaddressable is not None:
        return Escalate(facts.unaddressable)
    if (cannot := cannot_send(facts, policy)) is not None:
        return Escalate(cannot)
    return _decide_sendable(facts, policy, soon)


def _decide_sendable(facts: Facts, policy: Policy, soon: datetime) -> Decision:
    """Of a delivery that a person could have replayed: may a machine?"""
    assert facts.stub is not None
    if facts.category in PERSONS:
        return Escalate(str(facts.category))
    if is_conflict(facts):
        return Escalate("conflict")
    if facts.category == Category.EXPIRED and policy.expired == "case":
        return Escalate("expired")
    if facts.category == Category.ALREADY_CONFIRMED:
        # The log said CONSUMED a moment ago and does not now: a restore, or somebody's hand. Not a machine's to repeat.
        return Escalate("not_confirmed_any_more")
    if facts.forgotten:
        return Escalate("forgotten")
    if facts.replays >= policy.max_replays:
        return Escalate("loop")
    if budget_used(facts.stub, policy):
        return Escalate("budget")
    if facts.observed:
        return Escalate("observe")
    if facts.duplicates == "no":
        return Escalate("no_duplicates")
    if facts.route is None:
        return Escalate("no_route")
    if facts.barred is not None:
        return Escalate(facts.barred)
    if facts.stub.attempt_token is not None:
        # Another program's relay has no deadline of ours, and may be done in a second.
        ends = min(facts.stub.attempt_deadline or soon, facts.as_of + _aged(policy))
        return Wait(max(ends, soon), "a send of it is under way")
    if facts.asked is not None:
        return Wait(soon, facts.asked)
    if facts.before is not None:
        return Wait(soon, f"behind {facts.before} of its key, which a person must decide")
    return Replay(str(facts.category))


def is_done(facts: Facts) -> bool:
    """Whether the group's log proves that the work of this id is done."""
    return (
        facts.log is not None and facts.log.invalid is None and facts.log.state == LogState.CONSUMED
    )


def is_conflict(facts: Facts) -> bool:
    """Whether its content may be another than the one that the group knows under this id."""
    if facts.category == Category.CONFLICT:
        return True
    # The log counts them for the id: which of its letters was one, nobody can say, but for one whose own text says it.
    counted = facts.log is not None and facts.log.invalid is None and facts.log.conflicts > 0
    return counted and facts.category != Category.DUPLICATE_SUPPRESSED


def cannot_send(facts: Facts, policy: Policy) -> str | None:
    """Why no copy may be sent for this delivery, by a person either; null: nothing forbids it."""
    if facts.stub is None:
        return "no_stub"
    if len(facts.shards) > 1:
        return "two_shards"
    if facts.as_of >= facts.stub.replay_from + policy.replay_horizon:
        return "too_old"
    if facts.stub.status not in (StubStatus.PENDING, StubStatus.EXHAUSTED):
        return "stub_closed"
    if facts.log is not None and facts.log.invalid is not None:
        return "invalid_log"
    # A log that is not there proves nothing once logs of its age were purged.
    if (
        facts.log is None
        and facts.log_floor is not None
        and facts.stub.created_at < facts.log_floor
    ):
        return "log_purged"
    return None


def busy_until(log: LogRow, as_of: datetime, policy: Policy) -> datetime | None:
    """Until when a worker has the message, or may touch it again; null: nobody does. `as_of` + recheck where nobody can say."""
    if log.invalid is not None:
        return None
    if log.state == LogState.PARKED:
        return as_of + policy.recheck
    ends: list[datetime] = []
    if log.state not in _NO_LEASE:
        if log.lease_expires_at is None:
            return as_of + policy.recheck
        ends.append(log.lease_expires_at + policy.max_clock_skew)
    if log.updated_at is not None:
        ends.append(log.updated_at + policy.consume_timeout)
    latest = max(ends, default=as_of)
    return latest if latest > as_of else None


def budget_of(stub: Stub, policy: Policy) -> int:
    """How often it may be sent, refusals not counted."""
    return policy.max_sends if stub.max_sends is None else stub.max_sends


def budget_used(stub: Stub, policy: Policy) -> bool:
    """Whether no further number may be handed out unless a person allows it."""
    return (
        stub.status == StubStatus.EXHAUSTED
        or stub.send_count - stub.refusals >= budget_of(stub, policy)
        or refused_too_often(stub, policy)
    )


def refused_too_often(stub: Stub, policy: Policy) -> bool:
    """Whether the broker refused it so often that a person's allowance does not help either."""
    return stub.refusals >= policy.max_refusals


def proof_of(log: LogRow) -> dict[str, Any]:
    """The log row that proves the work done; ids, instants and a hash, never a payload."""
    return {
        "log": str(log.state),
        "consumed_at": log.consumed_at.isoformat() if log.consumed_at else None,
        "attempts": log.attempts,
        "owner_host": log.owner_host,
        "payload_hash": log.payload_hash,
    }


def look_again(drained_at: datetime, as_of: datetime, policy: Policy) -> datetime:
    """When an escalated letter is looked at again: its work may be done by then. The older it is, the more rarely."""
    return as_of + min(max(policy.recheck, (as_of - drained_at) / 10), _aged(policy))


def _aged(policy: Policy) -> timedelta:
    return max(policy.recheck, timedelta(hours=1))
