"""Puts what is known of a message in the order in which it happened. No content, and no text that may quote one."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from backstop.airflow.console.models import Action, MessageDelivery, Story, TimelineEvent
from backstop.model.records import Attempt, LogRow, Stub
from backstop.reports.explain import who_asked
from backstop.reports.story import Delivery, MessageHistory

_HIDDEN_OF_LOG = ("owner_token", "last_error", "payload_hash")
_HIDDEN_OF_STUB = ("attempt_token",)


def story_of(told: MessageHistory, actions: list[Action]) -> Story:
    """As the API answers it."""
    return Story(
        topic=told.topic,
        message_id=told.message_id,
        found=told.found,
        sentence=_sentence(told),
        shards=told.shards,
        stub=None if told.stub is None else _without(asdict(told.stub), _HIDDEN_OF_STUB),
        deliveries=[
            MessageDelivery(
                group=one.consumer_group,
                owed=one.owed,
                verdict=one.verdict,
                reason=one.reason,
                evidence=one.evidence,
                next_step=one.next_step,
                log=None if one.log is None else _without(asdict(one.log), _HIDDEN_OF_LOG),
            )
            for one in told.deliveries
        ],
        timeline=sorted(_events(told), key=lambda event: event.at),
        attempts=[_without(asdict(one), ("error",)) for one in told.attempts],
        requests=[_without(one, ("error",)) for one in told.requests],
        dead_letters=told.letters,
        cases=told.cases,
        decisions=told.decisions,
        quarantine=told.quarantine,
        anomalies=told.anomalies,
        searched=told.searched,
        unreachable=told.unreachable,
        actions=actions,
    )


def _without(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _sentence(told: MessageHistory) -> str:
    if not told.found:
        searched = ", ".join(told.searched)
        away = f" {', '.join(told.unreachable)} did not answer." if told.unreachable else ""
        return f"Nothing has a trace of it. Searched: {searched}.{away}"
    if len(told.shards) > 1:
        return f"Its id is on more than one shard ({', '.join(told.shards)}): it is neither judged nor resent until one stub is removed."
    open_ones = [
        one for one in told.deliveries if one.owed and one.verdict not in ("CONFIRMED", "VOIDED")
    ]
    owed = [one for one in told.deliveries if one.owed]
    if owed and not open_ones:
        return _sentence_of_done(owed)
    if open_ones:
        return " ".join(
            f"{one.consumer_group}: {one.verdict}, because {one.evidence}." for one in open_ones
        )
    return "Something has a trace of it, and no group is known to owe it."


def _sentence_of_done(owed: list[Delivery]) -> str:
    """Of deliveries that are all CONFIRMED or VOIDED: only the former were confirmed."""
    confirmed = ", ".join(one.consumer_group for one in owed if one.verdict == "CONFIRMED")
    voided = ", ".join(one.consumer_group for one in owed if one.verdict == "VOIDED")
    if not voided:
        return f"Done: every group that owes it has confirmed it ({confirmed})."
    gave_up = f"Nothing is owed any more: a person withdrew it or gave it up for {voided}."
    return f"{gave_up} {confirmed} confirmed it." if confirmed else gave_up


def _events(told: MessageHistory) -> list[TimelineEvent]:
    found: list[tuple[datetime | None, str, str | None, str, dict[str, Any]]] = []
    if told.stub is not None:
        found += _of_stub(told.stub)
    for attempt in told.attempts:
        found += _of_attempt(attempt)
    for delivery in told.deliveries:
        if delivery.log is not None:
            found += _of_log(delivery.log)
    for letter in told.letters:
        name = {"dead_letter": letter["dead_letter_id"]}
        group = letter["consumer_group"]
        found.append(
            (
                letter["died_at"],
                "dead_letter",
                group,
                f"died: {letter['category'] or 'not classified yet'}",
                name,
            )
        )
        found.append(
            (letter["drained_at"], "dead_letter", group, "drained from the dead-letter queue", name)
        )
    for request in told.requests:
        name, send = {"request": request["request_id"]}, f"send {request['send_number']}"
        found.append(
            (
                request["created_at"],
                "request",
                None,
                f"{send} asked for by {who_asked(request)}",
                name,
            )
        )
        if request["state"] not in ("open", "claimed"):
            found.append(
                (
                    request["updated_at"],
                    "request",
                    None,
                    f"request for {send}: {request['state']}",
                    name,
                )
            )
    for case in told.cases:
        called, name = f"case {case['case_id']} ({case['kind']})", {"case": case["case_id"]}
        decided = f"{called}: {case['decision']} by {case['decided_by']}"
        group = case["consumer_group"]
        found.append((case["added_at"], "case", group, f"{called} asks about it", name))
        found.append((case["decided_at"], "case", group, decided, name))
    for decision in told.decisions:
        text = f"{decision['decision']} by {decision['decided_by']}: {decision['why']}"
        found.append((decision["decided_at"], "decision", decision["consumer_group"], text, {}))
    for row in told.quarantine:
        text = f"quarantined: {row['reason']} in {row['store']}"
        found.append((row["first_seen_at"], "quarantine", row["consumer_group"], text, {}))
    for row in told.anomalies:
        found.append(
            (
                row["first_seen_at"],
                "anomaly",
                row["consumer_group"],
                f"odd: {row['kind']}, {row['times']} times",
                {},
            )
        )
    return [
        TimelineEvent(at=at.astimezone(UTC), kind=kind, group=group, text=text, details=details)
        for at, kind, group, text, details in found
        if at is not None
    ]


def _of_stub(stub: Stub) -> list[tuple[datetime | None, str, str | None, str, dict[str, Any]]]:
    return [
        (stub.created_at, "stub", None, f"recorded on {stub.shard}", {"status": stub.status}),
        (stub.first_seen_at, "stub", None, "first seen by a run", {}),
        (stub.deliver_at, "stub", None, "due for delivery", {}),
        (stub.judged_at, "stub", None, "last judged by a run", {}),
    ]


def _of_attempt(
    attempt: Attempt,
) -> list[tuple[datetime | None, str, str | None, str, dict[str, Any]]]:
    to = "all groups" if attempt.groups is None else ", ".join(attempt.groups)
    place = {
        "queue": attempt.queue_id,
        "offset": attempt.queue_offset,
        "epoch": attempt.queue_epoch,
    }
    where = (
        f", queue {attempt.queue_id} offset {attempt.queue_offset}"
        if attempt.queue_offset is not None
        else ""
    )
    return [
        (
            attempt.started_at,
            "send",
            None,
            f"send {attempt.send_number} to {to} by {attempt.requested_by}",
            {},
        ),
        (
            attempt.finished_at,
            "send",
            None,
            f"send {attempt.send_number}: {attempt.outcome}{where}",
            place,
        ),
    ]


def _of_log(log: LogRow) -> list[tuple[datetime | None, str, str | None, str, dict[str, Any]]]:
    group = log.consumer_group
    found = [
        (
            log.first_received_at,
            "log",
            group,
            f"first received by {group}",
            {"attempts": log.attempts},
        )
    ]
    if log.consumed_at is not None:
        return [
            *found,
            (
                log.consumed_at,
                "log",
                group,
                f"consumed by {group}",
                {"duplicates_stopped": log.duplicates_stopped},
            ),
        ]
    return [
        *found,
        (
            log.updated_at,
            "log",
            group,
            f"{group}: {log.state}",
            {"lease_expires_at": log.lease_expires_at},
        ),
    ]
