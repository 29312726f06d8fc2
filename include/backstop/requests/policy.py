"""Decides (pure) what a claimed request comes to, when the message is looked at next, and by which way a copy
may go.

These functions take values and return decision values; claim.py acts. A rerun decides the same: nothing here
is random.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from backstop.config.policy import Policy
from backstop.evidence.forgotten import FORGOTTEN
from backstop.evidence.judge_by_key import DeliveryVerdict
from backstop.model.records import Key, Verdict

Route = Literal["topic", "group"]

RECONCILE = "reconcile"
"""Asks by machine for what is eligible; a person may overrule an EXHAUSTED or a DEAD_LETTERED."""
TRIAGE = "triage"
"""Asks by machine for a dead letter whose cause lets it be replayed: of a delivery that is not done, and has no letter that is
undecided. The rules of routes and order hold for it."""
MACHINES = frozenset({RECONCILE, TRIAGE})
"""Everybody else is a person: one who looked at the delivery itself, one who listed ids (LIST), or one who chose many at once by a plan
(by_incident)."""
LIST = "person "
"""Begins `requested_by` of what a person asked for by a list of ids: they overrule order and dead letters, and no more."""
_INCIDENT = re.compile(r" \(incident \d+\)$")
NO_ROUTE = "no_route"
"""The error of a request that cannot be sent without reaching a group that a copy might harm; reconcile
makes the case."""
TOO_OLD = "too_old"
NOT_CLAIMED = "not claimed: "
"""Begins the error of a request whose row its shard refused to hand out, and quotes that database: it proves nothing, and a few of
them delay no ramp."""
SEVERAL_SHARDS = "broken contract: on several shards: "
"""Begins the error of a request whose message is on more than one shard: nothing of it is sent before somebody mends that, and a few
of them delay no ramp."""

EVERY_GROUP = "*"
"""In `asked_by`: all groups that are not named there."""

BEGUN = frozenset({Verdict.STALLED, Verdict.DEAD_LETTERED})
"""Its work was begun, and may have had its effect."""
_DONE = frozenset({Verdict.CONFIRMED, Verdict.VOIDED, Verdict.IN_PROGRESS})
# PARKED waits for a person as WAITING waits for an instant: its request is kept, and looked at again.
_WAIT = frozenset({Verdict.UNKNOWN, Verdict.WAITING, Verdict.BACKLOGGED, Verdict.PARKED})
# What the whole topic must not reach again in a group that does not know the header. VOIDED: a person gave the delivery up, perhaps
# because it was done by hand (of a message that was withdrawn nothing is sent at all).
_FRAGILE = frozenset({Verdict.DEAD_LETTERED, Verdict.PARKED, Verdict.VOIDED})


@dataclass(frozen=True, slots=True)
class Send:
    """Send it to these groups (null: all of the topic's) by this way."""

    groups: tuple[str, ...] | None
    route: Route


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """Close the request; its number stays free."""

    why: str


@dataclass(frozen=True, slots=True)
class Postpone:
    """Leave the request open until then."""

    until: datetime
    why: str


Decision = Send | NotNeeded | Postpone


def by_incident(who: str, incident_id: int) -> str:
    """Who asks for what is in a plan: a person, who saw counts and a few examples of it, and no delivery by itself."""
    return f"{who} (incident {incident_id})"


def is_by_incident(requested_by: str) -> bool:
    """As triage's: a dead letter that the plan does not know stops it, and the rules of routes and order hold."""
    return _INCIDENT.search(requested_by) is not None


def is_by_person(requested_by: str) -> bool:
    """Whether somebody looked at this delivery: they may overrule what holds machines back."""
    return requested_by not in MACHINES and not is_by_incident(requested_by)


def may_repeat(requested_by: str) -> bool:
    """Whether somebody who was shown what the copy would do asked for it: then it may reach a group that takes no duplicates."""
    return is_by_person(requested_by) and not requested_by.startswith(LIST)


def asker_of(group: str, requested_by: str, asked_by: Mapping[str, str] | None) -> str:
    """Who asked for this group of a request. `asked_by`: where several did, by group (EVERY_GROUP: the others)."""
    asked = asked_by or {}
    return asked.get(group) or asked.get(EVERY_GROUP) or requested_by


def askers_of(
    groups: Iterable[str], requested_by: str, asked_by: Mapping[str, str] | None
) -> set[str]:
    """Who asked for any of these groups, by asker_of."""
    if asked_by is None:
        return {requested_by}
    return {asker_of(group, requested_by, asked_by) for group in groups}


def whose_turn(groups: Collection[str], send_number: int) -> str:
    """To which of them this number goes, where one number cannot go to all: by turns, so that none whose copies get lost, or are
    refused, uses up the sends of the others."""
    return sorted(groups)[(send_number - 1) % len(groups)]


def backoff(n: int, key: Key, policy: Policy) -> timedelta:
    """The wait after send number `n` (1 and up): min(cap, base * factor^(n-1)), longer by up to the policy's
    jitter.

    The jitter comes from the message and the number, so that a rerun decides the same. It only adds: the wait
    stays above attempt_timeout + max_clock_skew, which the constraint on backoff_base is there for.
    """
    return policy.backoff(n) * jitter(n, key, policy)


def jitter(n: int, key: Key, policy: Policy) -> float:
    """How many times the policy's backoff the wait is."""
    text = f"{n} {len(key.topic)} {key.topic}{key.message_id}"
    share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
    return 1 + policy.backoff_jitter * share


def expected_queue_delay(waiting: Iterable[tuple[int, float | None]], cap: timedelta) -> timedelta:
    """How long a new copy waits behind the slowest group: (lag, messages a second) of each group -> 0 to
    `cap`.

    A group that lags and whose rate is not known, or 0, is expected to take the whole cap.
    """
    longest = timedelta(0)
    for lag, rate in waiting:
        if lag > 0:
            delay = timedelta(seconds=min(lag / rate, cap.total_seconds())) if rate else cap
            longest = max(longest, delay)
    return longest


def choose_route(
    wanted: Collection[str],
    duplicates: Mapping[str, str],
    verdicts: Mapping[str, str],
    *,
    own_retry_topic: bool = False,
) -> Route | None:
    """By which way a copy for `wanted` may go; null: by none, which is a case for a person.

    A copy sent to the topic reaches every group. `duplicates` is what each group of the topic declared
    (guard, declared_safe, no), `verdicts` the last one of each group that is known. `own_retry_topic`: the
    broker can send to one group alone.
    """
    if _barred_by(wanted, duplicates, verdicts):
        return "group" if own_retry_topic and len(wanted) == 1 else None
    return "topic"


def waits_for_evidence(
    wanted: Collection[str],
    duplicates: Mapping[str, str],
    verdicts: Mapping[str, str],
    *,
    never_sent: bool,
) -> bool:
    """Whether a message that cannot be sent to `wanted` alone should wait instead of becoming a case.

    While no copy exists (`never_sent`), a group that takes no duplicates still needs its own: once its verdict is known, one
    copy serves all. If its verdict stays unknown, that delivery has a case of its own.
    """
    barred_by = _barred_by(wanted, duplicates, verdicts)
    return (
        never_sent and bool(barred_by) and all(verdicts.get(group) in _WAIT for group in barred_by)
    )


def _barred_by(
    wanted: Collection[str], duplicates: Mapping[str, str], verdicts: Mapping[str, str]
) -> list[str]:
    """The other groups that a copy to the topic might harm."""
    return [
        group
        for group, declared in duplicates.items()
        if group not in wanted
        and (declared == "no" or (declared != "guard" and verdicts.get(group) in _FRAGILE))
    ]


def decide(
    asked: Sequence[str] | None,
    requested_by: str,
    judged: Sequence[DeliveryVerdict],
    *,
    as_of: datetime,
    replay_from: datetime,
    policy: Policy,
    duplicates: Mapping[str, str],
    own_retry_topic: bool,
    never_sent: bool = False,
    send_number: int = 1,
    asked_by: Mapping[str, str] | None = None,
) -> Decision:
    """One request, judged again at its claim. `asked`: its groups (null: all); `judged`: every delivery of
    its message; `never_sent`: no copy of it can be in the broker. `replay_from`: the instant from which
    replay_horizon counts. `send_number`: the request's (see whose_turn). `asked_by`: see asker_of; each group is sent to by the
    authority of who asked for it.

    Groups that need no copy any more, or not yet, are left out of the send; the others do not wait for them.
    """
    mine = [one for one in judged if asked is None or one.consumer_group in asked]
    if as_of >= replay_from + policy.replay_horizon:
        return NotNeeded(TOO_OLD)
    send, wait, done = [], [], []
    for one in mine:
        asker = asker_of(one.consumer_group, requested_by, asked_by)
        if _may_send(one, asker, duplicates):
            send.append(one.consumer_group)
        elif _waits(one, asker, duplicates):
            wait.append(one)
        else:
            done.append(one)
    if send:
        verdicts = {one.consumer_group: str(one.verdict) for one in judged}
        route = choose_route(send, duplicates, verdicts, own_retry_topic=own_retry_topic)
        shown = [group for group in send if may_repeat(asker_of(group, requested_by, asked_by))]
        if (
            route is None
            and not shown
            and waits_for_evidence(send, duplicates, verdicts, never_sent=never_sent)
        ):
            return _postponed([one for one in judged if one.verdict in _WAIT], as_of, policy)
        if route is None and own_retry_topic:
            # Each of them has a way of its own, which a number serves once: the others are asked for again.
            return Send((whose_turn(shown or send, send_number),), "group")
        if route is None and not shown:
            return NotNeeded(NO_ROUTE)
        everybody = set(send) == set(duplicates) and route != "group"
        return Send(None if everybody else tuple(sorted(send)), route or "topic")
    if wait:
        return _postponed(wait, as_of, policy)
    return NotNeeded(_say(done) or "no group owes it")


def _postponed(wait: Sequence[DeliveryVerdict], as_of: datetime, policy: Policy) -> Postpone:
    looks = [one.next_look_at for one in wait if one.next_look_at is not None]
    return Postpone(max(as_of + policy.recheck, min(looks, default=as_of)), _say(wait))


def _may_send(one: DeliveryVerdict, requested_by: str, duplicates: Mapping[str, str]) -> bool:
    if requested_by == RECONCILE or _undecided(one, requested_by):
        return one.eligible
    if one.verdict in BEGUN and not may_repeat(requested_by):
        # Its work was begun. A group may have joined the request, or be declared otherwise, since it was asked for.
        return duplicates.get(one.consumer_group) != "no"
    return one.verdict not in _DONE and one.verdict not in _WAIT


def _undecided(one: DeliveryVerdict, requested_by: str) -> bool:
    """What triage or a plan asked for has no open letter any more: one that is there is another one, which perhaps a person must
    decide. It may also be of a group that joined the request."""
    return one.verdict is Verdict.DEAD_LETTERED and (
        requested_by == TRIAGE or is_by_incident(requested_by)
    )


def _waits(one: DeliveryVerdict, requested_by: str, duplicates: Mapping[str, str]) -> bool:
    if _undecided(one, requested_by):
        # Nobody decides a dead letter that is not stored: the request closes, and a case asks.
        return one.reason != FORGOTTEN
    if one.verdict is Verdict.STALLED:
        # The broker may still redeliver it. A group that takes no duplicates is a person's to decide, not
        # ours to keep.
        return duplicates.get(one.consumer_group) != "no"
    return one.verdict in _WAIT


def _say(judged: Sequence[DeliveryVerdict]) -> str:
    return ", ".join(sorted(f"{one.consumer_group} {one.verdict} ({one.reason})" for one in judged))
