"""What a person may decide of a case, and which deliveries a decision fits at this moment (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from backstop.config.settings import Policy
from backstop.evidence.judge_by_key import Judged, Promise
from backstop.model.records import Verdict

ACTIONS: dict[str, str] = {
    "leave": "does nothing; the same finding opens no new case for these deliveries",
    "discard": "gives the delivery up for this group: no later run acts on it, and nothing is sent for it",
    "void": "withdraws the whole message, for every group",
    "raise": "allows one more send (or --more N); reconcile continues with it",
    "resend": "requests the next send, to this group alone, if it still fits when it is claimed",
    "go_on": "continues the stopped batch, with a canary again; failed messages keep their own verdicts and cases",
    "give_up": "closes what the stopped batch has not sent; only a person can request it again, and its overdue case says so",
    "replay": "requests the next send of each, to this group alone; if its sends are used up, allows one more",
    "replay_sample": "the same for a few of them (--sample N); the others stay until the result is known",
    "edit": "replaces the content of one message (--message ID --content-file FILE) and replays it; the old one is kept",
    "release": "processes the parked key's messages again, head first, the next when it is done; no send number is used",
    "edit_head": "replaces the content of the parked head (--content-file FILE), then releases the key",
    "discard_head": "gives up the parked head for this group, and releases the key's other messages",
    "discard_key": "gives up every message of the parked key that was shown, for this group; later ones go on",
    "accept": "accepts the queue's new epoch: older copies are judged by time from now on",
    "drained": "nothing will come from a broker that the topic left (--broker NAME): what went there is judged by time",
    "approve": "applies what another person proposed",
    "reject": "does not apply the proposal; the case waits for another answer",
}
"""Every action with its sentence."""

_BY_KIND: dict[str, tuple[str, ...]] = {
    "exhausted": ("raise", "void", "discard", "leave"),
    "refused": ("raise", "void", "discard", "leave"),
    "mass_loss": ("resend", "discard", "leave"),
    "new_epoch": ("accept", "drained", "leave"),
    "backlog": ("resend", "void", "discard", "drained", "leave"),
    "unknown": ("resend", "void", "discard", "drained", "leave"),
    "overdue": ("resend", "void", "discard", "drained", "leave"),
    "stalled": ("resend", "discard", "void", "leave"),
    "ramp_stopped": ("go_on", "give_up", "leave"),
    "order_gap": ("resend", "void", "discard", "leave"),
    "order_parked": ("resend", "void", "discard", "leave"),
    "no_route": ("resend", "discard", "void", "leave"),
    "dead_letters": ("replay", "replay_sample", "edit", "discard", "leave"),
    "lease_leak": ("leave",),
    "repeated_failure": ("leave",),
    "queue_blocked": ("leave",),
    "quota_full": ("leave",),
    "no_taker": ("leave",),
    "key_parked": ("release", "edit_head", "discard_head", "discard_key", "leave"),
    "parking_full": ("leave",),
    "downstream_away": ("leave",),
}
KINDS = tuple(_BY_KIND)
"""Every kind of case."""
OPTIONS: dict[str, str] = {
    "message_ids": "a choice of messages (--message)",
    "letters": "a choice of dead letters (--letter)",
    "more": "a number of more sends (--more)",
    "sample": "the size of a sample (--sample)",
    "content": "a new content (--content-file)",
    "broker": "a broker (--broker)",
}
"""What may be said beside an action, in words."""
_CHOICE: dict[str, tuple[str, ...]] = {
    "raise": ("message_ids", "more"),
    "accept": (),
    "go_on": (),
    "give_up": (),
    "drained": ("broker",),
    "replay_sample": ("message_ids", "letters", "sample"),
    "edit": ("message_ids", "letters", "content"),
    "release": (),
    "edit_head": ("content",),
    "discard_head": (),
    "discard_key": (),
}
WITHOUT_MEMBERS = (
    "lease_leak",
    "repeated_failure",
    "queue_blocked",
    "quota_full",
    "no_taker",
    "key_parked",
    "parking_full",
    "downstream_away",
)
"""Kinds of cases that list no deliveries."""
MOST = {"more": 100, "sample": 10_000}
"""What a form allows is held again when an answer is applied: whoever calls the API directly is not held to the form."""
_DONE = (Verdict.CONFIRMED, Verdict.VOIDED)


_WHILE_RELEASED = ("discard_head", "discard_key")
"""What a person may still decide of a parked key whose messages are being released."""


def actions_for(kind: str) -> tuple[str, ...]:
    """The actions that a case of this kind offers."""
    return _BY_KIND[kind]


def actions_now(kind: str, state: str, decision: str | None) -> tuple[str, ...]:
    """The actions that a case offers in this state."""
    if state == "open" or (state == "decided" and decision == "leave"):
        return actions_for(kind)
    return _WHILE_RELEASED if (kind, state) == ("key_parked", "decided") else ()


def options_for(kind: str, action: str) -> tuple[str, ...]:
    """What may be said beside this action in a case of this kind."""
    named = _CHOICE.get(action, ("message_ids", "letters"))
    return named if kind == "dead_letters" else tuple(name for name in named if name != "letters")


def why_not_with(kind: str, action: str, options: Mapping[str, Any]) -> str | None:
    """Why these options do not belong to the action, as a sentence; null: they do.

    An option that would be passed over may be what narrows the decision: whoever gave it wants less than would be done.
    """
    for name, most in MOST.items():
        number = options.get(name)
        if number is not None and (
            not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most
        ):
            return f"{OPTIONS[name].capitalize()} is a number from 1 to {most}, not {number!r}."
    known = options_for(kind, action)
    strange = [
        words
        for name, words in OPTIONS.items()
        if options.get(name) is not None and name not in known
    ]
    return (
        f"The answer {action} to a case of kind {kind} does not take {' and '.join(strange)}."
        if strange
        else None
    )


def is_done(judged: Judged) -> bool:
    """Nothing is left to decide: the group's work is done, or the delivery was given up before."""
    return judged.verdict in _DONE


def why_not(
    action: str, judged: Judged, promise: Promise, policy: Policy, as_of: datetime
) -> str | None:
    """Why this action does not fit a delivery that is not done, as the end of a sentence; null: it fits."""
    if judged.verdict is Verdict.IN_PROGRESS and action in ("discard", "void"):
        return "a consumer is working on it now"
    if action in ("discard", "void"):
        return None
    if as_of >= promise.replay_from + policy.replay_horizon:
        return "it is older than the replay horizon, beyond which nothing is published"
    if action == "raise":
        if promise.refusals >= policy.max_refusals:
            return "the broker refused it too often: fix the cause and raise max_refusals in the policy"
        if judged.verdict is not Verdict.EXHAUSTED and not judged.eligible:
            return f"its sends are not used up: it is {judged.verdict} ({judged.reason})"
        return None
    # A group that takes no duplicates is never resent to by a rule, only by a person who looked.
    if judged.eligible or judged.case_kind == "stalled":
        return None
    return f"it is {judged.verdict} ({judged.reason}): {judged.verdict.sentence}"
