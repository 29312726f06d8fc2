"""Looks again, by key, at the messages of open cases: a log that came late confirms an exhausted stub."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any

from backstop.cases.close import close_satisfied
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import Unavailable
from backstop.named_sql import load
from backstop.records import Counts, Key, StubStatus, Verdict
from backstop.runs.run import Run, hold
from backstop.runs.scope import topics_of
from backstop.stores.protocol import StubOutcome
from backstop.verdicts.judge import Judge

_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 1_000


def revisit_cases(settings: Settings, connections: Connections, control: Any, run: Run) -> Counts:
    """Confirms exhausted stubs of the run's topics whose deliveries are all done by now; returns how many were looked at and
    confirmed."""
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["members_of_open_cases"], {"topics": topics_of(run.scope)})
        keys = iter([Key(topic, message_id) for topic, message_id in cursor.fetchall()])
    with Judge(settings, connections, control) as judge:
        while batch := list(islice(keys, _BATCH)):
            seen = judge.judgement(batch)
            counts.add("revisited", len(seen.stubs))
            confirmed: dict[str, list[StubOutcome]] = defaultdict(list)
            for row in seen.outcomes:
                key = Key(str(row["topic"]), str(row["message_id"]))
                stub = seen.stubs[key]
                alone = len(seen.shards_of[key]) == 1
                if row["new_status"] == "confirmed" and stub.status == StubStatus.EXHAUSTED and alone:
                    confirmed[stub.shard].append(
                        StubOutcome(key, str(stub.status), "confirmed", stub.send_count, None)
                    )
            for shard, outcomes in confirmed.items():
                try:
                    counts.add("late_confirmed", judge.sources.shard(shard).promote(outcomes, seen.as_of))
                except Unavailable as error:
                    judge.sources.missed(f"shard {shard}", error)
                    counts.add("unreachable")
            done = [
                (*one.key, one.consumer_group) for one in seen.judged
                if one.verdict in (Verdict.CONFIRMED, Verdict.VOIDED)
            ]  # fmt: skip
            with control, control.cursor() as cursor:
                hold(cursor, run)
                counts.add("cases_closed", close_satisfied(cursor, run.run_id, done))
    return counts
