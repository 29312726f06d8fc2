"""How long the calls of each page of the console take: 10 million stubs on two shards, and a control database of that size.

The stubs are made by the servers themselves, both shards at once, in key order and without a log of changes: minutes, not hours.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg2
from fastapi import Request

from backstop.airflow.access import Visitor
from backstop.brokers.redis_streams import RedisStreams
from backstop.schema.migrate import grant, migrate
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import ROOT, Row, said
from bench.world import SERVER

LETTERS, OPEN, RUNS_OF_A_MONTH = 300_000, 100_000, 60_000
DELIVERIES, REQUESTS, TOPICS = 100_000, 300_000, 20
STUBS, LOGS = 10_000_000, 1_000_000
"""Over all shards; and logs of each group, which are looked up by key alone."""
CALLS, LIMIT = 30, 0.2
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
           1 + n % 500, CASE WHEN n % 5000 = 0 THEN 'conflict' ELSE 'poison' END,
           now(), CASE WHEN n % 3 = 0 THEN 'open' ELSE 'discarded' END, '{}', 'x',
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
    """INSERT INTO resend_batch (topic, state) SELECT 'topic-' || t, 'ramping' FROM generate_series(1, 3) t""",
    """UPDATE resend_request SET held = true WHERE state = 'open' AND topic IN ('topic-1', 'topic-2', 'topic-3')""",
    """INSERT INTO incident (run_id, wanted, planned_by, why, whole, planned_in)
       VALUES (3, '{"topic": "topic-1"}', 'olga', 'w', true, 'manual__1')""",
    """INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason, asked_at)
       SELECT 3, n, 'shop_a', 'topic-1', 'm-' || n * TOPICS, 'billing', 1, 'topic', 'dead letter: poison',
           CASE WHEN n % 2 = 0 THEN now() END
       FROM generate_series(1, 20000) n""",
    """INSERT INTO watch_group SELECT 'topic-' || t, g, now() - n * interval '1 min', 'l', 1000 - n, 10, 0, 5, now(), 1
       FROM generate_series(1, TOPICS) t, unnest(ARRAY['billing', 'shipping']) g, generate_series(0, 1440) n""",
    """INSERT INTO delivery_hour SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 h', 'topic-' || t, g, v, n
       FROM generate_series(0, 800) n, generate_series(1, TOPICS) t, unnest(ARRAY['billing', 'shipping']) g,
           unnest(ARRAY['LOST', 'CONFIRMED', 'BACKLOGGED', 'UNKNOWN']) v""",
    "ANALYZE",
)
STUB_ROWS = (
    "ALTER TABLE send_attempt SET UNLOGGED",
    "ALTER TABLE message_stub SET UNLOGGED",
    "DROP INDEX message_stub_key",
    """INSERT INTO message_stub (topic, message_id, message_key, content, status, send_count, next_check_at, created_at, first_seen_at,
           judged_at, attempted_at, attempt_deadline, sent_at, broker, queue_id, queue_offset, queue_epoch, broker_message_id)
       SELECT t.topic, 'PREFIX' || lpad(n::text, 9, '0'), 'customer-' || n % 200000, '\\x7b7d', 'confirmed', 1, c.at, c.at, c.at, c.at,
           c.at, c.at + interval '2 min', c.at, 'embedded', n % 8, n, 'e', 'b-' || t.topic || '-' || n
       FROM (SELECT 'topic-' || i AS topic FROM generate_series(1, TOPICS) i ORDER BY 1) t, generate_series(1, EACH) n,
           LATERAL (SELECT now() - n * (interval '21 days' / EACH) AS at) c""",
    "CREATE INDEX message_stub_key ON message_stub (topic, message_key, created_at) WHERE message_key IS NOT NULL",
    "ANALYZE message_stub",
)
LOG_ROWS = (
    "ALTER TABLE consumer_log SET UNLOGGED",
    """INSERT INTO consumer_log (consumer_group, topic, message_id, state, owner_token, first_received_at, updated_at, consumed_at)
       SELECT 'GROUP', t.topic, 'm-' || lpad(n::text, 9, '0'), 'CONSUMED', gen_random_uuid(), c.at, c.at, c.at
       FROM (SELECT 'topic-' || i AS topic FROM generate_series(1, TOPICS) i ORDER BY 1) t, generate_series(1, EACH) n,
           LATERAL (SELECT now() - n * (interval '21 days' / EACH) AS at) c""",
    "ANALYZE consumer_log",
)
DATABASES = {
    "producer_a": ("producer", STUB_ROWS),
    "producer_b": ("producer", STUB_ROWS),
    "consumer_billing": ("consumer", LOG_ROWS),
    "consumer_shipping": ("consumer", LOG_ROWS),
}
PAGES = {
    "overview": ("/overview", "/history?hours=24", "/history?hours=168", "/waiting"),
    "messages": (
        "/messages?text=m-000000077",
        "/messages?text=customer-77",
        "/message?topic=topic-7&id=m-000000077",
    ),
    "cases": ("/cases?filter=state:open", "/cases/1", "/cases/1/members", "/filters?list=cases"),
    "dead_letters": (
        "/causes",
        "/dead-letters?filter=state:open",
        "/dead-letters?filter=topic:topic-7 state:open cause:7",
        "/dead-letters?filter=id:m-77",
        "/dead-letters?filter=category:conflict",
        "/dead-letters/matching?filter=topic:topic-7 state:open",
        "/dead-letters/300",
    ),
    "deliveries": (
        "/deliveries?filter=verdict:LOST",
        "/deliveries?filter=topic:topic-3 group:billing",
    ),
    "flow": ("/flow", "/queues"),
    "resends": (
        "/resends",
        "/resends?filter=state:sent day:DAY",
        "/resends?filter=id:m-77",
        "/batches",
        "/replays",
        "/replays/3",
        "/pauses",
        "/me",
    ),
    "runs": ("/runs", "/runs?empty=true", "/runs?filter=duty:triage", "/runs/50"),
    "settings": ("/settings",),
}


def pages(full: bool) -> list[Row]:
    """Each call with a connection of its own, as Airflow's server makes it; the slowest kind of call counts for a page."""
    from fastapi.testclient import TestClient

    from backstop.airflow.console import app as console

    with (
        tempfile.TemporaryDirectory() as folder,
        Valkey(Path(folder) / "valkey") as valkey,
        _server(Path(folder) / "pg") as postgres,
    ):
        with said(f"making {STUBS:,} stubs, and what the control database knows of them"):
            day = _make(postgres, valkey)
        url = postgres.admin_dsn("control")
        reader = postgres.dsn("pages", postgres.create_role("pages"), "control")
        granting = psycopg2.connect(url)
        with granting, granting.cursor() as cursor:
            cursor.execute("GRANT backstop_reader TO pages")
        granting.close()
        config = Path(folder) / "backstop.yaml"
        config.write_text(json.dumps(_settings()))
        os.environ |= {
            "BACKSTOP_CONFIG": str(config),
            "AIRFLOW_CONN_BACKSTOP_CONTROL": reader,
            "AIRFLOW_CONN_BACKSTOP_BROKER": valkey.url(),
            "AIRFLOW_CONN_BACKSTOP_LEASES": valkey.url(),
            **{
                f"AIRFLOW_CONN_BACKSTOP_{name.upper()}": postgres.admin_dsn(name)
                for name in DATABASES
            },
        }
        console.reader = lambda: let_pass  # type: ignore[assignment]
        client = TestClient(console.make_app())
        return [
            _page(client, name, [path.replace("DAY", day) for path in paths])
            for name, paths in PAGES.items()
        ]


def _server(folder: Path) -> Postgres:
    """One with the memory of a server, and without the safety of one: its data is thrown away."""
    postgres = Postgres(folder)
    with postgres:
        pass
    with (postgres.directory / "data" / "postgresql.auto.conf").open("a") as settings:
        settings.write(SERVER.replace("2GB", "1GB") + "fsync = off\nfull_page_writes = off\n")
    return postgres


def _make(postgres: Postgres, valkey: Valkey) -> str:
    """Every database and the broker's topics; returns the day (UTC) of the control database."""
    with RedisStreams(valkey.url()) as broker:
        for number in range(1, TOPICS + 1):
            broker.create_topic(f"topic-{number}", 8)
            for group in ("billing", "shipping"):
                broker.create_group(group, f"topic-{number}", at="start")
    for name, (role, _) in {**DATABASES, "control": ("control", SEED)}.items():
        postgres.create_database(name)
        migrate(postgres.admin_dsn(name), role)
        grant(postgres.admin_dsn(name), role)
    with ThreadPoolExecutor(2) as pool:
        filling = [
            pool.submit(_fill, postgres, name, rows) for name, (_, rows) in DATABASES.items()
        ]
        filling.append(pool.submit(_fill, postgres, "control", SEED))
        for one in filling:
            one.result()
    connection = psycopg2.connect(postgres.admin_dsn("control"))
    connection.autocommit = True
    with connection.cursor() as cursor:
        # As autovacuum leaves them: what an index answers alone needs no row.
        cursor.execute("VACUUM (ANALYZE) case_member, dead_letter, resend_request, open_delivery")
        cursor.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date::text")
        day = str(cursor.fetchone()[0])
    connection.close()
    return day


def _fill(postgres: Postgres, database: str, statements: tuple[str, ...]) -> None:
    numbers = {
        "RUNS": RUNS_OF_A_MONTH,
        "TOPICS": TOPICS,
        "DELIVERIES": DELIVERIES,
        "LETTERS": LETTERS,
        "REQUESTS": REQUESTS,
        "EACH": (STUBS // 2 if database.startswith("producer") else LOGS) // TOPICS,
        "PREFIX": "n-" if database == "producer_b" else "m-",
        "GROUP": database.removeprefix("consumer_"),
    }
    connection = psycopg2.connect(postgres.admin_dsn(database))
    with connection, connection.cursor() as cursor:
        for statement in statements:
            for name, number in numbers.items():
                statement = statement.replace(name, str(number))
            cursor.execute(statement)
    connection.close()


def let_pass(request: Request) -> None:
    """Everybody may do everything."""
    request.state.backstop_visitor = Visitor(
        "7", "olga", lambda _: True, lambda _: True, lambda _: True
    )


def _page(client: Any, name: str, paths: list[str]) -> Row:
    slowest: dict[str, float] = {}
    for path in paths:
        taken = []
        for _ in range(CALLS + 2):
            begun = time.perf_counter()
            answer = client.get(path)
            taken.append(time.perf_counter() - begun)
            assert answer.status_code == 200, (path, answer.text)
        slowest[path] = sorted(taken[2:])[int(CALLS * 0.95) - 1]
    worst = max(slowest.values())
    note = (
        f"{STUBS:,} stubs, {OPEN:,} open of {LETTERS:,} dead letters, {DELIVERIES:,} open deliveries, {REQUESTS:,} requests,"
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
