"""Decides (pure) how a batch goes on: what each delivery of the step released last says, and what they come to together.

A batch goes on only on proof (CONFIRMED, VOIDED), stops on proof of harm, and otherwise waits: its clock runs only once
the group has passed the copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from backstop.config.policy import Policy
from backstop.evidence.judge_by_key import Judged
from backstop.model.records import RequestState, Verdict
from backstop.requests.policy import NOT_CLAIMED, SEVERAL_SHARDS
from backstop.verdicts.frames import instant

SET_ASIDE = "ordering: "
"""Begins the error of a request that waits for its ordering key: others of the key may be in a later step, and a gap is
asked of a person in its own case, so the ramp neither waits for it nor counts it."""
A_PERSONS = "a person is asked about it as one of a mass loss"
"""The error of a request of reconcile that its blast radius holds by now: nothing of it was sent, so it proves nothing."""

Standing = Literal[
    "done",
    "waits",
    "not_claimed",
    "a_persons",
    "failed",
    "dead_lettered",
    "parked",
    "exhausted",
    "refused",
    "lost_again",
]
_HARM: Mapping[Verdict, Standing] = {
    Verdict.DEAD_LETTERED: "dead_lettered",
    Verdict.PARKED: "parked",
    Verdict.EXHAUSTED: "exhausted",
}


@dataclass(frozen=True, slots=True)
class Released:
    """A request of the step that is looked at."""

    request_id: int
    message_id: str
    send_number: int
    groups: tuple[str, ...] | None
    state: str
    error: str | None


@dataclass(slots=True)
class StepLook:
    """What a step's requests say: how many are done, wait or could not be sent, and what went wrong with which."""

    done: int = 0
    waits: int = 0
    harm: dict[str, list[str]] = field(default_factory=dict)
    """what went wrong -> message ids"""
    not_claimed: int = 0
    a_persons: int = 0
    """Closed unsent, because a person is asked about them: nothing of them is still to come."""

    def add(self, message_id: str, standing: Standing) -> None:
        match standing:
            case "done":
                self.done += 1
            case "waits":
                self.waits += 1
            case "not_claimed":
                self.not_claimed += 1
            case "a_persons":
                self.a_persons += 1
            case _:
                self.harm.setdefault(standing, []).append(message_id)

    def says(self) -> str:
        """The harm in words, with up to three examples of each kind."""
        return "; ".join(
            f"{len(ids)} {name.replace('_', ' ')} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
            for name, ids in sorted(self.harm.items())
        )


@dataclass(frozen=True, slots=True)
class Wait:
    """The step is not proven yet."""

    waits: int


@dataclass(frozen=True, slots=True)
class Release:
    """The next step: so many more."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Something went wrong: a person decides."""

    why: str


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing is held any more and the last step is proven."""


Next = Wait | Release | Stop | Close


def stand(
    request: Released,
    judged: Sequence[Judged],
    released_at: datetime,
    earlier_dead_letters: Collection[str] = (),
) -> Standing:
    """What one released request says of its step. `judged`: every delivery of its message, none when it has no stub.
    `earlier_dead_letters`: the groups in which the message was dead-lettered before the step and not since.

    The worst of its groups counts, and only what went wrong since the step was released: a failure, a parking or a dead letter
    from before says nothing about the copy.
    """
    if request.state == RequestState.OPEN and (request.error or "").startswith(SET_ASIDE):
        return "done"
    if request.state == RequestState.NOT_NEEDED and request.error == A_PERSONS:
        return "a_persons"
    if request.state in (RequestState.NOT_NEEDED, RequestState.SUPERSEDED):
        return "done"  # nothing of this request was sent, so it tells nothing about sending
    if request.state == RequestState.REFUSED:
        return "refused"
    mine = [one for one in judged if request.groups is None or one.consumer_group in request.groups]
    standings = [
        _stand_of_group(request, one, released_at, one.consumer_group in earlier_dead_letters)
        for one in mine
    ]
    for standing in standings:
        if standing != "aside" and standing not in ("done", "waits"):
            return standing
    if request.state == RequestState.OPEN and (request.error or "").startswith(
        (NOT_CLAIMED, SEVERAL_SHARDS)
    ):
        return "not_claimed"
    if "waits" in standings or request.state == RequestState.CLAIMED:
        return "waits"
    if request.state == RequestState.OPEN:
        # A person has to deal with it before it can go out: the others do not wait for that.
        return "done" if "aside" in standings else "waits"
    # Sent nevertheless, by a person: its log is what proves the copy.
    return "waits" if "aside" in standings else "done"


def _stand_of_group(
    request: Released, judged: Judged, released_at: datetime, old_letter: bool
) -> Standing | Literal["aside"]:
    if judged.verdict in (Verdict.CONFIRMED, Verdict.VOIDED):
        return "done"
    logged = judged.evidence.get("log_updated_at")
    since = instant(logged) if isinstance(logged, int) else None
    if judged.verdict in _HARM:
        # Nobody sends to a group that is parked or exhausted: where a copy went out, it became so afterwards.
        unsent = request.state in (RequestState.OPEN, RequestState.CLAIMED)
        before = {
            Verdict.DEAD_LETTERED: old_letter,
            Verdict.PARKED: unsent and since is not None and since < released_at,
            Verdict.EXHAUSTED: unsent,
        }
        return "aside" if before[judged.verdict] else _HARM[judged.verdict]
    if judged.evidence.get("log_state") == "FAILED" and since is not None and since >= released_at:
        return "failed"
    # Eligible means that every copy is past, this one too: the group went by it and did not do the work.
    sent = (
        request.state in (RequestState.SENT, RequestState.UNKNOWN)
        and judged.send_count >= request.send_number
    )
    if judged.eligible and sent:
        return "lost_again"
    return "waits"


def next_step(look: StepLook, *, held: bool, size: int, pardoned: bool, policy: Policy) -> Next:
    """How the batch goes on. `held`: requests wait for a step; `size`: how many the last step released (0: none yet);
    `pardoned`: a person has seen this step's harm and said go on."""
    if look.harm and not pardoned:
        return Stop(look.says())
    # A few that could not be sent delay nothing. Of a step of which most could not too little is proven: they go out later, and no
    # look judges them then.
    waits = look.waits or (look.not_claimed if look.not_claimed > look.done else 0)
    if waits and not pardoned:
        return Wait(waits)
    if not held:
        # The last step's harm was pardoned, its waiting was not: it is still to be proven.
        return Wait(waits) if waits else Close()
    # A step most of which was closed unsent has proven too little for a larger one.
    return Release(step_size(size, policy, again=pardoned or look.a_persons > look.done))


def step_size(size: int, policy: Policy, *, again: bool = False) -> int:
    """How many a step releases after one of `size`: the canary first (and again after a stop), then larger by the factor,
    never more than the rate sends between two reconcile runs."""
    if policy.canary == 0:
        return 2**31 - 1
    if size == 0 or again:
        return policy.canary
    most = max(policy.canary, int(policy.rate_limit * policy.reconcile_interval.total_seconds()))
    return min(most, max(size, int(max(size, policy.canary) * policy.ramp_factor)))


def examples(look: StepLook, at_most: int = 10) -> dict[str, list[str]]:
    """Some ids of each kind of harm, for the case."""
    return {name: ids[:at_most] for name, ids in sorted(look.harm.items())}


def count(looks: Iterable[list[str]]) -> int:
    """How many messages were harmed."""
    return sum(len(ids) for ids in looks)
