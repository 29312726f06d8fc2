"""What triage reads each minute, and of older causes, and a claim of requests, does not grow with what else waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from backstop.sql.named import load
from backstop.triage.causes import stage_patterns
from backstop.triage.causes.classify import rules_of
from backstop.triage.count_due import count_stored
from letter_world import causes, classify, letter, triage
from resend_world import World, servers, world

__all__ = ["servers", "world"]


def waiting(world: World, letters: int) -> None:
    """Letters that were decided, and are not due for another look."""
    letter(world, "first")
    classify(world)
    world.sql(
        "control",
        """INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id,
            headers, content_bytes, cause_id, category, classified_at, classified_by, decision, reason, decided_at, decided_by,
            look_at)
        SELECT batch_id, broker, queue, 'w' || n, consumer_group, topic, 'w' || n, headers, 0, cause_id, category, now(),
            classified_by, 'wait', 'x', now() + interval '1 minute', 'triage', now() + interval '1 day'
        FROM dead_letter, generate_series(1, %s) n WHERE message_id = 'first'""",
        (letters,),
    )
    world.sql("control", "DELETE FROM dead_letter WHERE message_id = 'first'")
    world.sql("control", "ANALYZE dead_letter")


def due(world: World, **more: int) -> tuple[int, int, int]:
    with triage(world) as (control, run):
        return count_stored(world.settings, control, run, **more)


def test_every_letter_that_is_due_is_counted_once_and_no_more_than_asked_for(world: World) -> None:
    waiting(world, 7)
    assert due(world) == (0, 0, 0)
    for message_id, change in {
        "w1": "look_at = NULL",
        "w2": "look_at = now() - interval '1 s'",
        "w3": "classified_at = now() + interval '1 hour'",
        "w4": "classified_by = 'a'",
        "w5": "classified_by = 'z'",
        "w6": "cause_id = NULL, category = NULL, classified_at = NULL, classified_by = NULL",
        "w7": "cause_id = NULL, category = NULL, classified_at = NULL",
    }.items():
        world.sql(
            "control", f"UPDATE dead_letter SET {change} WHERE message_id = %s", (message_id,)
        )
    assert due(world) == (4, 3, 0)
    world.sql("control", "UPDATE dead_letter SET look_at = NULL WHERE message_id = 'w3'")
    assert due(world) == (4, 3, 0)
    assert due(world, at_most=2) == (2, 2, 0)


def rows_read(plan: dict[str, Any]) -> Iterator[int]:
    if "Relation Name" in plan:
        yield int(plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * int(
            plan["Actual Loops"]
        )
    for part in plan.get("Plans", ()):
        yield from rows_read(part)


def read_by(world: World, statement: str, values: dict[str, Any], *, large: bool = False) -> int:
    """How many rows of tables the statement, which is carried out, reads. `large`: as if each table were too large to be read whole."""
    explain = "SET enable_seqscan = off;" * large + "EXPLAIN (ANALYZE, FORMAT JSON) "
    ((found,),) = world.sql("control", explain + statement, values)
    plan = found if isinstance(found, list) else json.loads(found)
    return sum(rows_read(plan[0]["Plan"]))


def test_letters_that_wait_are_not_read_to_see_that_none_is_due(world: World) -> None:
    waiting(world, 5_000)
    values = {"topics": None, "version": rules_of(world.settings).version, "limit": 10_000}
    assert read_by(world, load("backstop.triage", "count_due.sql")["due"], values) < 100


@pytest.mark.parametrize("analysed", [False, True], ids=["counted before", "counted since"])
def test_a_page_of_ended_replays_reads_no_letter_and_no_request_of_another_page(
    world: World, analysed: bool
) -> None:
    """The planner may not know yet that many are replaying, or know that most are."""
    waiting(world, 5_000)
    world.sql(
        "control",
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state)
        SELECT 'shop_a', topic, message_id, 2, 'replay', 'triage', 'sent' FROM dead_letter""",
    )
    world.sql(
        "control",
        "UPDATE dead_letter SET state = 'replaying', decision = 'replay', shard = 'shop_a', send_number = 2",
    )
    if analysed:
        world.sql("control", "ANALYZE dead_letter, resend_request")
    queries = load("backstop.triage.decide", "decide.sql")
    ((after,),) = world.sql("control", "SELECT min(dead_letter_id) + 2000 FROM dead_letter")
    page = {"after": after, "topics": None, "limit": 20}
    assert read_by(world, queries["ended"], page) <= 20 + 20
    rows = [
        {"dead_letter_id": letter_id, "state": "replayed"}
        for letter_id in range(after + 1, after + 21)
    ]
    assert read_by(world, queries["settle"], {"rows": json.dumps(rows)}, large=True) <= 20
    replayed = "SELECT count(*) FROM dead_letter WHERE state = 'replayed'"
    assert world.sql("control", replayed) == [(20,)]


@pytest.mark.parametrize("analysed", [False, True], ids=["counted before", "counted since"])
def test_a_page_of_staged_letters_reads_no_letter_of_another_page(
    world: World, analysed: bool
) -> None:
    waiting(world, 5_000)
    ((run_id,),) = world.sql(
        "control",
        """WITH r AS (
            INSERT INTO run (duty, scope, token, policy_version, code_version, stage)
            VALUES ('triage', '*', gen_random_uuid(), 'p', 'c', 1) RETURNING run_id)
        INSERT INTO staged_letter (run_id, stage, dead_letter_id, fingerprint, template, rule_category, category, classified_by)
        SELECT r.run_id, 1, d.dead_letter_id, 'f', 't', 'unknown', 'unknown', 1 FROM r, dead_letter d RETURNING run_id""",
    )[:1]
    if analysed:
        world.sql("control", "ANALYZE staged_letter, run")
    ((after,),) = world.sql("control", "SELECT min(dead_letter_id) + 2000 FROM dead_letter")
    hold = load("backstop.triage.causes", "classify.sql")["hold_batch"]
    assert read_by(world, hold, {"run_id": run_id, "after": after, "limit": 20}) < 50


def test_a_claim_reads_no_request_of_another_topic_or_shard(world: World) -> None:
    world.sql(
        "control",
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, not_before)
        SELECT CASE WHEN n <= 10 THEN 'shop_a' ELSE 'shop_b' END, 'orders', 'm' || n, 2, 'lost', 'reconcile',
            CASE n % 2 WHEN 1 THEN 'sent' ELSE 'open' END, now() - interval '1 day' - n * interval '1 s'
        FROM generate_series(1, 40000) n""",
    )
    world.sql("control", "ANALYZE resend_request")
    values = {
        "cut": datetime.now(UTC),
        "topic": "orders",
        "shard": "shop_a",
        "limit": 200,
        "ids": None,
        "token": str(uuid4()),
        "seconds": 60,
    }
    assert read_by(world, load("backstop.resend", "queries.sql")["claim"], values) < 100
    assert world.sql("control", "SELECT count(*) FROM resend_request WHERE state = 'claimed'") == [
        (5,)
    ]


def test_only_causes_that_could_make_a_pattern_with_what_was_staged_are_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice", "bob"):
        letter(world, name, error=f"Declined: the card of {name} is not accepted here")
    classify(world)
    for number, error in enumerate(
        ("KeyError: 'a'", "no rate for this currency", "it is Sunday and nobody is there")
    ):
        letter(world, f"other-{number}", error=error)
    classify(world)
    monkeypatch.setattr(stage_patterns, "CANDIDATES", 3)
    letter(world, "carol", error="Declined: the card of carol is not accepted here")
    classify(world, audit=tmp_path)
    assert causes(world)["handler failed || Declined: the card of <name> is not accepted here"] == (
        "unknown",
        3,
    )
    kept = load("backstop.triage.causes", "classify.sql")["kept_patterns"]
    pattern = "handler failed || Declined: the card of <name> is not accepted here"
    assert world.sql("control", kept, {"blanks": [pattern.count(" ")]}) == [(pattern,)]
    assert world.sql("control", kept, {"blanks": [pattern.count(" ") + 1]}) == []
