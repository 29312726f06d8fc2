"""Each injected fault but the deaths: was it found for what it is, and repaired, or left alone where that is right?"""

from __future__ import annotations

from typing import Any

from .accounts import LOST_ON_THE_WAY, NEVER_PUBLISHABLE
from .books import Books, Key, Ledger, Problems
from .deaths import ENDS


def check_faults(
    books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems
) -> dict[str, Any]:
    """Each injected fault but the deaths: found for what it is, and repaired, or left alone where that is right."""
    told: dict[str, Any] = {}
    for fault, lines in ((fault, lines) for fault, lines in ledger.items() if fault not in ENDS):
        distinct = {
            (line["topic"], line["message_id"], line.get("consumer_group")) for line in lines
        }
        keys = {(topic, message_id) for topic, message_id, _ in distinct}
        found = sum(
            1
            for topic, message_id, group in distinct
            if is_found(books, topics.get(topic, []), fault, lines, (topic, message_id), group)
        )
        resent = sum(1 for key in keys if books.resends.get(key))
        once = sum(
            1
            for key in keys
            if all(books.effects[group][key] == 1 for group in topics.get(key[0], []))
        )
        repaired = fault not in LOST_ON_THE_WAY or resent == len(keys)
        right = found == len(distinct) and repaired
        if fault not in (*LOST_ON_THE_WAY, NEVER_PUBLISHABLE):
            right = right and resent == 0
        right = right and once == (0 if fault == NEVER_PUBLISHABLE else len(keys))
        if not right:
            numbers = (
                f"injected {len(distinct)}, found {found}, resent {resent}, exactly once {once}"
            )
            problems.add("fault not dealt with", fault, numbers)
        told[fault] = {
            "injected": len(distinct),
            "messages": len(keys),
            "found": found,
            "resent": resent,
            "exactly_once": once,
            "ok": right,
        }
    return told


def is_found(
    books: Books,
    takers: list[str],
    fault: str,
    lines: list[dict[str, Any]],
    key: Key,
    group: str | None,
) -> bool:
    """Whether the tables show that this fault was recognised on this message (of the group that it names)."""
    seen = {
        (verdict, reason) for g, verdict, reason in books.seen.get(key, ()) if group in (None, g)
    }
    verdicts = {verdict for verdict, _ in seen}
    statuses = {status for _, status, _ in books.stubs.get(key, [])}
    kinds = {kind for kind, _ in books.cases.get(key, ())}
    match fault:
        case "crash_before_send" | "cut_off" | "not_sent_in_time":
            return "UNSENT" in verdicts
        case "crash_in_send":
            return statuses == {"confirmed"}
        case "lost_in_broker" | "offset_moved" | "taken_out":
            return "LOST" in verdicts
        case "files_removed":
            # Of one whose sender never heard from the broker, nobody knows that it was stored.
            return not seen.isdisjoint({("LOST", "expired_in_broker"), ("UNSENT", "not_stored")})
        case "consumer_killed" | "lease_killed":
            return group is not None and key in books.taken_over[group]
        case "worker_woken_late":
            return woken_in_vain(books, lines, key, group)
        case "leases_flushed":
            return all(key in books.stopped[taker] for taker in takers)
        case "poisoned_key":
            return any(
                (case.kind, case.topic, case.consumer_group, case.state)
                == ("key_parked", key[0], group, "closed")
                and [action for action, _ in case.decisions] == ["release"]
                for case in books.case_files
            )
        case "rolling_restart":  # nothing came to a second worker, not even to be stopped there
            return group is not None and not (
                key in books.taken_over[group] or key in books.stopped[group]
            )
        case "slow_group":
            return "BACKLOGGED" in verdicts
        case "refused":
            return "EXHAUSTED" in verdicts and "exhausted" in kinds
        case "broken_rows":
            return key in books.quarantined
        case "store_away":
            return ("UNKNOWN", "logs_unread") in seen
        case "mass_loss":
            return "LOST" in verdicts and "mass_loss" in kinds
    return False


def woken_in_vain(books: Books, lines: list[dict[str, Any]], key: Key, group: str | None) -> bool:
    """Whether a worker stood still in its work and woke up, and what counts was done later, under a higher fence."""
    if group is None:
        return False
    details = [
        line["detail"]
        for line in lines
        if (line["topic"], line["message_id"], line["consumer_group"]) == (*key, group)
    ]
    stood = [
        int(detail.rpartition(" ")[2]) for detail in details if " stood still with fence " in detail
    ]
    woke = [
        int(detail.rpartition(" ")[2]) for detail in details if " woke up with fence " in detail
    ]
    fences = books.fences[group].get(key, [])
    return bool(stood) and stood == woke and len(fences) == 1 and fences[0] > max(stood)
