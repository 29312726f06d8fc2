"""Reads what the tables say, once, with the checker's own SQL; and the ledger of what was injected."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg2

Key = tuple[str, str]
"""(topic, message id)"""
Delivery = tuple[str, str, str]
"""(topic, message id, group); '' where a dead letter names none"""
Resend = tuple[int, frozenset[str] | None, str]
"""(send number above 1, groups addressed or None for all, outcome)"""
SAMPLE = 5


@dataclass(frozen=True)
class Letter:
    """One stored dead letter."""

    broker: str
    queue: str
    broker_id: str
    topic: str
    message_id: str
    consumer_group: str
    state: str
    proof: bool
    send_number: int | None


@dataclass(frozen=True)
class CaseFile:
    """One case, with the answers to it as (action, who), oldest first."""

    case_id: int
    kind: str
    topic: str
    consumer_group: str
    state: str
    decisions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Alert:
    """One line of the outbox."""

    case_id: int | None
    key: str
    closing: bool
    delivered: bool
    ended: str | None


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
    in_order: dict[str, list[tuple[Key, int, int]]] = field(default_factory=dict)
    """group that consumes in order -> its effects as they came, each with the queue and offset of its message"""
    ordering_keys: dict[Key, str | None] = field(default_factory=dict)
    """of the messages of such groups"""
    cases: dict[Key, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """key -> (kind, state) of the cases that it is a member of; "settled" when it is not open in them any more"""
    letters: list[Letter] = field(default_factory=list)
    undrained: int = 0
    """batches that were stored and never acknowledged to the broker"""
    discards: set[Delivery] = field(default_factory=set)
    """what a person gave up"""
    letter_cases: dict[Delivery, set[int]] = field(default_factory=lambda: defaultdict(set))
    """delivery -> its cases of kind dead_letters"""
    answered: dict[int, bool] = field(default_factory=dict)
    case_files: list[CaseFile] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    messages_sent: dict[str, int] = field(default_factory=dict)
    """channel -> messages that Backstop says it took"""
    versions: dict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))
    """key -> the content versions that are kept, of messages that a person edited"""
    version_consumed: dict[str, dict[Key, int]] = field(default_factory=dict)
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
            {"rule": rule, "count": len(all_of), "sample": sorted(all_of)[:SAMPLE]}
            for rule, all_of in sorted(self.found.items())
        ]


Ledger = dict[str, list[dict[str, Any]]]


def read_ledger(folder: Path) -> Ledger:
    """Fault -> its lines: each names a topic and a message_id, and the one consumer_group it hit, or null."""
    return {
        file.stem: [
            json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line
        ]
        for file in sorted(folder.glob("*.jsonl"))
    }


def keys_of(lines: Iterable[dict[str, Any]]) -> set[Key]:
    return {(line["topic"], line["message_id"]) for line in lines}


def rows(dsn: str, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Of one statement that reads, in words that PostgreSQL and MariaDB both understand where it is on stubs or logs."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [tuple(map(as_text, row)) for row in cursor.fetchall()]


def connect(dsn: str) -> Any:
    """postgresql:// or mysql://"""
    parts = urlsplit(dsn)
    if parts.scheme != "mysql":
        return psycopg2.connect(dsn, connect_timeout=10)
    import pymysql  # only where the stores are in MariaDB

    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")),
        charset="utf8mb4",
        connect_timeout=10,
        ssl_disabled=True,
    )


def as_text(value: Any) -> Any:
    """MariaDB keeps names as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def group_names(value: Any) -> frozenset[str] | None:
    """The groups of an attempt: an array in PostgreSQL, in MariaDB one as JSON; null: all of them."""
    names = json.loads(value) if isinstance(value, str) else value
    return frozenset(names) if names else None


def read_books(places: dict[str, Any], ledger: Ledger) -> Books:
    books = Books()
    for shard, dsn in places["producers"].items():
        for topic, message_id in rows(dsn, "SELECT topic, message_id FROM business_order"):
            books.business[topic, message_id].append(shard)
        for topic, message_id, status, sends in rows(
            dsn, "SELECT topic, message_id, status, send_count FROM message_stub"
        ):
            books.stubs[topic, message_id].append((shard, status, sends))
        for topic, message_id, number, groups, outcome in rows(
            dsn,
            "SELECT a.topic, a.message_id, a.send_number, a.groups, a.outcome FROM send_attempt a WHERE a.send_number > 1",
        ):
            books.resends[topic, message_id].append((number, group_names(groups), outcome))
        books.excess_attempts += rows(
            dsn,
            "SELECT count(*) FROM send_attempt a LEFT JOIN message_stub s USING (topic, message_id)"
            " WHERE s.message_id IS NULL OR a.send_number > s.send_count",
        )[0][0]
    for group, dsn in places["groups"].items():
        effects = rows(
            dsn, "SELECT topic, message_id, fence FROM effect WHERE consumer_group = %s", (group,)
        )
        books.effects[group] = Counter((topic, message_id) for topic, message_id, _ in effects)
        books.fences[group] = defaultdict(list)
        for topic, message_id, fence in effects:
            books.fences[group][topic, message_id].append(fence)
        log = "SELECT topic, message_id FROM consumer_log WHERE consumer_group = %s AND "
        done = rows(dsn, log + "state = 'CONSUMED' AND consumed_at IS NOT NULL", (group,))
        books.consumed[group] = {(topic, message_id) for topic, message_id in done}
        edited = "SELECT topic, message_id, content_version FROM consumer_log WHERE consumer_group = %s AND content_version > 1"
        found = rows(dsn, edited, (group,))
        books.version_consumed[group] = {
            (topic, message_id): version for topic, message_id, version in found
        }
        for told, which in (
            (books.taken_over, "attempts > 1"),
            (books.stopped, "duplicates_stopped > 0"),
            (books.unended, "state <> 'CONSUMED'"),
        ):
            told[group] = {
                (topic, message_id) for topic, message_id in rows(dsn, log + which, (group,))
            }
    read_order(places, books)
    read_control(places["control"], books, ledger)
    read_letters(places["control"], books)
    read_cases(places["control"], books)
    return books


def read_order(places: dict[str, Any], books: Books) -> None:
    for group in places.get("ordered", []):
        books.in_order[group] = [
            ((topic, message_id), queue, offset)
            for topic, message_id, queue, offset in rows(
                places["groups"][group],
                "SELECT topic, message_id, l.queue_id, l.queue_offset FROM effect e"
                " JOIN consumer_log l USING (consumer_group, topic, message_id)"
                " WHERE consumer_group = %s ORDER BY e.done_at",
                (group,),
            )
        ]
        topics = [topic for topic, takers in places["topics"].items() if group in takers]
        for dsn in places["producers"].values():
            for topic, message_id, key in rows(
                dsn,
                "SELECT topic, message_id, ordering_key FROM message_stub WHERE topic = ANY (%s)",
                (topics,),
            ):
                books.ordering_keys[topic, message_id] = key


def read_letters(dsn: str, books: Books) -> None:
    books.letters = [
        Letter(*row)
        for row in rows(
            dsn,
            "SELECT broker, queue, broker_id, coalesce(topic, ''), coalesce(message_id, ''), coalesce(consumer_group, ''), state,"
            " proof IS NOT NULL, send_number FROM dead_letter ORDER BY dead_letter_id",
        )
    ]
    books.undrained = rows(dsn, "SELECT count(*) FROM drain_batch WHERE acknowledged_at IS NULL")[
        0
    ][0]
    books.discards = set(
        rows(
            dsn,
            "SELECT topic, message_id, consumer_group FROM delivery_decision WHERE decision = 'discard' AND why <> ''",
        )
    )
    for topic, message_id, version in rows(
        dsn, "SELECT topic, message_id, content_version FROM message_version"
    ):
        books.versions[topic, message_id].add(version)


def read_cases(dsn: str, books: Books) -> None:
    for case_id, kind, topic, group, state, decisions in rows(
        dsn,
        "SELECT case_id, kind, topic, consumer_group, state, coalesce(evidence -> 'decisions', '[]') FROM case_file ORDER BY 1",
    ):
        answers = tuple((one["action"], one["by"]) for one in decisions)
        books.case_files.append(CaseFile(case_id, kind, topic, group, state, answers))
        books.answered[case_id] = bool(answers)
    for topic, message_id, group, case_id in rows(
        dsn,
        "SELECT m.topic, m.message_id, m.consumer_group, m.case_id FROM case_member m JOIN case_file c USING (case_id)"
        " WHERE c.kind = 'dead_letters'",
    ):
        books.letter_cases[topic, message_id, group].add(case_id)
    books.alerts = [
        Alert(*row)
        for row in rows(
            dsn,
            "SELECT case_id, dedup_key, closing, delivered_at IS NOT NULL, ended FROM alert ORDER BY alert_id",
        )
    ]
    books.messages_sent = dict(
        rows(dsn, "SELECT channel, count(*) FROM alert_message GROUP BY channel")
    )


def read_control(dsn: str, books: Books, ledger: Ledger) -> None:
    for topic, message_id, kind, state in rows(
        dsn,
        "SELECT m.topic, m.message_id, c.kind, CASE WHEN m.settled_at IS NULL THEN c.state ELSE 'settled' END"
        " FROM case_member m JOIN case_file c USING (case_id)",
    ):
        books.cases[topic, message_id].add((kind, state))
    quarantined = rows(
        dsn,
        "SELECT DISTINCT topic, message_id FROM quarantine WHERE topic IS NOT NULL AND message_id IS NOT NULL",
    )
    books.quarantined = {(topic, message_id) for topic, message_id in quarantined}
    interesting = {message_id for lines in ledger.values() for _, message_id in keys_of(lines)}
    interesting |= {
        key[1]
        for key, found in books.stubs.items()
        if any(status != "confirmed" for _, status, _ in found)
    }
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
        "requests": dict(
            rows(dsn, "SELECT state, count(*) FROM resend_request GROUP BY state ORDER BY state")
        ),
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
    return (
        bool(statuses)
        and statuses <= {"exhausted", "voided"}
        and held(books, key, "open", "decided")
    )
