"""Opens a case for who leaks leases again and again, and for messages that fail again and again; closes what is over."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from backstop.cases.close import close_by_cause
from backstop.cases.open import open_case
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import guarded
from backstop.model.error_kind import error_kind
from backstop.model.errors import BackstopError, StoreFailed
from backstop.model.records import Counts
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.stores.leases import Failing, Leases
from backstop.stores.open import open_leases

_SQL = load("backstop.sweep", "queries.sql")
FAILING_SHOWN = 1000
"""The newest of a group and topic: thousands of failing messages have one cause."""
SHOWN = 20
"""Messages that one case lists; its summary counts all that were read."""


def tell_of_leaks(settings: Settings, control: Any, run: Run) -> Counts:
    """One case for each host, and each handler (group and topic), whose leases several sweeps took back; commits."""
    names = [*settings.groups, *settings.redis_guards]
    policies = [
        settings.policy_for(None, name) if name in settings.groups else settings.policy_for()
        for name in names
    ]
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(
            _SQL["leaks"],
            {
                "groups": names,
                "windows": [policy.leak_window.total_seconds() for policy in policies],
                "sweeps": [policy.leak_sweeps for policy in policies],
            },
        )
        leaks = cursor.fetchall()
        for group, topic, subject, runs, leases, since, last, examples in leaks:
            who = "the handler" if subject == "handler" else subject
            open_case(
                cursor,
                kind="lease_leak",
                topic=topic,
                group=group,
                subject=subject,
                severity="warning",
                summary=f"{who} of {group} lost {leases} leases in {runs} sweeps since {since:%H:%M} UTC: its workers die, hang"
                " or are killed while they hold messages. The messages came back; each cost a wait of one lease",
                evidence={
                    "leases": int(leases),
                    "sweeps": runs,
                    "since": since,
                    "last": last,
                    "examples": examples,
                },
                members=[],
                run_id=run.run_id,
            )
            counts.add("leaks")
        found = {("lease_leak", topic, group, subject) for group, topic, subject, *_ in leaks}
        counts.add(
            "leaks_over",
            close_by_cause(
                cursor,
                "lease_leak",
                found,
                "within leak_window fewer than leak_sweeps sweeps took leases back there",
            ),
        )
    return Counts({name: number for name, number in counts.items() if number})


def tell_of_failing(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    groups: Collection[str] | None,
) -> tuple[Counts, dict[str, str]]:
    """One case for each group and topic with messages begun alert_attempts times and not done, before the broker gives up;
    commits. Returns the counts, and what did not answer."""
    failing: dict[tuple[str, str], list[Failing]] = {}
    missed: dict[str, str] = {}
    looked: set[str] = set()
    for store in settings.own_consumers():
        least = _least(settings, store, groups)
        if not least:
            continue
        try:
            with (
                guarded(f"store {store}", StoreFailed),
                open_leases(settings, connections, store) as leases,
            ):
                for one in leases.failing(least, FAILING_SHOWN):
                    failing.setdefault((one.group, one.topic), []).append(one)
            looked |= {group for group, _ in least}
        except BackstopError as error:
            missed[f"store {store}"] = error.what
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for (group, topic), found in failing.items():
            worst, newest = (
                max(found, key=lambda one: one.attempts),
                max(one.first_received_at for one in found),
            )
            case_id = open_case(
                cursor,
                kind="repeated_failure",
                topic=topic,
                group=group,
                subject="messages",
                severity="warning",
                summary=f"{len(found)} messages fail again and again in {group}: {worst.message_id!r} was begun {worst.attempts}"
                f" times ({error_kind(worst.error)}). Fix the handler or"
                " what it needs before the broker gives up on them",
                evidence={
                    "messages": [
                        {"id": f.message_id, "attempts": f.attempts, "error": error_kind(f.error)}
                        for f in found[:SHOWN]
                    ],
                    "seen_at": datetime.now().astimezone(),
                },
                members=[],
                run_id=run.run_id,
            )
            # The case's own alert is about its first messages. Later ones get another, at most one an hour; those that come after
            # it are in the next hour's.
            cursor.execute(
                _SQL["tell_of_newer"],
                {
                    "case_id": case_id,
                    "newest": newest,
                    "dedup_key": f"case/{case_id}/{run.as_of:%Y-%m-%dT%H}",
                    "title": f"Case {case_id}: more messages fail in {group}",
                    "body": f"{found[0].message_id!r} and others of {topic}.",
                },
            )
            counts.add("failing", len(found))
        still = {("repeated_failure", topic, group, "messages") for group, topic in failing}
        counts.add(
            "failing_over",
            close_by_cause(
                cursor,
                "repeated_failure",
                still,
                "no message was left undone within the redelivery horizon",
                groups=looked,
            ),
        )
    return Counts({name: number for name, number in counts.items() if number}), missed


def any_failing(settings: Settings, leases: Leases, store: str) -> bool:
    """Whether a message of the groups of a consumer store fails so often that a person is told."""
    return bool(leases.failing(_least(settings, store, None), 1))


def _least(
    settings: Settings, store: str, groups: Collection[str] | None
) -> dict[tuple[str, str], tuple[int, float]]:
    """By group and topic: how often a message is begun before a person is told, and for how many seconds that counts."""
    return {
        (group, topic): (policy.alert_attempts, policy.redelivery_horizon.total_seconds())
        for group, its in settings.groups.items()
        if its.store == store and (groups is None or group in groups)
        for topic in settings.topics_of(group)
        for policy in [settings.policy_for(topic, group)]
    }
