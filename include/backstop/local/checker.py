"""Recompute, from the ledger of injected faults and from the tables alone, whether everything came out right.

It imports nothing of Backstop (psycopg2 and the standard library only), so that one mistake cannot be on both
sides of the comparison. Run it as `python -I checker.py PLACES.json LEDGER_FOLDER`; it prints its findings as
JSON and ends with 1 when something is wrong. PLACES holds `control` and, by name, `producers` and `groups`
(PostgreSQL URIs), and `topics` (topic -> the groups that owe its messages).
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

Key = tuple[str, str]
"""(topic, message id)"""
Resend = tuple[int, frozenset[str] | None, str]
"""(send number above 1, groups addressed or None for all, outcome)"""
SAMPLE = 5
LOST_ON_THE_WAY = ("crash_before_send", "lost_in_broker", "offset_moved", "not_sent_in_time")
"""Faults after which the message is gone for good unless it is sent again."""
NEVER_PUBLISHABLE = "refused"


@dataclass
class Books:
    """What the tables say, read once."""

    business: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))
    stubs: dict[Key, list[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(list))
    """key -> (shard, status, send_count), one for each shard that has it"""
    resends: dict[Key, list[Resend]] = field(default_factory=lambda: defaultdict(list))
    excess_attempts: int = 0
    effects: dict[str, Counter[Key]] = field(default_factory=dict)
    consumed: dict[str, set[Key]] = field(default_factory=dict)
    taken_over: dict[str, set[Key]] = field(default_factory=dict)
    stopped: dict[str, set[Key]] = field(default_factory=dict)
    """group -> messages of which the database itself stopped a second copy"""
    unended: dict[str, set[Key]] = field(default_factory=dict)
    fences: dict[str, dict[Key, list[int]]] = field(default_factory=dict)
    """group -> the fences under which a message's effects were committed"""
    cases: dict[Key, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """key -> (kind, state) of the cases that it is a member of"""
    quarantined: set[Key] = field(default_factory=set)
    seen: dict[Key, set[tuple[str, str, str]]] = field(default_factory=lambda: defaultdict(set))
    """key -> (group, verdict, reason) that some run decided; injected and unfinished messages only"""
    latest: dict[tuple[Key, str], str] = field(default_factory=dict)
    failed_checks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(suite, expectation) -> in how many runs it did not hold"""
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass
class Problems:
    """What is wrong, by rule, with a few ids each."""

    found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, rule: str, *subject: object) -> None:
        self.found[rule].append(" ".join(str(part) for part in subject))

    def listed(self) -> list[dict[str, Any]]:
        return [
            {"rule": rule, "count": len(all_of), "sample": sorted(all_of)[:SAMPLE]} for rule, all_of in sorted(self.found.items())
        ]


Ledger = dict[str, list[dict[str, Any]]]


def read_ledger(folder: Path) -> Ledger:
    """Fault -> its lines: each names a topic and a message_id, and the one consumer_group it hit, or null."""
    return {
        file.stem: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
        for file in sorted(folder.glob("*.jsonl"))
    }


def keys_of(lines: Iterable[dict[str, Any]]) -> set[Key]:
    return {(line["topic"], line["message_id"]) for line in lines}


def rows(dsn: str, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(dsn, connect_timeout=10)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())
    finally:
        connection.close()


def read_books(places: dict[str, Any], ledger: Ledger) -> Books:
    books = Books()
    for shard, dsn in places["producers"].items():
        for topic, message_id in rows(dsn, "SELECT topic, message_id FROM business_order"):
            books.business[topic, message_id].append(shard)
        for topic, message_id, status, sends in rows(dsn, "SELECT topic, message_id, status, send_count FROM message_stub"):
            books.stubs[topic, message_id].append((shard, status, sends))
        for topic, message_id, number, groups, outcome in rows(
            dsn,
            "SELECT topic, message_id, send_number, groups, outcome FROM send_attempt WHERE send_number > 1",
        ):
            books.resends[topic, message_id].append((number, frozenset(groups) if groups else None, outcome))
        books.excess_attempts += rows(
            dsn,
            "SELECT count(*) FROM send_attempt a LEFT JOIN message_stub s USING (topic, message_id)"
            " WHERE s.message_id IS NULL OR a.send_number > s.send_count",
        )[0][0]
    for group, dsn in places["groups"].items():
        effects = rows(dsn, "SELECT topic, message_id, fence FROM effect WHERE consumer_group = %s", (group,))
        books.effects[group] = Counter((topic, message_id) for topic, message_id, _ in effects)
        books.fences[group] = defaultdict(list)
        for topic, message_id, fence in effects:
            books.fences[group][topic, message_id].append(fence)
        log = "SELECT topic, message_id FROM consumer_log WHERE consumer_group = %s AND "
        done = rows(dsn, log + "state = 'CONSUMED' AND consumed_at IS NOT NULL", (group,))
        books.consumed[group] = {(topic, message_id) for topic, message_id in done}
        for told, which in (
            (books.taken_over, "attempts > 1"), (books.stopped, "duplicates_stopped > 0"), (books.unended, "state <> 'CONSUMED'"),
        ):  # fmt: skip
            told[group] = {(topic, message_id) for topic, message_id in rows(dsn, log + which, (group,))}
    read_control(places["control"], books, ledger)
    return books


def read_control(dsn: str, books: Books, ledger: Ledger) -> None:
    for topic, message_id, kind, state in rows(
        dsn,
        "SELECT m.topic, m.message_id, c.kind, c.state FROM case_member m JOIN case_file c USING (case_id)",
    ):
        books.cases[topic, message_id].add((kind, state))
    quarantined = rows(
        dsn,
        "SELECT DISTINCT topic, message_id FROM quarantine WHERE topic IS NOT NULL AND message_id IS NOT NULL",
    )
    books.quarantined = {(topic, message_id) for topic, message_id in quarantined}
    interesting = {message_id for lines in ledger.values() for _, message_id in keys_of(lines)}
    interesting |= {key[1] for key, found in books.stubs.items() if any(status != "confirmed" for _, status, _ in found)}
    for topic, message_id, group, verdict, reason in rows(
        dsn,
        "SELECT topic, message_id, consumer_group, verdict, reason FROM verdict WHERE message_id = ANY(%s) ORDER BY run_id",
        (list(interesting),),
    ):
        books.seen[topic, message_id].add((group, verdict, reason))
        books.latest[(topic, message_id), group] = verdict
    books.failed_checks = Counter(
        {
            (suite, name): times
            for suite, name, times in rows(
                dsn,
                "SELECT suite, f ->> 'name', count(*) FROM data_check CROSS JOIN jsonb_array_elements(failed) AS f GROUP BY 1, 2",
            )
        }
    )
    books.summary = {
        "cases": [
            {
                "kind": kind,
                "topic": topic,
                "consumer_group": group,
                "state": state,
                "members": members,
                "says": says,
            }
            for kind, topic, group, state, members, says in rows(
                dsn,
                "SELECT kind, topic, consumer_group, state, (SELECT count(DISTINCT (m.topic, m.message_id))"
                " FROM case_member m WHERE m.case_id = c.case_id), summary FROM case_file c ORDER BY case_id",
            )
        ],
        "cases_without_alert": rows(
            dsn,
            "SELECT count(*) FROM case_file WHERE case_id NOT IN (SELECT case_id FROM alert WHERE case_id > 0)",
        )[0][0],
        "requests": dict(rows(dsn, "SELECT state, count(*) FROM resend_request GROUP BY state ORDER BY state")),
        "data_checks": {
            suite: {"passed": passed, "failed": failed, "expectations": expectations}
            for suite, passed, failed, expectations in rows(
                dsn,
                "SELECT suite, count(*) FILTER (WHERE passed), count(*) FILTER (WHERE NOT passed),"
                " sum(expectations)::bigint FROM data_check GROUP BY suite ORDER BY suite",
            )
        },
        "verdicts_of_all_runs": dict(
            rows(
                dsn,
                "SELECT verdict, sum(deliveries)::bigint FROM verdict_count GROUP BY 1 ORDER BY 1",
            )
        ),
        # What a run counted must be what it kept, row by row, for every verdict of which rows are kept.
        "runs_with_wrong_counts": rows(
            dsn,
            "SELECT count(*) FROM (SELECT run_id, topic, consumer_group, verdict, sum(deliveries) AS counted"
            " FROM verdict_count WHERE verdict NOT IN ('CONFIRMED', 'WAITING') GROUP BY 1, 2, 3, 4) c"
            " FULL JOIN (SELECT run_id, topic, consumer_group, verdict, count(*) AS kept FROM verdict"
            " GROUP BY 1, 2, 3, 4) v"
            " USING (run_id, topic, consumer_group, verdict)"
            " WHERE coalesce(counted, 0) <> coalesce(kept, 0)",
        )[0][0],
    }


def held(books: Books, key: Key, *states: str) -> bool:
    return any(state in states for _, state in books.cases.get(key, ()))


def given_up(books: Books, key: Key) -> bool:
    """Every shard gave the message up, and a person was asked."""
    statuses = {status for _, status, _ in books.stubs.get(key, [])}
    return bool(statuses) and statuses <= {"exhausted", "voided"} and held(books, key, "open", "decided")


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


def check_effects(books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems) -> dict[str, Any]:
    """Each group's effects: each expected one exactly once, and no other."""
    refused = {key for key in keys_of(ledger.get(NEVER_PUBLISHABLE, [])) if given_up(books, key)}
    told: dict[str, Any] = {}
    for group, effects in books.effects.items():
        owed = {key for key in books.business if group in topics.get(key[0], [])}
        expected = owed - refused
        missing = [key for key in expected if effects[key] == 0]
        doubled = [key for key, times in effects.items() if times > 1]
        unexpected = [key for key in effects if effects[key] > 0 and key not in expected]
        for rule, keys in (("missing", missing), ("duplicated", doubled), ("unexpected", unexpected)):
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


def check_data_checks(books: Books, ledger: Ledger, problems: Problems) -> None:
    """A check of the data fails when something was injected that it must see, and only then."""
    timeless = any(line.get("detail") == "consumed without a time" for line in ledger.get("broken_rows", []))
    for (suite, name), times in books.failed_checks.items():
        if not (timeless and suite in ("leases_before", "leases_after") and name == "done_has_a_time"):
            problems.add("data check failed", suite, name, times)


def check_leases(books: Books, problems: Problems) -> None:
    """No lease is left behind by anybody: whatever was begun came to its end."""
    for group, keys in books.unended.items():
        for key in keys:
            problems.add("work begun and never ended", group, *key)


def woken_in_vain(books: Books, lines: list[dict[str, Any]], key: Key, group: str | None) -> bool:
    """Whether a worker stood still in its work and woke up, and what counts was done later, under a higher fence."""
    if group is None:
        return False
    details = [line["detail"] for line in lines if (line["topic"], line["message_id"], line["consumer_group"]) == (*key, group)]
    stood = [int(detail.rpartition(" ")[2]) for detail in details if " stood still with fence " in detail]
    woke = [int(detail.rpartition(" ")[2]) for detail in details if " woke up with fence " in detail]
    fences = books.fences[group].get(key, [])
    return bool(stood) and stood == woke and len(fences) == 1 and fences[0] > max(stood)


def check_resends(books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems) -> dict[str, Any]:
    """No send that nothing called for: a message may reach a group again once for each time it was lost."""
    losses: Counter[tuple[Key, str]] = Counter()
    for fault in LOST_ON_THE_WAY:
        for line in ledger.get(fault, []):
            key = (line["topic"], line["message_id"])
            for group in [line["consumer_group"]] if line.get("consumer_group") else topics.get(key[0], []):
                losses[key, group] += 1
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
        "most_for_one_message": max((len(resends) for resends in books.resends.values()), default=0),
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
            elif held(books, key, "open"):
                place = "held by an open case"
            elif key in books.quarantined:
                place = "quarantined"
            else:
                place = "unaccounted for"
                problems.add("stub unaccounted for", shard, *key)
            told[place] += 1
    return dict(told)


def check_faults(books: Books, topics: dict[str, list[str]], ledger: Ledger, problems: Problems) -> dict[str, Any]:
    """Each injected fault: found for what it is, and repaired, or left alone where that is right."""
    told: dict[str, Any] = {}
    for fault, lines in ledger.items():
        distinct = {(line["topic"], line["message_id"], line.get("consumer_group")) for line in lines}
        keys = {(topic, message_id) for topic, message_id, _ in distinct}
        found = sum(1 for topic, message_id, group in distinct if is_found(books, fault, lines, (topic, message_id), group))
        resent = sum(1 for key in keys if books.resends.get(key))
        once = sum(1 for key in keys if all(books.effects[group][key] == 1 for group in topics.get(key[0], [])))
        repaired = fault not in LOST_ON_THE_WAY or resent == len(keys)
        right = found == len(distinct) and repaired
        if fault not in (*LOST_ON_THE_WAY, NEVER_PUBLISHABLE):
            right = right and resent == 0
        right = right and once == (0 if fault == NEVER_PUBLISHABLE else len(keys))
        if not right:
            numbers = f"injected {len(distinct)}, found {found}, resent {resent}, exactly once {once}"
            problems.add("fault not dealt with", fault, numbers)
        told[fault] = {
            "injected": len(distinct), "messages": len(keys), "found": found, "resent": resent,
            "exactly_once": once, "ok": right,
        }  # fmt: skip
    return told


def is_found(books: Books, fault: str, lines: list[dict[str, Any]], key: Key, group: str | None) -> bool:
    """Whether the tables show that this fault was recognised on this message (of the group that it names)."""
    seen = {(verdict, reason) for g, verdict, reason in books.seen.get(key, ()) if group in (None, g)}
    verdicts = {verdict for verdict, _ in seen}
    statuses = {status for _, status, _ in books.stubs.get(key, [])}
    kinds = {kind for kind, _ in books.cases.get(key, ())}
    match fault:
        case "crash_before_send" | "not_sent_in_time":
            return "UNSENT" in verdicts
        case "crash_in_send":
            return statuses == {"confirmed"}
        case "lost_in_broker" | "offset_moved":
            return "LOST" in verdicts
        case "consumer_killed" | "lease_killed":
            return group is not None and key in books.taken_over[group]
        case "worker_woken_late":
            return woken_in_vain(books, lines, key, group)
        case "leases_flushed":
            return all(key in stopped for stopped in books.stopped.values())
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


def count_final(books: Books, topics: dict[str, list[str]], problems: Problems) -> dict[str, Any]:
    """Where every delivery stands now; the numbers must add up to the deliveries that are owed."""
    final: Counter[str] = Counter()
    owed = 0
    for key, found in books.stubs.items():
        groups = topics.get(key[0], [])
        owed += len(groups) * len(found)
        for _, status, _ in found:
            for group in groups:
                if status == "confirmed" or key in books.consumed[group]:
                    final["CONFIRMED"] += 1
                elif status == "voided":
                    final["VOIDED"] += 1
                else:
                    final[books.latest.get((key, group), "QUARANTINED" if key in books.quarantined else "NONE")] += 1
    if final["NONE"]:
        problems.add("delivery without a verdict", final["NONE"])
    if books.summary["runs_with_wrong_counts"]:
        problems.add("a run's counts differ from its verdicts", books.summary["runs_with_wrong_counts"])
    adds_up = sum(final.values()) == owed and not books.summary["runs_with_wrong_counts"]
    return {
        "deliveries": owed,
        "final": dict(sorted(final.items())),
        "adds_up": adds_up,
        "all_runs": books.summary["verdicts_of_all_runs"],
    }


def check(places: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Everything that must hold, with the numbers behind it; `ok` is true when nothing is wrong."""
    books = read_books(places, ledger)
    topics: dict[str, list[str]] = places["topics"]
    problems = Problems()
    twice = keys_of(line for line in ledger.get("broken_rows", []) if line.get("detail") == "one id on two shards")
    check_promises(books, twice, problems)
    check_leases(books, problems)
    check_data_checks(books, ledger, problems)
    told = {
        "effects": check_effects(books, topics, ledger, problems),
        "stubs": check_stubs(books, problems),
        "verdicts": count_final(books, topics, problems),
        "resends": check_resends(books, topics, ledger, problems),
        "faults": check_faults(books, topics, ledger, problems),
        "cases": books.summary["cases"],
        "requests": books.summary["requests"],
        "data_checks": books.summary["data_checks"],
    }
    if books.summary["cases_without_alert"]:
        problems.add("case without an alert", books.summary["cases_without_alert"])
    listed = problems.listed()
    return {"ok": not listed, "problems": listed, **told}


def main(arguments: list[str]) -> int:
    places, folder = Path(arguments[0]), Path(arguments[1])
    told = check(json.loads(places.read_text(encoding="utf-8")), read_ledger(folder))
    print(json.dumps(told, ensure_ascii=False, indent=2))
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
