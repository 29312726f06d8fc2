"""Counts: promises, effects, leases, stubs, resends and final verdicts must come to what is owed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .books import Books, Key, Ledger, Problems, given_up, held, keys_of
from .deaths import ENDS, GIVEN_UP, deaths_of, replays_called_for

LOST_ON_THE_WAY = (
    "crash_before_send",
    "lost_in_broker",
    "offset_moved",
    "taken_out",
    "files_removed",
    "cut_off",
    "not_sent_in_time",
)
"""Faults after which the message is gone for good unless it is sent again."""
NEVER_PUBLISHABLE = "refused"


def check_promises(books: Books, twice: set[Key], problems: Problems) -> None:
    """Every business row has exactly one stub, and every stub a business row."""
    for key, shards in books.business.items():
        stubs = [shard for shard, _, _ in books.stubs.get(key, [])]
        if sorted(shards) != sorted(stubs):
            problems.add("business row without exactly one stub", *key)
        if len(shards) > 1 and key not in twice:
            problems.add("one id on two shards", *key)
    for key in books.stubs.keys() - books.business.keys():
        problems.add("stub without a business row", *key)


def check_effects(
    books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems
) -> dict[str, Any]:
    """Each group's effects: each expected one exactly once, and no other."""
    refused = {key for key in keys_of(ledger.get(NEVER_PUBLISHABLE, [])) if given_up(books, key)}
    told: dict[str, Any] = {}
    for group, effects in books.effects.items():
        owed = {key for key in books.business if group in topics.get(key[0], [])}
        expected = owed - refused - poisoned(books, ledger, group)
        missing = [key for key in expected if effects[key] == 0]
        doubled = [key for key, times in effects.items() if times > 1]
        unexpected = [key for key in effects if effects[key] > 0 and key not in expected]
        for rule, keys in (
            ("missing", missing),
            ("duplicated", doubled),
            ("unexpected", unexpected),
        ):
            for key in keys:
                problems.add(f"effect {rule}", group, *key)
        told[group] = {
            "owed": len(owed),
            "expected": len(expected),
            "exactly_once": sum(1 for key in expected if effects[key] == 1),
            "missing": len(missing),
            "duplicated": len(doubled),
            "unexpected": len(unexpected),
        }
    return told


def poisoned(books: Books, ledger: Ledger, group: str) -> set[Key]:
    """What killed the group's handler and was given up by a person: no work is expected of it."""
    return {
        (topic, message_id)
        for (topic, message_id, of), fault in deaths_of(ledger).items()
        if of == group and ENDS[fault] == GIVEN_UP and (topic, message_id, of) in books.discards
    }


def check_data_checks(books: Books, ledger: Ledger, problems: Problems) -> None:
    """A check of the data fails when something was injected that it must see, and only then."""
    timeless = any(
        line.get("detail") == "consumed without a time" for line in ledger.get("broken_rows", [])
    )
    for (suite, name), times in books.failed_checks.items():
        if not (
            timeless and suite in ("leases_before", "leases_after") and name == "done_has_a_time"
        ):
            problems.add("data check failed", suite, name, times)


def check_leases(books: Books, problems: Problems) -> None:
    """No lease is left behind by anybody: whatever was begun came to its end."""
    for group, keys in books.unended.items():
        for key in keys - {
            (topic, message_id) for topic, message_id, of in books.discards if of == group
        }:
            problems.add("work begun and never ended", group, *key)


def check_order(books: Books, problems: Problems) -> None:
    """In a group that consumes in order the effects of each key came in the order of its queue, whatever was parked meanwhile."""
    for group, done in books.in_order.items():
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for key, queue, offset in done:
            ordering_key = (key[0], books.ordering_keys.get(key) or key[1])
            before = last.setdefault(ordering_key, (queue, offset))
            if before > (queue, offset):
                problems.add("effect out of order", group, *key)
            last[ordering_key] = (queue, offset)


def check_resends(
    books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems
) -> dict[str, Any]:
    """No send that nothing called for: a message may reach a group again once for each time it was lost."""
    losses: Counter[tuple[Key, str]] = Counter()
    for fault in LOST_ON_THE_WAY:
        for line in ledger.get(fault, []):
            key = (line["topic"], line["message_id"])
            for group in (
                [line["consumer_group"]] if line.get("consumer_group") else topics.get(key[0], [])
            ):
                losses[key, group] += 1
    for (topic, message_id, group), times in replays_called_for(ledger).items():
        losses[(topic, message_id), group] += times
    refused = keys_of(ledger.get(NEVER_PUBLISHABLE, []))
    outcomes: Counter[str] = Counter()
    needless = 0
    for key, resends in books.resends.items():
        reached: Counter[str] = Counter()
        for _, groups, outcome in resends:
            outcomes[outcome] += 1
            if outcome != "refused":
                # A copy for all groups serves those that had lost it; the guards of the others stop it.
                losers = [group for group in topics.get(key[0], []) if losses[key, group]]
                reached.update(groups or losers or topics.get(key[0], []))
        called_for = key in refused or any(losses[key, group] for group in topics.get(key[0], []))
        if not called_for or any(times > losses[key, group] for group, times in reached.items()):
            needless += 1
            problems.add("resend needless", *key)
    if books.excess_attempts:
        problems.add("attempt beyond the numbers handed out", books.excess_attempts)
    for state in ("open", "claimed"):
        if books.summary["requests"].get(state):
            problems.add("resend request not closed", state, books.summary["requests"][state])
    return {
        "messages": len(books.resends),
        "attempts": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "needless": needless,
        "most_for_one_message": max(
            (len(resends) for resends in books.resends.values()), default=0
        ),
    }


def check_stubs(books: Books, problems: Problems) -> dict[str, int]:
    """Every stub is confirmed, given up with a case, held by an open case, or quarantined."""
    told: Counter[str] = Counter()
    for key, found in books.stubs.items():
        for shard, status, _ in found:
            if status == "confirmed":
                place = "confirmed"
            elif status in ("exhausted", "voided") and held(books, key, "open", "decided"):
                place = f"{status}, with a case"
            elif key in books.quarantined:  # also where people were asked about it
                place = "quarantined"
            elif held(books, key, "open"):
                place = "held by an open case"
            else:
                place = "unaccounted for"
                problems.add("stub unaccounted for", shard, *key)
            told[place] += 1
    return dict(told)


def count_final(books: Books, topics: dict[str, list[str]], problems: Problems) -> dict[str, Any]:
    """Where every delivery stands now; the numbers must add up to the deliveries that are owed."""
    final: Counter[str] = Counter()
    owed = 0
    for key, found in books.stubs.items():
        groups = topics.get(key[0], [])
        owed += len(groups) * len(found)
        for _, status, _ in found:
            for group in groups:
                if (*key, group) in books.discards:
                    final["VOIDED"] += 1
                elif status == "confirmed" or key in books.consumed[group]:
                    final["CONFIRMED"] += 1
                elif status == "voided":
                    final["VOIDED"] += 1
                else:
                    final[
                        books.latest.get(
                            (key, group), "QUARANTINED" if key in books.quarantined else "NONE"
                        )
                    ] += 1
    if final["NONE"]:
        problems.add("delivery without a verdict", final["NONE"])
    if books.summary["runs_with_wrong_counts"]:
        problems.add(
            "a run's counts differ from its verdicts", books.summary["runs_with_wrong_counts"]
        )
    adds_up = sum(final.values()) == owed and not books.summary["runs_with_wrong_counts"]
    return {
        "deliveries": owed,
        "final": dict(sorted(final.items())),
        "adds_up": adds_up,
        "all_runs": books.summary["verdicts_of_all_runs"],
    }
