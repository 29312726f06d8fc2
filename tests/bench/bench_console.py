"""How long the calls of each page of the console take, in a control database of the size of 10 million stubs."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg2
from fastapi import Request

from backstop.airflow.access import Visitor
from backstop.schema.migrate import grant, migrate
from backstop_lab.servers.postgres import Postgres
from bench.measure import ROOT, Row

LETTERS, OPEN, RUNS_OF_A_MONTH = 300_000, 100_000, 60_000
DELIVERIES, REQUESTS, TOPICS = 100_000, 300_000, 20
EACH, LIMIT = 30, 0.2
"""Calls of each kind, and seconds that 95 of 100 may take."""
SEED = (
    """INSERT INTO run (duty, token, policy_version, code_version, counts, state, started_at, finished_at)
       SELECT (ARRAY['reconcile', 'sweep', 'triage', 'watch', 'resend'])[1 + n % 5], gen_random_uuid(), 'p', 'c',
           CASE WHEN n % 50 = 0 THEN '{"lost": 1}' ELSE '{"due": 0}' END::jsonb, 'done',
           now() - (RUNS - n) * interval '40 s', now()
       FROM generate_series(1, RUNS) n""",
    """INSERT INTO verdict_count SELECT r.run_id, 'topic-' || t, g, v, 500, 0, 0
       FROM (SELECT run_id FROM run WHERE duty = 'reconcile' ORDER BY run_id DESC LIMIT 2000) r, generate_series(1, TOPICS) t,
           unnest(ARRAY['billing', 'shipping']) g, unnest(ARRAY['CONFIRMED', 'LOST']) v""",
    """INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)
       SELECT 'topic-' || 1 + n % TOPICS, 'm-' || n, 'billing', 'shop_a',
           (ARRAY['LOST', 'UNKNOWN', 'EXHAUSTED', 'BACKLOGGED', 'STALLED'])[1 + n % 5], 'r', false, 1
       FROM generate_series(1, DELIVERIES) n""",
    "INSERT INTO drain_batch (run_id, broker, queue, letters) VALUES (1, 'b', 'q', 1)",
    """INSERT INTO cause (fingerprint, shown, template, category, first_seen_at, last_seen_at, dead_letters)
       SELECT 'f' || n, 'died of ' || n, 't', 'poison', now(), now(), 1 FROM generate_series(1, 500) n""",
    """INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers, content,
           content_bytes, cause_id, category, classified_at, state, proof, decided_by, closed_at)
       SELECT 1, 'b', 'q', 'id-' || n, 'topic-' || 1 + n % TOPICS, 'm-' || n, 'billing', '{}',
           convert_to(repeat('x', 300), 'UTF8'), 300,
           1 + n % 500, 'poison', now(), CASE WHEN n % 3 = 0 THEN 'open' ELSE 'discarded' END, '{}', 'x',
           CASE WHEN n % 3 <> 0 THEN now() END
       FROM generate_series(1, LETTERS) n""",
    """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, updated_at)
       SELECT 'shop_a', 'topic-' || 1 + n % TOPICS, 'm-' || n, 1, 'r', 'test',
           (ARRAY['sent', 'sent', 'open', 'refused'])[1 + n % 4],
           now() - n % 20 * interval '1 day'
       FROM generate_series(1, REQUESTS) n""",
    """INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary)
       SELECT 'unknown', 'topic-' || 1 + n % TOPICS, 'billing', n::text, 'warning', 'summary ' || n
       FROM generate_series(1, 3000) n""",
    """INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
       SELECT 1, 'shop_a', 'topic-1', 'm-' || n, 'billing' FROM generate_series(1, 50000) n""",
    """INSERT INTO watch_group SELECT 'topic-' || t, g, now() - n * interval '1 min', 'l', 1000 - n, 10, 0, 5, now(), 1
       FROM generate_series(1, TOPICS) t, unnest(ARRAY['billing', 'shipping']) g, generate_series(0, 1440) n""",
    """INSERT INTO delivery_hour SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 h', 'topic-' || t, g, v, n
       FROM generate_series(0, 800) n, generate_series(1, TOPICS) t, unnest(ARRAY['billing', 'shipping']) g,
           unnest(ARRAY['LOST', 'CONFIRMED', 'BACKLOGGED', 'UNKNOWN']) v""",
    "ANALYZE",
)
PAGES = {
    "overview": ("/overview", "/history?hours=24", "/history?hours=168"),
    "cases": ("/cases?filter=state:open", "/cases/1", "/cases/1/members", "/filters?list=cases"),
    "dead_letters": (
        "/causes",
        "/dead-letters?filter=state:open",
        "/dead-letters?filter=topic:topic-7 state:open cause:7",
        "/dead-letters?filter=id:m-77",
        "/dead-letters/300",
    ),
    "deliveries": (
        "/deliveries?filter=verdict:LOST",
        "/deliveries?filter=topic:topic-3 group:billing",
    ),
    "flow": ("/flow", "/queues"),
    "resends": ("/resends", "/resends?filter=state:sent day:DAY", "/batches", "/pauses", "/me"),
    "runs": ("/runs", "/runs?empty=true", "/runs?filter=duty:triage", "/runs/50"),
    "settings": ("/settings",),
}


def pages(full: bool) -> list[Row]:
    """Each call with a connection of its own, as Airflow's server makes it; the slowest kind of call counts for a page."""
    from fastapi.testclient import TestClient

    from backstop.airflow.console import app as console

    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder) / "pg") as postgres:
        postgres.create_database("control")
        url = postgres.admin_dsn("control")
        migrate(url, "control")
        grant(url, "control")
        connection = psycopg2.connect(url)
        with connection, connection.cursor() as cursor:
            for statement in SEED:
                for name, number in {
                    "RUNS": RUNS_OF_A_MONTH,
                    "TOPICS": TOPICS,
                    "DELIVERIES": DELIVERIES,
                    "LETTERS": LETTERS,
                    "REQUESTS": REQUESTS,
                }.items():
                    statement = statement.replace(name, str(number))
                cursor.execute(statement)
            cursor.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date::text")
            day = cursor.fetchone()[0]
        connection.close()
        reader = postgres.dsn("pages", postgres.create_role("pages"), "control")
        granting = psycopg2.connect(url)
        with granting, granting.cursor() as cursor:
            cursor.execute("GRANT backstop_reader TO pages")
        granting.close()
        config = Path(folder) / "backstop.yaml"
        config.write_text(json.dumps(_settings()))
        os.environ |= {"BACKSTOP_CONFIG": str(config), "AIRFLOW_CONN_BACKSTOP_CONTROL": reader}
        console.reader = lambda: let_pass  # type: ignore[assignment]
        client = TestClient(console.make_app())
        return [
            _page(client, name, [path.replace("DAY", day) for path in paths])
            for name, paths in PAGES.items()
        ]


def let_pass(request: Request) -> None:
    """Everybody may do everything."""
    request.state.backstop_visitor = Visitor(
        "7", "olga", lambda _: True, lambda _: True, lambda _: True
    )


def _page(client: Any, name: str, paths: list[str]) -> Row:
    slowest: dict[str, float] = {}
    for path in paths:
        taken = []
        for _ in range(EACH + 2):
            begun = time.perf_counter()
            answer = client.get(path)
            taken.append(time.perf_counter() - begun)
            assert answer.status_code == 200, (path, answer.text)
        slowest[path] = sorted(taken[2:])[int(EACH * 0.95) - 1]
    worst = max(slowest.values())
    note = (
        f"{OPEN:,} open of {LETTERS:,} dead letters, {DELIVERIES:,} open deliveries, {REQUESTS:,} requests,"
        f" {RUNS_OF_A_MONTH:,} runs"
    )
    return Row(
        f"console.{name}",
        round(worst, 3),
        "s (p95)",
        f"<= {LIMIT}",
        worst <= LIMIT,
        phases=slowest,
        note=note,
    )


def _settings() -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((ROOT / "backstop.yaml").read_text())
    content["topics"] = {
        f"topic-{n}": {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "repair"}
        for n in range(1, TOPICS + 1)
    }
    return content


BENCHMARKS = {tuple(f"console.{name}" for name in PAGES): pages}
