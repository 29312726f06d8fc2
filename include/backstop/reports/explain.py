"""Says a verdict's evidence, and what happens next, in a sentence (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from backstop.evidence.judge_by_key import Judged
from backstop.model.records import Verdict
from backstop.requests.policy import EVERY_GROUP, RECONCILE, asker_of, is_by_person
from backstop.verdicts.frames import instant

_MISSING = {
    "logs_unread": "its log could not be read",
    "log_invalid": "its log row breaks its contract",
    "clock_skew": "the clocks of the stores involved differ too much, or could not be compared",
    "log_purged": "logs of its age may have been purged, or the mapping of its tables is not proven yet",
    "new_epoch": "its queue began a new life that nobody has accepted yet",
    "attempts_unread": "its attempts could not be read",
    "offsets_unread": "the broker's offsets or retry queues could not be read",
    "dlq_not_read": "the group's dead-letter queue could not be read to its end",
    "progress_unknown": "how far the group has got in the queue is not known",
    "undecidable": "the evidence fits no case",
}
_SPENT = {
    "given_up": "its stub is exhausted: a person decides what becomes of it",
    "sends_used": "its budget of sends is used up",
    "refused": "the broker refused it as often as is allowed",
    "too_old": "it is older than the replay horizon",
}


def evidence(judged: Judged) -> str:
    """Why the verdict is what it is."""
    e: Mapping[str, Any] = judged.evidence
    where = "" if e.get("queue_id") is None else f" in queue {e['queue_id']}"
    log = f"log {e.get('log_state')}, last moved {_at(e.get('log_updated_at'))}"
    past = f"the group is at offset {e.get('settled_offset')}{where}, past offset {e.get('copy_offset')}"
    if e.get("settled_offset") is None or e.get("copy_offset") is None:
        past = f"the group has passed everything stored before {_at(e.get('passed_until'))}"
    if judged.verdict is Verdict.EXHAUSTED:
        sends = f"{e.get('send_count')} sends, {e.get('refusals')} of them refused, allowed {e.get('budget')}"
        return f"{_SPENT.get(judged.reason, judged.reason)} ({sends})"
    says = {
        "stub_voided": "a person withdrew the message",
        "discarded": "a person gave this delivery up",
        "consumed": f"the group's {log}",
        "stub_confirmed": "its stub was confirmed before",
        "dead_letter": "an undecided dead letter of it is in the dead-letter queue",
        "ordering_key": "its ordering key waits for a person",
        "lease_without_expiry": f"a worker holds it without an expiry ({log})",
        "leased": f"a worker holds it until {_at(e.get('lease_expires_at'))}",
        "touched_lately": f"a worker touched it a moment ago ({log})",
        "not_due": "it is too early to look",
        "first_check": "it was first seen a moment ago, and no send of it was acknowledged",
        "to_be_redelivered": f"the broker will deliver it again ({log})",
        "unacknowledged": "the group has not acknowledged it, and the broker will deliver it (again)",
        "ahead_of_group": f"{e.get('copies_ahead')} of {e.get('copies')} copies are still ahead of the group{where}",
        "not_finished": f"received and not finished ({log}); the broker has nothing left to redeliver",
        "no_duplicates_allowed": f"received and not finished ({log}); the group takes no duplicates",
        "redelivery_possible": f"received and not finished ({log}); the broker may still redeliver it",
        "never_sent": "it was never handed to the broker",
        "refused": _refused(e),
        "not_stored": f"no send was acknowledged, {past}, and there is no log",
        "expired_in_broker": "the broker's retention removed it before the group came to it",
        "truncated": "the broker lost the end of the queue in which it lay",
        "passed_over": f"it was acknowledged, {past}, and there is no log",
    }
    return says.get(judged.reason) or _MISSING.get(judged.reason) or judged.verdict.sentence


def _refused(e: Mapping[str, Any]) -> str:
    """Of a delivery to whose group no copy can have come."""
    sends, refusals = e.get("send_count"), e.get("refusals")
    if sends == refusals:
        return f"every send was refused by the broker ({refusals} times)"
    return f"no copy went to the group: of {sends} sends the broker refused {refusals}, and the others were for other groups"


def next_step(
    judged: Judged,
    *,
    mode: str,
    paused: str | None,
    requests: Sequence[Mapping[str, Any]],
    in_mass_loss: bool = False,
    is_forgotten: bool = False,
) -> str:
    """What happens next to this delivery, and when. `in_mass_loss`: a person is asked about it as one of a mass loss, or left it.
    `is_forgotten`: as evidence/forgotten.py."""
    if judged.verdict in (Verdict.CONFIRMED, Verdict.VOIDED):
        return "nothing: it is done"
    for request in requests:
        if request["state"] not in ("open", "claimed"):
            continue
        if request["groups"] is not None and judged.consumer_group not in request["groups"]:
            continue
        asker = asker_of(judged.consumer_group, request["requested_by"], request["asked_by"])
        if request["state"] == "open" and (
            (is_forgotten and not is_by_person(asker)) or (in_mass_loss and asker == RECONCILE)
        ):
            continue  # its claim finds that only a person may send it
        send = f"send {request['send_number']} (request {request['request_id']})"
        if request["state"] == "claimed":
            return f"{send} is under way until {_moment(request['claim_deadline'])}"
        if paused is not None:
            return f"{send} waits: sending is paused ({paused})"
        if mode != "repair":
            return f"{send} waits: the topic is in mode {mode}, in which nothing is sent"
        if request["stopped"]:
            return (
                f"{send} waits: the ramp of its topic stopped, and a person decides its case"
                " (backstop cases list --kind ramp_stopped)"
            )
        if request["held"]:
            return f"{send} waits until a resend run releases it: the topic is resent in steps"
        return f"{send} is claimed from {_moment(request['not_before'])} on"
    asks = f"; a case asks a person ({judged.case_kind})" if judged.case_kind else ""
    if judged.verdict is Verdict.EXHAUSTED:
        return "a person decides (backstop cases list --kind exhausted --all)"
    if judged.eligible and (case_id := _gave_up(judged.consumer_group, requests)) is not None:
        return f"nothing by itself: a person gave its resend up (case {case_id}), and only a person asks for it again{asks}"
    if judged.eligible and is_forgotten:
        return (
            "nothing by itself: the control database was restored, and may have forgotten a dead letter of it; a person decides"
            " (backstop cases list --kind stalled --all)"
        )
    if judged.eligible and mode != "repair":
        return f"nothing is sent: the topic is in mode {mode}"
    if judged.eligible and in_mass_loss:
        return "nothing by itself: a person decides it with a mass loss (backstop cases list --kind mass_loss --all)"
    if judged.eligible:
        return f"the next reconcile asks for send {judged.send_count + 1}" + (
            f"; it then waits: sending is paused ({paused})" if paused is not None else ""
        )
    if judged.next_look_at is None:
        return "nothing by itself" + asks
    return f"looked at again from {_moment(judged.next_look_at)} on{asks}"


def who_asked(request: Mapping[str, Any]) -> str:
    """Who asked for a request; of one that several asked for, who for which of its groups."""
    if not request["asked_by"]:
        return str(request["requested_by"])
    return ", ".join(
        f"{who} ({'the other groups' if group == EVERY_GROUP else group})"
        for group, who in sorted(
            request["asked_by"].items(), key=lambda item: (item[0] == EVERY_GROUP, item[0])
        )
    )


def _gave_up(group: str, requests: Sequence[Mapping[str, Any]]) -> int | None:
    """The case by which a person gave the message's resend up for this group, whatever its number; None: nobody did."""
    for request in requests:
        if {group, "*"} & set(request["given_up_groups"] or ()):
            return int(request["given_up_by"])
    return None


def _at(micros: Any) -> str:
    return _moment(instant(micros)) if isinstance(micros, int) else "unknown"


def _moment(at: datetime | None) -> str:
    # The console finds an instant in a sentence by this form, and shows it in the reader's zone.
    return "unknown" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
