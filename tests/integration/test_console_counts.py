"""The counts that the console shows equal the rows that they count, whoever changes these rows and in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from backstop.reconcile.promote import promote
from backstop.runs.run import close_run, open_run
from backstop.watch.add_up import add_up
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system

COUNTED = {
    "dead_letter": """SELECT coalesce(topic, '*'), coalesce(consumer_group, '*'), state, category, cause_id, NULL::date, count(*)
        FROM dead_letter GROUP BY 1, 2, 3, 4, 5""",
    "request": """SELECT topic, '*', state, NULL, NULL::bigint, (updated_at AT TIME ZONE 'UTC')::date, count(*)
        FROM resend_request GROUP BY 1, 3, 6""",
    "delivery": """SELECT topic, consumer_group, verdict, NULL, NULL::bigint, NULL::date, count(*)
        FROM open_delivery GROUP BY 1, 2, 3""",
}
TALLIED = """SELECT topic, consumer_group, state, category, cause_id, day, sum(number)::bigint FROM tally WHERE subject = %s
    GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(number) <> 0"""


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


def assert_counts_add_up(world: System) -> None:
    for subject, counting in COUNTED.items():
        tallied, counted = world.rows("control", TALLIED, subject), world.rows("control", counting)
        assert sorted(tallied, key=str) == sorted(counted, key=str), subject


def add(world: System) -> None:
    conn = world.control()
    with conn, conn.cursor() as cursor:
        add_up(cursor)
    conn.close()


def letters(world: System, topic: str, number: int) -> None:
    world.rows(
        "control",
        """
        WITH batch AS (INSERT INTO drain_batch (run_id, broker, queue, letters) SELECT run_id, 'b', 'q', %s FROM run LIMIT 1
            RETURNING batch_id)
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers, content_bytes)
        SELECT batch_id, 'b', 'q', gen_random_uuid()::text, %s, 'm-' || n, 'billing', '{}', 0 FROM batch, generate_series(1, %s) n
        """,
        number,
        topic,
        number,
    )


CHANGES = (
    "UPDATE dead_letter SET state = 'discarded', closed_at = now(), proof = '{}', decided_by = 'triage'"
    " WHERE dead_letter_id %% 3 = 0 AND state = 'open'",
    "UPDATE dead_letter SET reason = 'nothing that is counted'",
    "UPDATE dead_letter SET topic = NULL, consumer_group = NULL WHERE dead_letter_id %% 5 = 0",
    "DELETE FROM dead_letter WHERE dead_letter_id %% 7 = 0",
    "UPDATE resend_request SET state = 'sent', updated_at = now() - interval '3 days' WHERE request_id %% 2 = 0",
    "UPDATE resend_request SET state = 'not_needed' WHERE request_id %% 3 = 0",
    "DELETE FROM resend_request WHERE request_id %% 5 = 0",
    "DELETE FROM open_delivery WHERE message_id LIKE '%%3'",
    "UPDATE open_delivery SET verdict = 'EXHAUSTED' WHERE message_id LIKE '%%1'",
    """INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)
       SELECT 'orders', 'm-' || n, 'billing', 'shop_a', 'LOST', 'r', true, 1 FROM generate_series(1, 40) n
       ON CONFLICT (topic, message_id, consumer_group) DO UPDATE SET verdict = excluded.verdict""",
    """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)
       SELECT 'shop_a', 'orders', 'm-' || n, 1, 'r', 'test' FROM generate_series(1, 40) n ON CONFLICT DO NOTHING""",
)


def test_every_count_equals_the_rows_after_any_changes_also_beside_one_another(
    world: System,
) -> None:
    chance = random.Random(1)
    conn = world.control()
    open_run(conn, "triage", "*", world.settings)
    letters(world, "orders", 30)
    letters(world, "payments", 20)

    def work(statements: list[str]) -> None:
        for statement in statements:
            for _ in range(20):
                try:
                    world.rows("control", statement)
                    break
                except psycopg2.errors.DeadlockDetected:
                    continue  # of two updates over the same rows; what was rolled back counts nothing
            if chance.random() < 0.4:
                add(world)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [chance.sample(CHANGES, len(CHANGES)) for _ in range(2)]))
    assert_counts_add_up(world)
    add(world)
    assert_counts_add_up(world)
    per_count = world.rows(
        "control",
        "SELECT max(n) FROM (SELECT count(*) n FROM tally"
        " GROUP BY subject, topic, consumer_group, state, category, cause_id, day) c",
    )
    assert per_count == [(1,)], "added up, a count is one row"
    conn.close()


def stage(world: System, run_id: int, message_id: str, **verdicts: str) -> None:
    world.rows(
        "control",
        "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count,"
        " deliveries) VALUES (%s, 0, 'shop_a', 'orders', %s, 'pending', 'pending', 1, 2)",
        run_id,
        message_id,
    )
    for group, verdict in verdicts.items():
        world.rows(
            "control",
            "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict,"
            " reason, eligible, send_count, evidence) VALUES (%s, 0, 'shop_a', 'orders', %s, %s, %s, 'r', false, 1, '{}')",
            run_id,
            message_id,
            group,
            verdict,
        )


def promoted(
    world: System, conn: object, *staged: tuple[str, dict[str, str]], newly: int = 0
) -> int:
    run = open_run(conn, "reconcile", "*", world.settings)
    for message_id, verdicts in staged:
        stage(world, run.run_id, message_id, **verdicts)
    counted = "INSERT INTO staged_count VALUES (%s, 0, 'orders', 'billing', 'CONFIRMED', %s, 0, %s)"
    world.rows("control", counted, run.run_id, newly, newly)
    promote(world.settings, world.connections, conn, run)
    close_run(conn, run, "done", {})
    return run.run_id


OPEN = "SELECT message_id, consumer_group, verdict FROM open_delivery ORDER BY 1, 2"


def test_a_delivery_is_open_with_its_newest_verdict_until_a_run_or_a_person_ends_it(
    world: System,
) -> None:
    conn = world.control()
    for message_id in ("a", "b", "c", "d"):
        world.stub(message_id)
    late = open_run(conn, "reconcile", "orders", world.settings)
    promoted(
        world,
        conn,
        ("a", {"billing": "LOST", "shipping": "BACKLOGGED"}),
        ("b", {"billing": "EXHAUSTED"}),
        ("c", {"billing": "VOIDED"}),
        ("d", {"billing": "UNKNOWN"}),
        newly=3,
    )
    assert world.rows("control", OPEN) == [
        ("a", "billing", "LOST"),
        ("a", "shipping", "BACKLOGGED"),
        ("b", "billing", "EXHAUSTED"),
        ("d", "billing", "UNKNOWN"),
    ]
    since = "SELECT since FROM open_delivery WHERE message_id = 'a' AND consumer_group = 'billing'"
    before = world.rows("control", since)
    promoted(world, conn, ("a", {"billing": "LOST"}), newly=2)
    assert world.rows("control", OPEN)[:2] == [
        ("a", "billing", "LOST"),
        ("b", "billing", "EXHAUSTED"),
    ]
    assert world.rows("control", since) == before, "the same verdict began with the first"
    hours = "SELECT verdict, sum(deliveries) FROM delivery_hour GROUP BY 1 ORDER BY 1"
    add(world)
    assert world.rows("control", hours) == [
        ("CONFIRMED", 5),
        ("EXHAUSTED", 1),
        ("LOST", 1),
        ("UNKNOWN", 1),
    ]
    # What an earlier run found, promoted late, is not news.
    stage(world, late.run_id, "a", billing="UNSENT")
    promote(world.settings, world.connections, conn, late)
    close_run(conn, late, "done", {})
    assert world.rows("control", OPEN)[0] == ("a", "billing", "LOST")
    # A person ends the others.
    world.rows(
        "control",
        "INSERT INTO delivery_decision VALUES ('orders', 'd', 'billing', 'discard', NULL, 'ann', now(), 'why')",
    )
    world.rows(
        "control",
        "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES"
        " ('exhausted', 'orders', 'billing', 's') RETURNING case_id)"
        " INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', 'orders', 'b', 'billing' FROM c",
    )
    world.rows("control", "UPDATE case_member SET settled_at = now()")
    assert world.rows("control", OPEN) == [("a", "billing", "LOST")]
    world.rows(
        "control",
        "INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)"
        " SELECT 'shop_a', 'orders', 'a', case_id, 'ann', 'why' FROM case_file LIMIT 1",
    )
    assert len(world.rows("control", OPEN)) == 1, "only begun"
    world.rows("control", "UPDATE withdrawal SET applied_at = now()")
    assert world.rows("control", OPEN) == []
    assert_counts_add_up(world)
    conn.close()


def test_open_deliveries_to_a_group_that_left_the_settings_are_forgotten(world: System) -> None:
    conn = world.control()
    world.rows(
        "control",
        "INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible,"
        " run_id) VALUES ('orders', 'x', 'gone', 'shop_a', 'LOST', 'r', true, 0)",
    )
    promoted(world, conn)
    assert world.rows("control", OPEN) == []
    assert_counts_add_up(world)
    conn.close()


def test_the_causes_of_what_waits_are_counted_once_an_hour_and_forgotten_after_a_day(
    world: System,
) -> None:
    conn = world.control()
    close_run(conn, open_run(conn, "triage", "*", world.settings), "done", {})
    hours = (
        "SELECT hour = date_trunc('hour', now(), 'UTC'), topic, cause_id, category, dead_letters"
        " FROM cause_hour ORDER BY hour, topic"
    )
    add(world)
    assert world.rows("control", hours) == [], "nothing waits"
    letters(world, "orders", 3)
    letters(world, "payments", 2)
    discard = (
        "UPDATE dead_letter SET state = 'discarded', proof = '{}', decided_by = 'x', closed_at = now()"
        " WHERE message_id = 'm-1'"
    )
    world.rows("control", discard)
    counted = [(True, "orders", 0, "", 2), (True, "payments", 0, "", 1)]
    add(world)
    assert world.rows("control", hours) == counted
    letters(world, "orders", 7)
    add(world)
    assert world.rows("control", hours) == counted, "as the hour began"
    for ago, left in (("24 hours", 2), ("28 hours", 0)):
        world.rows(
            "control",
            "UPDATE cause_hour SET hour = date_trunc('hour', now(), 'UTC') - %s::interval",
            ago,
        )
        add(world)
        old = "SELECT count(*) FROM cause_hour WHERE hour < date_trunc('hour', now(), 'UTC')"
        assert world.rows("control", old) == [(left,)]
        world.rows(
            "control", "DELETE FROM cause_hour WHERE hour = date_trunc('hour', now(), 'UTC')"
        )
    conn.close()


def test_totals_only_grow_and_a_histogram_has_each_run_once(world: System) -> None:
    from backstop.reports.metrics import render

    def told() -> dict[str, float]:
        conn = world.control()
        text, _ = render(conn, world.settings)
        conn.close()
        lines = [
            line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")
        ]
        return {name: float(value) for name, _, value in lines}

    conn = world.control()
    for seconds in (0.5, 0.7, 40, 5_000):
        run = open_run(conn, "triage", "*", world.settings)
        world.rows(
            "control",
            "UPDATE run SET started_at = now() - %s * interval '1 s' WHERE run_id = %s",
            seconds,
            run.run_id,
        )
        close_run(conn, run, "done", {})
    letters(world, "orders", 30)
    for statement in (CHANGES[0], CHANGES[10], CHANGES[4], CHANGES[4]):
        world.rows("control", statement)
    runs = 'backstop_run_duration_seconds_bucket{duty="triage",le="%s",state="done"}'
    for _ in range(2):
        now = told()
        assert [now[runs % le] for le in ("1", "30", "60", "3600", "+Inf")] == [2, 2, 3, 3, 4]
        assert now['backstop_run_duration_seconds_count{duty="triage",state="done"}'] == 4
        assert now['backstop_sends_total{outcome="sent",topic="orders"}'] == 20
        assert now['backstop_dead_letter_outcomes_total{outcome="drained",topic="orders"}'] == 30
        assert now['backstop_dead_letter_outcomes_total{outcome="discarded",topic="orders"}'] == 10
        assert now['backstop_dead_letters{group="billing",state="open",topic="orders"}'] == 20
        # What retention takes away, and adding up, change nothing of it.
        world.rows("control", "DELETE FROM resend_request")
        world.rows("control", "DELETE FROM dead_letter WHERE state = 'discarded'")
        add(world)
    conn.close()
