"""Rows for the rule as the models need them: one group, one queue, and instants that all worlds share."""

from __future__ import annotations

from typing import Any

from backstop.verdicts import frames
from backstop.verdicts.evaluate import Engine

S = 1_000_000
START, EARLY, LATE = 1_790_000_000 * S, 1_790_000_010 * S, 1_790_000_600 * S
MAX_SEND, ATTEMPT, CONSUME_TIMEOUT = 30 * S, 120 * S, 60 * S
YEAR_1 = -62_135_596_800 * S
Tables = dict[str, list[dict[str, Any]]]


def no_rows() -> Tables:
    """The input of the rule, before any world; all worlds are judged at one instant."""
    return {
        "instant": [{"as_of": LATE}],
        "delivery": [],
        "attempt": [],
        "policy": [],
        "group_state": [],
        "progress": [],
        "shard_state": [{"shard": "s", "clock_good": True, "attempts_read": True}],
        "waiting": [],
        "delay_look": [],
        "dead_letter": [],
        "decision": [],
    }


def policy(topic: str, broker: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "consumer_group": "g",
        "broker": broker,
        "every_tag": True,
        "active_from": None,
        "active_until": None,
        "duplicates": "guard",
        "max_sends": 5,
        "max_refusals": 20,
        **dict.fromkeys(frames.DURATIONS, 10**15),
        "max_clock_skew": 0,
        "first_check": S,
        "max_send_duration": MAX_SEND,
        "consume_timeout": CONSUME_TIMEOUT,
        "recheck": S,
    }


def group_state(topic: str, broker: str, passed_until: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "consumer_group": "g",
        "broker": broker,
        "removed": False,
        "lives_accepted": True,
        "passed_until": passed_until,
        "log_floor": YEAR_1,
        "clock_good": True,
        "offsets_read": True,
        "retry_read": True,
        "dead_letters_read": True,
    }


def progress(topic: str, broker: str, settled: int, following: int) -> dict[str, Any]:
    """Queue 0, whose life is `e`."""
    return {
        "topic": topic,
        "consumer_group": "g",
        "broker": broker,
        "queue_id": 0,
        "epoch": "e",
        "epoch_accepted": True,
        "settled_offset": settled,
        "first_offset": 0,
        "next_offset": following,
        "previous_next_offset": None,
        "previous_read_at": None,
        "rate": None,
    }


def log(found: bool) -> dict[str, Any]:
    """A log that says CONSUMED, or the proven absence of one."""
    there = (
        {
            "log_valid": True,
            "log_state": "CONSUMED",
            "log_updated_at": START,
            "log_consumed_at": START,
        }
        if found
        else {}
    )
    return {**dict.fromkeys(frames.LOG), "log_answered": True, "log_found": found, **there}


def by_the_rule(tables: Tables) -> list[tuple[str, bool]]:
    """(verdict, eligible) of each stub, by its number."""
    engine = Engine()
    try:
        rows = sorted(engine.rows("verdict", tables), key=lambda row: row["stub_id"])  # type: ignore[arg-type, return-value]
    finally:
        engine.close()
    assert len(rows) == len(tables["delivery"])
    return [(str(row["verdict"]), bool(row["eligible"])) for row in rows]
