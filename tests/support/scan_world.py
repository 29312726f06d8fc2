"""Deliveries of every kind, read as many are: in ranges and by a scan of the logs; and what a run would do with them."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from backstop.model.records import Key
from backstop.reconcile import gather, packets, scan_logs
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.stores.postgresql import scan as postgresql_scan
from backstop.stores.protocol import LAST_NUMBER, Scope
from system import System

STUBS = 90
KINDS = (
    "sent",
    "sent",
    "sent",
    "sent",
    "never",
    "twice",
    "older_epoch",
    "broken",
    "unknown_topic",
    "end_of_time",
)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are read as many are: in ranges, buckets and by a scan, and what is all done is judged where the logs are read."""
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    monkeypatch.setattr(packets, "FEW_DELIVERIES", 0)
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", 1)
    monkeypatch.setattr(scan_logs, "ROWS_FOR_A_KEY", 1e6)
    monkeypatch.setattr(gather, "WORTH_PLANNING_TWICE", 0)


DEAD_LETTER = """
    WITH b AS (INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
        SELECT max(run_id), 'embedded', 'q', 1, now() FROM run RETURNING batch_id)
    INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers, content_bytes)
    SELECT batch_id, 'embedded', 'q', %s, 'orders', %s, %s, '', 0 FROM b"""
DISCARDED = """
    INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)
    VALUES ('orders', %s, %s, 'discard', 'ann', 'w')"""


def fill(world: System, seed: int) -> int:
    """Stubs and logs of every kind, drawn by `seed`; returns how many deliveries a valid CONSUMED row proves."""
    draw = random.Random(seed)
    world.rows(
        "billing_db", "ALTER TABLE consumer_log DROP CONSTRAINT consumer_log_consumed_has_time"
    )
    a_run = "INSERT INTO run (duty, token, policy_version, code_version) VALUES ('triage', gen_random_uuid(), 'p', 'c')"
    world.rows("control", a_run)
    proven = 0
    for number in range(STUBS):
        shard, name = draw.choice(["shop_a", "shop_b"]), f"m-{number}"
        kind = draw.choice(KINDS)
        if kind == "sent":
            key = world.sent(name, shard=shard)
        elif kind == "never":
            key = world.stub(name, shard=shard, send_count=0)
        elif kind == "twice":
            key = world.sent(name, shard=shard)
            world.rows(
                shard,
                "UPDATE message_stub SET send_count = 2, queue_offset = NULL WHERE message_id = %s",
                name,
            )
            world.rows(
                shard,
                "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome, groups)"
                " VALUES ('orders', %s, 2, 'reconcile', now(), 'unknown', %s)",
                name,
                ["billing"],
            )
        elif kind == "older_epoch":
            key = world.stub(
                name,
                shard=shard,
                queue_id=0,
                queue_offset=5,
                queue_epoch="before",
                broker="embedded",
            )
        elif kind == "end_of_time":
            key = world.sent(name, shard=shard)
            odd = draw.choice(
                [
                    "deliver_at = 'infinity'",
                    "attempted_at = '-infinity'",
                    "created_at = '9999-12-31Z'",
                ]
            )
            world.rows(shard, f"UPDATE message_stub SET {odd} WHERE message_id = %s", name)
            kind = "broken"  # no horizon would ever come from it
        elif kind == "broken":
            key = world.stub(name, shard=shard, send_count=LAST_NUMBER)
        else:
            key = world.stub(name, "nobody-knows-it", shard=shard)
        if kind == "sent" and draw.random() < 0.1:
            world.stub(
                name, shard="shop_a" if shard == "shop_b" else "shop_b"
            )  # the same promise twice
            kind = "broken"
        for group in ("billing", "shipping"):
            proven += put_log(world, key, group, draw) and kind not in ("broken", "unknown_topic")
            ended = draw.random()
            if ended < 0.1:
                world.rows("control", DEAD_LETTER, f"{name}-{group}", name, group)
            elif ended < 0.15:
                world.rows("control", DISCARDED, name, group)
    for group in ("billing", "shipping"):
        subscription = world.broker.subscribe(group, ["orders"], "worker")
        # Some are passed, some wait to be delivered again, some are ahead.
        for taken in (1, 1, 2):
            subscription.acknowledge(subscription.fetch(10, timedelta(milliseconds=20))[::taken])
        subscription.close()
    return proven


def put_log(world: System, key: Key, group: str, draw: random.Random) -> bool:
    """Whether a valid CONSUMED row is there."""
    state = draw.choice(
        [
            "CONSUMED",
            "CONSUMED",
            "CONSUMED",
            "none",
            "CONSUMING",
            "FAILED",
            "EXPIRED",
            "broken",
            "early",
        ]
    )
    if state == "none":
        return False
    if state == "broken" and group == "billing":
        world.log(key, group, "CONSUMED", consumed_at=None)
        return False
    if state == "early":  # before its stub, by more than clocks may differ
        world.log(key, group, first_received_at="2001-01-01T00:00:00Z")
        return True
    columns = {"lease_expires_at": "2100-01-01T00:00:00Z"} if state == "CONSUMING" else {}
    world.log(key, group, "CONSUMED" if state == "broken" else state, **columns)
    return state in ("CONSUMED", "broken")


def staged(world: System, spark: Any) -> tuple[Any, dict[str, int]]:
    """What a run would do, judged and not promoted: verdicts with their evidence and outcomes; and its counts."""
    control = world.control()
    run = open_run(control, "reconcile", "*", world.settings, dry_run=True)
    counts = judge(spark, world.settings, world.connections, control, run, Scope())
    close_run(control, run, "done", counts)
    control.close()
    found = [
        world.rows(
            "control",
            f"SELECT {columns} FROM {table} WHERE run_id = %s ORDER BY 1, 2, 3, 4",
            run.run_id,
        )
        for table, columns in (
            (
                "staged_verdict",
                "topic, message_id, consumer_group, shard, verdict, reason, eligible, send_count, case_kind,"
                " evidence::text",
            ),
            (
                "staged_stub",
                "topic, message_id, shard, old_status, new_status, send_count, deliveries",
            ),
            ("staged_count", "topic, consumer_group, verdict, deliveries, eligible, newly"),
        )
    ]
    broken = world.rows("control", "SELECT store, row_key, reason FROM quarantine ORDER BY 1, 2, 3")
    return (found, broken), dict(counts)
