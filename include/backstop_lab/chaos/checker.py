"""Recompute from the tables and the broker's own streams whether a run under fire came out right.

It imports nothing of Backstop: psycopg2, redis, the standard library, and the demo's checker beside it, which imports no more.
Run it as `python -I checker.py PLACES.json LEDGER_FOLDER`; it prints its findings as JSON and ends with 1 when something is
wrong. What is in the broker is read there, so that no record of ours is believed about what was published.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import redis

Key = tuple[str, str]
"""(topic, message id)"""


def load_beside(*names: str) -> list[Any]:
    """Files of the demo's checker, from its folder: its rules on promises, effects and stubs hold here unchanged."""
    folder = Path(__file__).resolve().parents[1] / "checker"
    spec = importlib.util.spec_from_file_location(
        "demo_checker", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [importlib.import_module(f"demo_checker.{name}") for name in names]


read, accounts, injected = load_beside("books", "accounts", "injected")


@dataclass(frozen=True)
class Copy:
    """One entry of a stream: a copy that really was published."""

    number: int
    stored_at: float
    groups: frozenset[str] | None


@dataclass(frozen=True)
class Attempt:
    number: int
    started_at: float
    outcome: str
    groups: frozenset[str] | None


@dataclass
class Streams:
    """What the broker holds."""

    copies: dict[Key, list[Copy]] = field(default_factory=lambda: defaultdict(list))
    dead: int = 0
    pending: int = 0


def read_streams(url: str, topics: dict[str, list[str]]) -> Streams:
    server: Any = redis.Redis.from_url(url, decode_responses=True)
    found = Streams()
    # The keys are written down in the wire contract; topics of this shop need no encoding.
    for topic, groups in topics.items():
        for queue in range(int(server.hget(f"backstop:{{{topic}}}:topic", "queues"))):
            stream = f"backstop:{{{topic}}}:queue:{queue}"
            for _, fields in server.xrange(stream):
                headers = json.loads(fields["headers"])
                to = headers.get("backstop-groups")
                found.copies[topic, headers["backstop-message-id"]].append(
                    Copy(
                        int(headers.get("backstop-send-number", 1)),
                        int(fields["time"]) / 1e6,
                        frozenset(json.loads(to)) if to else None,
                    )
                )
            found.pending += sum(int(group["pending"]) for group in server.xinfo_groups(stream))
        found.dead += sum(
            int(server.xlen(f"backstop:{{{topic}}}:dead:{group}")) for group in groups
        )
    server.close()
    return found


def read_attempts(places: dict[str, Any]) -> dict[Key, dict[int, Attempt]]:
    found: dict[Key, dict[int, Attempt]] = defaultdict(dict)
    for dsn in places["producers"].values():
        for topic, message_id, number, started, outcome, groups in read.rows(
            dsn,
            "SELECT topic, message_id, send_number, extract(epoch FROM started_at)::float8, outcome, groups FROM send_attempt",
        ):
            found[topic, message_id][number] = Attempt(
                number, started, outcome, frozenset(groups) if groups else None
            )
    return found


def moved_clocks(events: Path) -> list[dict[str, Any]]:
    """The lines of the servers whose clocks were moved."""
    if not events.exists():
        return []
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["what"] == "skew_clock"]


def wrong_clocks(events: Path) -> list[tuple[float, float]]:
    """When the broker's or the producers' clock was wrong, as wall clock seconds: instants of then mean nothing."""
    return [
        (
            datetime.fromisoformat(line["since_wall"]).timestamp() - abs(float(line["how"])) - 1,
            datetime.fromisoformat(line["wall"]).timestamp() + abs(float(line["how"])) + 1,
        )
        for line in moved_clocks(events)
        if line["victim"] in ("broker", "shops")
    ]


def check_data_checks(books: Any, events: Path, problems: Any) -> None:
    """A check of the data fails only where a clock was moved within a run: then sources are found not to be fresh."""
    may_fail = {"sources_fresh"} if moved_clocks(events) else set()
    for (suite, name), times in books.failed_checks.items():
        if name not in may_fail:
            problems.add("data check failed", suite, name, times)


def check_copies(
    streams: Streams,
    stubs: dict[Key, list[tuple[str, str, int]]],
    attempts: dict[Key, dict[int, Attempt]],
    places: dict[str, Any],
    problems: Any,
) -> dict[str, Any]:
    """Each send number published at most once, none that was not handed out, and none after its time was over."""
    skewed = wrong_clocks(Path(places["events"]))
    latest = 0.0
    for key, copies in streams.copies.items():
        handed_out = sum(sends for _, _, sends in stubs.get(key, []))
        if key not in stubs:
            problems.add("copy without a stub", *key)
        for number, times in Counter(copy.number for copy in copies).items():
            if times > 1:
                problems.add("send number published twice", *key, number)
            if key in stubs and number > handed_out:
                problems.add("send number never handed out", *key, number)
        for copy in copies:
            attempt = attempts.get(key, {}).get(copy.number)
            if attempt is None:
                continue
            if any(
                since <= copy.stored_at <= until or since <= attempt.started_at <= until
                for since, until in skewed
            ):
                continue
            latest = max(latest, copy.stored_at - attempt.started_at)
            if copy.stored_at > attempt.started_at + places["late_after"]:
                problems.add(
                    "copy stored after its time",
                    *key,
                    copy.number,
                    f"{copy.stored_at - attempt.started_at:.1f} s",
                )
    return {"copies": sum(map(len, streams.copies.values())), "latest_seconds": round(latest, 3)}


def check_resends(
    streams: Streams,
    attempts: dict[Key, dict[int, Attempt]],
    lost: set[Key],
    topics: dict[str, list[str]],
    summary: dict[str, Any],
    problems: Any,
) -> dict[str, Any]:
    """No copy for a group that an earlier copy was on its way to, or had reached."""
    outcomes: Counter[str] = Counter()
    after_unknown = 0
    for key, by_number in attempts.items():
        there = {copy.number for copy in streams.copies.get(key, [])}
        for number, attempt in sorted(by_number.items()):
            if number == 1:
                continue
            outcomes[attempt.outcome] += 1
            if number not in there:
                continue  # it never reached the broker: nobody got it
            earlier = [
                one for one in by_number.values() if one.number < number and one.number in there
            ]
            addressed = attempt.groups or frozenset(topics.get(key[0], []))
            reached = [
                one
                for one in earlier
                if addressed & (one.groups or frozenset(topics.get(key[0], [])))
            ]
            if any(one.outcome == "sent" for one in reached):
                problems.add("resend needless", *key, number)
            elif reached:
                # The outcome was unknown, and it was there: allowed, because nobody could know, but the rule should have.
                after_unknown += 1
                problems.add("resend needless after an unknown outcome", *key, number)
    for state in ("open", "claimed"):
        if summary["requests"].get(state):
            problems.add("resend request not closed", state, summary["requests"][state])
    repaired = sum(1 for key in lost if any(number > 1 for number in attempts.get(key, {})))
    if repaired != len(lost):
        problems.add("lost in the broker and not sent again", len(lost) - repaired)
    return {
        "attempts": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "lost_in_broker": len(lost),
        "after_unknown": after_unknown,
        "first_sends": dict(Counter(a[1].outcome for a in attempts.values() if 1 in a)),
    }


def check_logs(books: Any, problems: Any) -> None:
    """An effect and its CONSUMED log are one transaction: both or neither."""
    for group, effects in books.effects.items():
        for key in books.consumed[group] - effects.keys():
            problems.add("log consumed without its effect", group, *key)
        for key in effects.keys() - books.consumed[group]:
            problems.add("effect without its consumed log", group, *key)


def check_leases(
    books: Any, places: dict[str, Any], ledger: dict[str, list[dict[str, Any]]], problems: Any
) -> dict[str, int]:
    """What counts is what the last holder of a lease did, and nobody's lease is left behind."""
    accounts.check_leases(books, problems)
    for group, dsn in places["groups"].items():
        ended = read.rows(
            dsn,
            "SELECT topic, message_id, fence FROM consumer_log WHERE consumer_group = %s AND state = 'CONSUMED'",
            (group,),
        )
        for topic, message_id, fence in ended:
            if any(
                of_effect != fence for of_effect in books.fences[group].get((topic, message_id), [])
            ):
                problems.add("effect of a lease that was lost", group, topic, message_id)
    late = ledger.get("worker_woken_late", [])
    stood = {(line["topic"], line["message_id"], line["consumer_group"]) for line in late}
    return {
        "killed_holding": len(ledger.get("lease_killed", [])),
        "stood_still": len(stood),
        "woken_in_vain": sum(
            injected.woken_in_vain(books, late, (topic, mid), group) for topic, mid, group in stood
        ),
        "again_after_a_flush": len(ledger.get("leases_flushed", [])),
        "stopped_by_the_database": sum(map(len, books.stopped.values())),
    }


def check(places: dict[str, Any], ledger: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Everything that must hold, with the numbers behind it; `ok` is true when nothing is wrong."""
    books = read.read_books(places, ledger)
    topics: dict[str, list[str]] = places["topics"]
    streams, attempts = read_streams(places["broker"], topics), read_attempts(places)
    lost = read.keys_of(ledger.get("lost_in_broker", []))
    problems = read.Problems()
    accounts.check_promises(books, set(), problems)
    told = {
        "messages": len(books.business),
        "effects": accounts.check_effects(books, topics, ledger, problems),
        "stubs": accounts.check_stubs(books, problems),
        "verdicts": accounts.count_final(books, topics, problems),
        "copies": check_copies(streams, books.stubs, attempts, places, problems),
        "resends": check_resends(streams, attempts, lost, topics, books.summary, problems),
        "leases": check_leases(books, places, ledger, problems),
        "cases": books.summary["cases"],
        "requests": books.summary["requests"],
        "data_checks": books.summary["data_checks"],
    }
    check_logs(books, problems)
    if books.excess_attempts:
        problems.add("attempt beyond the numbers handed out", books.excess_attempts)
    if streams.pending:
        problems.add("message still in somebody's hands", streams.pending)
    if streams.dead:
        problems.add("dead letter", streams.dead)
    if books.summary["cases_without_alert"]:
        problems.add("case without an alert", books.summary["cases_without_alert"])
    check_data_checks(books, Path(places["events"]), problems)
    listed = problems.listed()
    return {"ok": not listed, "problems": listed, **told}


def main(arguments: list[str]) -> int:
    places, folder = Path(arguments[0]), Path(arguments[1])
    told = check(json.loads(places.read_text(encoding="utf-8")), read.read_ledger(folder))
    print(json.dumps(told, ensure_ascii=False, indent=2))
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
