"""The console's API: closed to strangers, bounded by team, and no number without the rows that add up to it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml
from fastapi import Request
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from backstop.airflow import access
from backstop.airflow.console import app as console
from backstop.airflow.console import visit
from backstop.airflow.console.routes import matching, replays
from backstop.airflow.console.timeline import story_of
from backstop.airflow.control_room import READING
from backstop.config.load import load
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError
from backstop.model.records import GROUP_BYTES, ID_BYTES, TOPIC_BYTES
from backstop.reports.console import LISTS, filter_text
from backstop.reports.filters import read_filter
from backstop.reports.metrics import render
from backstop.reports.story import Delivery, MessageHistory
from backstop.schema.migrate import grant, migrate
from backstop.watch.duties import overdue, read_ages
from backstop_lab.servers.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
NASTY = "<script>alert('o')</script> \\\" {{ 7*7 }}"
ORIGIN = {"origin": "http://testserver", "content-type": "application/json"}
TEAMS = [{"name": "a", "topics": ["orders"]}, {"name": "b", "topics": ["payments"]}]
OF_A = ("decide_case__a", "reconcile", "resend", "prove")
OF_B = ("decide_case__b",)
EVERYTHING = ("decide_case", *OF_A, *OF_B, "sweep", "triage", "watch", "replay_incident")
SEED = (
    """INSERT INTO run (duty, token, policy_version, code_version, counts, state, finished_at)
       SELECT d, gen_random_uuid(), 'p', 'c', CASE WHEN n = 1 THEN '{"lost": 1}' ELSE '{"due": 0}' END::jsonb, 'done', now()
       FROM unnest(ARRAY['reconcile', 'sweep', 'prove', 'reconcile']) WITH ORDINALITY AS d (d, n)""",
    """INSERT INTO verdict_count SELECT 4, t, 'billing', v, 3, 0, 0 FROM unnest(ARRAY['orders', 'payments']) t,
       unnest(ARRAY['LOST', 'CONFIRMED']) v""",
    """INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)
       SELECT t, t || '-' || n, g, 'shop_a', (ARRAY['LOST', 'UNKNOWN', 'EXHAUSTED', 'BACKLOGGED'])[1 + n %% 4], 'r', false, 1
       FROM unnest(ARRAY['orders', 'payments', 'refunds']) t, unnest(ARRAY['billing', 'shipping']) g,
           generate_series(1, 9) n""",
    """INSERT INTO drain_batch (run_id, broker, queue, letters) VALUES (1, 'b', 'q', 30)""",
    """INSERT INTO cause (fingerprint, shown, template, category, first_seen_at, last_seen_at, dead_letters)
       SELECT 'f' || n, 'died of ' || n || %(nasty)s, 'secret template', 'poison', now(), now(), 10
       FROM generate_series(1, 3) n""",
    """INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers, content,
           content_bytes, cause_id, category, classified_at, state, proof, decided_by, closed_at)
       SELECT 1, 'b', 'q', 'id-' || t || n, t, t || '-' || n, 'billing', '{"h": "v"}', 'the content', 11, 1 + n %% 3, 'poison',
           now(), CASE WHEN n %% 4 = 0 THEN 'discarded' ELSE 'open' END, '{}', 'x', CASE WHEN n %% 4 = 0 THEN now() END
       FROM unnest(ARRAY['orders', 'payments']) t, generate_series(1, 15) n""",
    "INSERT INTO dead_letter (batch_id, broker, queue, broker_id, headers, content_bytes) VALUES (1, 'b', 'q', 'lost', '{}', 0)",
    """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, updated_at)
       SELECT 'shop_a', t, t || '-' || n, 1, 'r', 'test', (ARRAY['open', 'sent', 'refused'])[1 + n %% 3],
           now() - n / 7 * interval '1 day'
       FROM unnest(ARRAY['orders', 'payments']) t, generate_series(1, 12) n""",
    """INSERT INTO case_file (kind, topic, consumer_group, severity, summary, evidence)
       SELECT k, t, 'billing', s, %(nasty)s, jsonb_build_object('x', %(nasty)s::text)
       FROM (VALUES ('unknown', 'orders', 'critical'), ('exhausted', 'orders', 'warning'), ('exhausted', 'payments', 'warning'),
           ('unknown', '*', 'info')) v (k, t, s)""",
    """INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
       SELECT 1, 'shop_a', 'orders', 'orders-' || n, 'billing' FROM generate_series(1, 9) n""",
    "INSERT INTO case_question (case_id, number, dag_run_id, shown_at) VALUES (1, 1, 'case 1/of a', now())",
    "INSERT INTO resend_batch (topic) SELECT t FROM unnest(ARRAY['orders', 'payments']) t",
    """INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken, deliveries, digest)
       VALUES (3, 'payments', now() - interval '1 h', now(), 'nothing_lost', 's', '{}', 1, 0, 1, 'd')""",
    "INSERT INTO watch_group VALUES ('orders', 'billing', now() - interval '1 min', 'l', 10, 90, 0, 60, now(), 1),"
    " ('orders', 'billing', now(), 'l', 40, 60, 0, 30, now(), 1), ('payments', 'billing', now(), 'l', 0, 5, 0, 30, now(), 1)",
    "INSERT INTO watch_queue VALUES ('orders', 'billing', 0, 'e', 40, now(), 100, true, NULL, now()),"
    " ('payments', 'billing', 0, 'e', 0, now(), 5, true, NULL, now())",
    "INSERT INTO watch_owner VALUES ('orders', 'billing', 0, 'worker-7', 'OWNED', now(), 60, 30, now())",
    """INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence)
       SELECT 'key_parked', t, 'billing', %(nasty)s, 's', jsonb_build_object('messages', 3, 'queue', 0, 'head', %(nasty)s::text,
           'error', 'KeyError', 'parked_at', '2026-11-24T10:00:00+00:00')
       FROM unnest(ARRAY['orders', 'payments']) t""",
    """INSERT INTO incident (run_id, wanted, planned_by, why, whole, too_wide, planned_in, left_out, shown)
       SELECT r, jsonb_build_object('topic', t), 'olga', %(nasty)s, true, false, 'manual__' || t, '{"it is done": 2}',
           jsonb_build_object('yes', 'replay plan ' || r || ' (full, 0123456789ab)')
       FROM (VALUES (2, 'payments'), (4, 'orders')) v (r, t)""",
    """INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason, asked_at)
       SELECT 4, n, 'shop_a', 'orders', 'orders-' || n, 'billing', 1, 'topic', 'dead letter: poison',
           CASE WHEN n <= 3 THEN now() END
       FROM generate_series(1, 5) n""",
    "INSERT INTO data_check VALUES (1, 'verdicts', false, 3, %(failed)s)",
    "INSERT INTO delivery_hour SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 h', t, 'billing', 'LOST', 2"
    " FROM unnest(ARRAY['orders', 'payments']) t, generate_series(0, 30) n",
)
FAILED = [
    {
        "name": "names_known",
        "must_hold": "m",
        "count": 2,
        "ids": [
            {"topic": "orders", "message_id": NASTY},
            {"topic": "payments", "message_id": "payments-7"},
        ],
    }
]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with Postgres(tmp_path_factory.mktemp("pg")) as server:
        server.create_database("control")
        url = server.admin_dsn("control")
        migrate(url, "control")
        grant(url, "control")
        urls = {"owner": url}
        connection = psycopg2.connect(url)
        with connection, connection.cursor() as cursor:
            for statement in SEED:
                cursor.execute(statement, {"nasty": NASTY, "failed": json.dumps(FAILED)})
            for name, role in (("pages", "backstop_reader"), ("duties", "backstop_duty")):
                urls[name] = server.dsn(name, server.create_role(name), "control")
                cursor.execute(f"GRANT {role} TO {name}")
        connection.close()
        yield urls


@dataclass
class As:
    """Makes clients of visitors with these DAGs; `url`: the control database by its owner."""

    monkeypatch: pytest.MonkeyPatch
    url: str

    def __call__(
        self, *dags: str, run: bool = False, answer: bool = False, name: str = "olga"
    ) -> TestClient:
        def let_pass(request: Request) -> None:
            may = dags.__contains__
            request.state.backstop_visitor = access.Visitor(
                name, name, may, lambda dag: run and may(dag), lambda dag: answer and may(dag)
            )

        self.monkeypatch.setattr(console, "reader", lambda: let_pass)
        return TestClient(console.make_app(), raise_server_exceptions=False)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.url)
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            found = cursor.fetchall()
        connection.close()
        return found


@pytest.fixture
def by(control: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> As:
    settings = yaml.safe_load((ROOT / "backstop.yaml").read_text())
    settings |= {"teams": TEAMS, "console": {"reader": "backstop_console"}}
    (tmp_path / "backstop.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", control["duties"])
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONSOLE", control["pages"])
    for name in ("PRODUCER_A", "PRODUCER_B", "CONSUMER_BILLING", "CONSUMER_SHIPPING"):
        monkeypatch.setenv(f"AIRFLOW_CONN_BACKSTOP_{name}", "postgresql://x:y@127.0.0.1:1/gone")
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_BROKER", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_LEASES", "redis://127.0.0.1:1/1")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user,vera:viewer")
    return As(monkeypatch, control["owner"])


def routes() -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in console.make_app().routes
        for method in sorted(getattr(route, "methods", ()) or ())
        if method != "HEAD"
    ]


def asked(
    client: TestClient, method: str, path: str, headers: dict[str, str] = ORIGIN, body: str = "{}"
) -> Any:
    query = {
        "/messages": "?text=orders-1",
        "/message": "?topic=orders&id=orders-1",
        "/filters": "?list=cases",
        "/cases/{case_id}/preview": "?action=discard",
    }.get(path, "")
    for name in ("case_id", "dead_letter_id", "run_id", "plan", "proposal_id"):
        path = path.replace(f"{{{name}}}", "1")
    return client.request(
        method, path + query, headers=headers, content=body if method != "GET" else None
    )


def every(
    client: TestClient, list_: str, filter: str = "", limit: int = 4, **more: str
) -> list[dict[str, Any]]:
    """All rows of a list, page by page."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = client.get(
            list_,
            params={"filter": filter, "limit": str(limit), **more, **after}
            if filter
            else {"limit": str(limit), **more, **after},
        )
        assert page.status_code == 200, page.text
        found += page.json()["items"]
        assert len(found) < 2_000
        if page.json()["next"] is None:
            return [
                {name: value for name, value in row.items() if name != "heartbeat_age"}
                for row in found
            ]
        after = {"after": page.json()["next"]}


def test_no_route_answers_without_a_login_or_without_airflows_helpers(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(routes()) >= 37
    monkeypatch.undo()
    stranger = TestClient(console.make_app())
    for method, path in routes():
        assert asked(stranger, method, path).status_code in (401, 403), path
    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.core_api.security", None)
    assert access.reader() is access.refuse
    for method, path in routes():
        assert asked(TestClient(console.make_app()), method, path).status_code == 403, path


PROPOSED = "/cases/{case_id}/proposals/{proposal_id}/content"
BODIES = {
    "/cases/{case_id}/notes": '{"note": "n"}',
    PROPOSED: "{}",
    "/dead-letters/{dead_letter_id}/content": "{}",
    "/dead-letters/{dead_letter_id}/check": '{"content": "{}"}',
    "/dead-letters/export": '{"filter": "topic:orders", "contents": true, "why": "w"}',
    "/pauses": '{"topic": "orders", "why": "w"}',
    "/pauses/end": '{"topic": "orders"}',
}


@contextmanager
def proposed(
    by: As, case_id: int, action: str, options: str, content: str = "NULL"
) -> Iterator[None]:
    """Number 1, which waits for a second person."""
    by.rows(
        f"""INSERT INTO proposal (proposal_id, case_id, action, who, why, options, content) OVERRIDING SYSTEM VALUE
            VALUES (1, {case_id}, '{action}', 'otto', 'w', '{options}', {content}) RETURNING 1"""
    )
    try:
        yield
    finally:
        by.rows("DELETE FROM proposal RETURNING 1")


@pytest.fixture
def edit_proposed(by: As) -> Iterator[None]:
    with proposed(by, 1, "edit", "{}", "'new'"):
        yield


def test_who_may_only_look_changes_nothing_and_another_sites_page_is_refused(by: As) -> None:
    changing = [(method, path) for method, path in routes() if method not in ("GET", "HEAD")]
    assert {path for _, path in changing} == set(BODIES)
    counts = "SELECT (SELECT count(*) FROM case_note), (SELECT count(*) FROM pause), (SELECT count(*) FROM decision_log)"
    before = by.rows(counts)
    viewer, everybody = by(*EVERYTHING), by(*EVERYTHING, run=True, answer=True)
    for method, path in changing:
        assert asked(viewer, method, path, body=BODIES[path]).status_code == 403, path
        for headers in (
            {"content-type": "application/json"},
            {**ORIGIN, "origin": "https://evil.example"},
            {**ORIGIN, "origin": "null"},
            {**ORIGIN, "origin": "https://testserver"},
            {**ORIGIN, "sec-fetch-site": "cross-site"},
        ):
            assert asked(everybody, method, path, headers, BODIES[path]).status_code == 403, (
                path,
                headers,
            )
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            assert (
                asked(
                    everybody, method, path, {**ORIGIN, "content-type": kind}, BODIES[path]
                ).status_code
                == 415
            ), path
    assert by.rows(counts) == before


@pytest.mark.usefixtures("edit_proposed")
def test_what_somebody_may_do_is_done_in_their_name(by: As) -> None:
    olga = by(*EVERYTHING, run=True, answer=True)
    for path, body in BODIES.items():
        assert asked(olga, "POST", path, body=body).status_code == 200, path
    assert by.rows("SELECT case_id, written_by, note FROM case_note") == [(1, "olga", "n")]
    assert by.rows("SELECT count(*) FROM pause") == [(0,)], "paused, and ended"
    assert by.rows("SELECT who, action, subject FROM decision_log ORDER BY entry") == [
        ("olga", "read contents", "case 1"),
        ("olga", "read contents", "dead letter 1"),
        ("olga", "compare contents", "dead letter 1"),
        ("olga", "read contents", "dead letters"),
        ("olga", "pause", "orders"),
        ("olga", "resume", "orders"),
    ]
    assert (
        asked(olga, "POST", "/pauses", body='{"topic": "nothing", "why": "w"}').status_code == 422
    )
    # A token of one's own needs no origin.
    told = olga.post("/pauses/end", headers={"authorization": "Bearer x"}, json={"topic": "orders"})
    assert told.json() == {"changed": False}


def test_what_somebody_stopped_goes_on_for_who_may_decide_to_resend_alone(by: As) -> None:
    uwe, olga = (by(*EVERYTHING, run=True, name=name) for name in ("uwe", "olga"))
    for topic in ("orders", "*"):
        stop, go_on = json.dumps({"topic": topic, "why": "w"}), json.dumps({"topic": topic})
        assert asked(uwe, "POST", "/pauses", body=stop).json() == {"changed": True}
        answer = asked(uwe, "POST", "/pauses/end", body=go_on)
        assert answer.status_code == 403 and "your role is below op" in answer.json()["what"]
        assert by.rows("SELECT topic FROM pause") == [(topic,)]
        assert asked(olga, "POST", "/pauses/end", body=go_on).json() == {"changed": True}
    told = uwe.get("/me").json()
    for actions in (told["actions"], *(topic["actions"] for topic in told["topics"])):
        allowed = {one["name"]: one["allowed"] for one in actions}
        assert (allowed["pause"], allowed["resume"]) == (True, False)


@pytest.mark.usefixtures("edit_proposed")
def test_a_server_whose_login_only_reads_refuses_changes_with_a_reason(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", os.environ["AIRFLOW_CONN_BACKSTOP_CONSOLE"])
    olga = by(*EVERYTHING, run=True, answer=True)
    assert olga.get("/overview").status_code == 200
    for path, body in BODIES.items():
        answer = asked(olga, "POST", path, body=body)
        assert answer.status_code == 403 and "only reads" in answer.json()["what"], path


def test_contents_are_for_who_may_change_them_and_reading_one_is_logged_first(by: As) -> None:
    content = by(*EVERYTHING, answer=True).post(
        "/dead-letters/1/content", headers=ORIGIN, json={"why": "a look"}
    )
    assert content.json()["text"] == "the content" and content.json()["headers"] == '{"h": "v"}'
    last = "SELECT who, subject, why FROM decision_log ORDER BY entry DESC LIMIT 1"
    assert by.rows(last) == [("olga", "dead letter 1", "a look")]
    for visitor in (
        by(*EVERYTHING),
        by(*EVERYTHING, answer=True, name="uwe"),
        by(*EVERYTHING, run=True, name="vera"),
    ):
        answer = visitor.post("/dead-letters/1/content", headers=ORIGIN, json={"why": "mine"})
        assert answer.status_code == 403 and "the content" not in answer.text
        assert "the content" not in visitor.get("/dead-letters/1").text
    assert by.rows(last) == [("olga", "dead letter 1", "a look")]


LISTED = {
    "deliveries": "/deliveries",
    "cases": "/cases",
    "members": "/cases/1/members",
    "causes": "/causes",
    "runs": "/runs",
    "dead_letters": "/dead-letters",
    "requests": "/resends",
    "batches": "/batches",
    "replays": "/replays",
    "replay_deliveries": "/replays/4/deliveries",
    "verdicts": "/runs/4/verdicts",
    "queues": "/queues",
    "parked": "/parked-keys",
    "proofs": "/proofs",
}


def test_a_team_sees_its_own_topics_in_every_list_and_nothing_of_another_teams_by_number(
    by: As,
) -> None:
    a, b, everybody = (
        by(*OF_A, run=True, answer=True),
        by(*OF_B, run=True, answer=True),
        by(*EVERYTHING),
    )
    for name, path in LISTED.items():
        if name in ("runs", "causes"):
            continue
        rows = every(everybody, path)
        assert rows, name
        if name in ("members", "replay_deliveries", "verdicts"):
            of_a = [row for row in rows if row["topic"] == "orders"]
            assert b.get(path).status_code == 404 and every(a, path) == of_a
            continue
        mine, others = every(a, path), every(b, path)
        assert {row["topic"] for row in mine} <= {"orders"}, name
        assert {row["topic"] for row in others} == {"payments"}, name
        assert [row for row in rows if row["topic"] == "payments"] == others, name
    for path in ("/overview", "/me", "/flow", "/settings", "/history", "/messages?text=orders-1"):
        told = b.get(path).text.replace("decide_case__a", "")
        assert "orders" not in told.replace('"orders-1', ""), path
    for team in (a, b):
        assert sum(row["dead_letters"] for row in every(team, "/causes")) == 12
    for method, path in (
        ("GET", "/cases/1"),
        ("GET", "/cases/1/members"),
        ("GET", "/cases/1/preview?action=discard"),
        ("POST", "/cases/{case_id}/notes"),
        ("POST", PROPOSED),
        ("GET", "/dead-letters/1"),
        ("POST", "/dead-letters/{dead_letter_id}/content"),
        ("POST", "/dead-letters/{dead_letter_id}/check"),
        ("POST", "/dead-letters/export"),
        ("GET", "/replays/4"),
        ("GET", "/replays/manual__orders"),
        ("GET", "/replays/99"),
        ("GET", "/replays/manual__orders/deliveries"),
        ("GET", "/message?topic=orders&id=orders-1"),
        ("POST", "/pauses"),
        ("POST", "/pauses/end"),
        ("GET", "/runs/1"),
        ("GET", "/runs/4/verdicts"),
        ("GET", "/cases/4"),
        ("GET", "/cases/99"),
        ("GET", "/dead-letters/31"),
    ):
        assert asked(b, method, path, body=BODIES.get(path, "{}")).status_code == 404, path
    assert asked(b, "POST", "/pauses", body='{"topic": "*", "why": "w"}').status_code == 403
    assert a.get("/proofs/3").status_code == 404
    ids = a.get("/runs/1").json()["checks"][0]["failed"][0]["ids"]
    assert ids == [{"topic": "orders", "message_id": NASTY}]


OF_ANOTHER_TEAM = (
    "/cases/{case_id}",
    "/cases/{case_id}/members",
    "/cases/{case_id}/preview",
    "/cases/{case_id}/notes",
    PROPOSED,
    "/dead-letters/{dead_letter_id}",
    "/dead-letters/{dead_letter_id}/content",
    "/dead-letters/{dead_letter_id}/check",
    "/dead-letters/export",
    "/message",
    "/pauses/end",
    "/replays/{plan}",
    "/replays/{plan}/deliveries",
    "/runs/{run_id}",
    "/runs/{run_id}/verdicts",
    "/proofs/{run_id}",
)
"""Routes that the tests ask about something of team a."""


def test_no_route_answers_one_team_with_anything_of_another(by: As) -> None:
    """Every route that there is: a new one is either refused, or shows nothing of team a."""
    b = by(*OF_B, run=True, answer=True)
    shown = []
    for method, path in routes():
        answer = asked(b, method, path, body=BODIES.get(path, "{}"))
        if path in OF_ANOTHER_TEAM or (method, path) == ("POST", "/pauses"):
            assert answer.status_code == 404, path
        elif path == "/check":
            assert answer.status_code == 403 and "every team" in answer.json()["what"]
        elif path != "/openapi.json":
            assert answer.status_code == 200, (path, answer.text)
            shown.append(path)
        assert "secret template" not in answer.text
        if path != "/openapi.json":
            assert "orders" not in answer.text.replace("decide_case__a", ""), path
    assert len(shown) > 20


def action(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [one for one in found["actions"] if one["name"] == name]
    return dict(one)


def test_a_plan_says_how_many_of_its_sends_it_counts(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = by(*EVERYTHING)
    plan = olga.get("/replays/4").json()
    assert plan["sends_of"] == sum(part["requested"] for part in plan["parts"]) == 3
    monkeypatch.setattr(replays, "SENDS_COUNTED", 2)
    cut = olga.get("/replays/4").json()
    assert cut["sends_of"] == sum(cut["sends"].values()) == 2, "and its parts say 3"
    assert len(every(olga, "/resends", "plan:4")) == 3, "where all of them are"


def test_a_batch_says_how_many_wait_and_how_many_went_out_in_the_last_minute(by: As) -> None:
    by.rows(
        """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, batch_id, held, updated_at)
           SELECT 'shop_a', 'orders', 'batch-' || n, 1, 'r', 'batch test', s, b, h, now() - a * interval '1 s'
           FROM (VALUES (1, 'sent', 1, false, 0), (2, 'refused', 1, false, 1), (3, 'unknown', 1, false, 2), (4, 'sent', 1, false, 300),
               (5, 'open', 1, false, 0), (6, 'sent', 2, false, 0), (7, 'open', NULL, true, 0), (8, 'open', NULL, true, 0))
               v (n, s, b, h, a) RETURNING 1"""
    )
    try:
        rows = {row["batch"]: row for row in every(by(*EVERYTHING), "/batches")}
        assert (rows[1]["topic"], rows[1]["state"]) == ("orders", "ramping")
        assert (rows[1]["sent_last_minute"], rows[1]["held"]) == (3, 2)
        assert (rows[2]["sent_last_minute"], rows[2]["held"]) == (1, 0)
        for row in (rows[1], rows[2]):
            of_topic = f"topic:{row['topic']} state:open"
            held = every(by(*EVERYTHING), "/resends", f"{of_topic} held:yes")
            assert len(held) == row["held"] and {one["held"] for one in held} <= {True}
            others = every(by(*EVERYTHING), "/resends", f"{of_topic} held:no")
            assert len(held) + len(others) == len(every(by(*EVERYTHING), "/resends", of_topic))
        by.rows("UPDATE resend_batch SET state = 'done', ended_at = now() RETURNING 1")
        rows = {row["batch"]: row for row in every(by(*EVERYTHING), "/batches")}
        assert {(row["sent_last_minute"], row["held"]) for row in rows.values()} == {(None, None)}
    finally:
        by.rows("DELETE FROM resend_request WHERE requested_by = 'batch test' RETURNING 1")
        by.rows("UPDATE resend_batch SET state = 'ramping', ended_at = NULL RETURNING 1")


def test_all_that_match_a_filter_are_counted_exported_and_planned_within_the_team(by: As) -> None:
    olga, b = by(*EVERYTHING, run=True, answer=True), by(*OF_B, run=True, answer=True)
    for visitor, text in (
        (olga, "topic:orders state:open"),
        (olga, "topic:orders state:open cause:2"),
        (olga, "category:poison"),
        (olga, "id:payments-3"),
        (b, "state:open"),
        (b, "topic:orders"),
    ):
        rows = every(visitor, "/dead-letters", text)
        found = visitor.get("/dead-letters/matching", params={"filter": text}).json()
        assert found["dead_letters"] == len(rows), text
        export = visitor.post("/dead-letters/export", headers=ORIGIN, json={"filter": text}).json()
        taken = ("headers", "text", "base64", "error")
        assert all(one[name] is None for one in export["items"] for name in taken)
        left = [{n: v for n, v in one.items() if n not in taken} for one in export["items"]]
        assert (left, export["more"]) == (rows, False), text
    matched = {"filter": "topic:orders state:open cause:2 since:1d"}
    plan = action(olga.get("/dead-letters/matching", params=matched).json(), "plan_replay")
    conf = plan["body"]["conf"]
    assert plan["allowed"] and plan["href"] == "/api/v2/dags/replay_incident/dagRuns"
    assert (conf["topic"], conf["verdicts"], conf["causes"], conf["mode"]) == (
        "orders",
        ["DEAD_LETTERED"],
        [2],
        "full",
    )
    assert "group" not in conf and conf["from"].endswith("+00:00")
    for text, why in (
        ("state:open", "Name one topic"),
        ("topic:orders", "filter by state:open"),
        ("topic:orders state:open id:orders-1", "For one message"),
    ):
        found = olga.get("/dead-letters/matching", params={"filter": text}).json()
        assert not action(found, "plan_replay")["allowed"]
        assert why in action(found, "plan_replay")["why_not"]
    for visitor in (by(*EVERYTHING, answer=True), by(*EVERYTHING)):
        found = visitor.get("/dead-letters/matching", params=matched).json()
        assert not action(found, "plan_replay")["allowed"]
    assert not action(found, "export_contents")["allowed"]


def test_contents_are_exported_of_one_topic_by_who_may_change_them_and_never_in_silence(
    by: As,
) -> None:
    olga = by(*EVERYTHING, answer=True)
    said = {"filter": "topic:orders state:open cause:2", "contents": True, "why": "an audit"}
    export = olga.post("/dead-letters/export", headers=ORIGIN, json=said).json()
    rows = every(olga, "/dead-letters", said["filter"])
    assert {one["dead_letter"] for one in export["items"]} == {one["dead_letter"] for one in rows}
    assert {(one["text"], one["headers"]) for one in export["items"]} == {
        ("the content", '{"h": "v"}')
    }
    last = "SELECT who, why, details FROM decision_log ORDER BY entry DESC LIMIT 1"
    assert by.rows(last) == [("olga", "an audit", {"filter": said["filter"]})]
    before = by.rows("SELECT count(*) FROM decision_log")
    for visitor, text in (
        (olga, "state:open"),
        (by(*EVERYTHING), said["filter"]),
        (by(*EVERYTHING, answer=True, name="uwe"), said["filter"]),
    ):
        answer = visitor.post("/dead-letters/export", headers=ORIGIN, json={**said, "filter": text})
        assert answer.status_code == 403 and "the content" not in answer.text
    assert by.rows("SELECT count(*) FROM decision_log") == before


def test_an_export_is_bounded_and_says_that_there_is_more(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = by(*EVERYTHING, answer=True)
    monkeypatch.setattr(matching, "EXPORTED", 4)
    for said in ({"filter": "topic:orders"}, {"filter": "topic:orders", "contents": True}):
        export = olga.post("/dead-letters/export", headers=ORIGIN, json=said).json()
        assert (len(export["items"]), export["more"]) == (4, True)
    monkeypatch.setattr(matching, "EXPORTED_BYTES", 45)
    export = olga.post("/dead-letters/export", headers=ORIGIN, json=said).json()
    assert (len(export["items"]), export["more"]) == (2, True)


def test_a_new_content_is_compared_for_who_may_send_it_and_what_is_away_is_a_finding(
    by: As,
) -> None:
    olga = by(*EVERYTHING, answer=True)
    checked = olga.post("/dead-letters/1/check", headers=ORIGIN, json={"content": "{"}).json()
    texts = [one["what"] for one in checked["findings"]]
    assert sum("did not answer" in text for text in texts) == 2, "two shards"
    assert {one["severity"] for one in checked["findings"]} == {"warning"}
    assert action(olga.get("/dead-letters/1").json(), "check_edit")["allowed"]
    viewer = by(*EVERYTHING)
    assert not action(viewer.get("/dead-letters/1").json(), "check_edit")["allowed"]
    broken = olga.post("/dead-letters/31/check", headers=ORIGIN, json={"content": "{}"})
    assert broken.status_code == 422, "it names no message"


def test_a_plan_is_shown_with_its_progress_and_the_answer_that_names_its_digest(by: As) -> None:
    olga = by(*EVERYTHING, answer=True)
    plan = olga.get("/replays/manual__orders").json()
    assert plan == olga.get("/replays/4").json()
    assert plan["parts"] == [
        {
            "group": "billing",
            "reason": "dead letter: poison",
            "deliveries": 5,
            "requested": 3,
            "left_out": 0,
        }
    ]
    assert plan["left_out"] == {"it is done": 2} and plan["examples"][0] == "orders-1"
    for state, number in plan["sends"].items():
        assert len(every(olga, "/resends", f"plan:4 state:{state}")) == number
    assert len(every(olga, "/resends", "plan:4")) == sum(plan["sends"].values()) == 3
    for part in plan["parts"]:
        of = f'group:{part["group"]} reason:"{part["reason"]}"'
        rows = every(olga, "/replays/manual__orders/deliveries", of)
        assert len(rows) == part["deliveries"] == 5
        for state, number in (("requested", 3), ("left_out", 0), ("planned", 2)):
            of_state = every(olga, "/replays/4/deliveries", f"{of} state:{state}")
            assert [row["state"] for row in of_state] == [state] * number
    assert plan["form"]["options"] == ["replay plan 4 (full, 0123456789ab)", "do nothing"]
    assert plan["form"]["href"].startswith("/api/v2/dags/replay_incident/dagRuns/manual__orders/")
    assert action(plan, "approve")["allowed"]
    refused = by(*EVERYTHING, answer=True, name="uwe").get("/replays/4").json()
    assert "your role is below op" in action(refused, "approve")["why_not"]
    assert [row["plan"] for row in every(olga, "/replays")] == [4, 2]


def test_a_preview_is_for_who_may_answer_and_what_cannot_be_read_is_said(by: As) -> None:
    olga = by(*EVERYTHING, answer=True)
    left = olga.get("/cases/1/preview", params={"action": "leave"}).json()
    assert left["about_case"]
    away = olga.get("/cases/1/preview", params={"action": "discard"})
    assert away.status_code == 503 and "shard shop_a" in away.json()["what"]
    assert olga.get("/cases/1/preview", params={"action": "replay"}).status_code == 409
    for visitor in (by(*EVERYTHING), by(*EVERYTHING, answer=True, name="uwe")):
        assert visitor.get("/cases/1/preview", params={"action": "discard"}).status_code == 403


def test_previews_read_the_stores_that_are_kept_open_within_the_time_of_a_page(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Sources] = []

    def preview(_: Any, sources: Sources, *__: Any) -> None:
        read.append(sources)

    monkeypatch.setattr("backstop.decisions.decide.preview", preview)
    for _ in range(2):
        asked = by(*EVERYTHING, answer=True).get("/cases/1/preview", params={"action": "discard"})
        assert asked.status_code == 200
    assert read[0] is read[1] and read[0]._patience == READING


def test_the_badge_says_how_many_cases_wait_for_the_visitor_and_leads_to_them(by: As) -> None:
    for visitor, waiting in (
        (by(*EVERYTHING, answer=True), True),
        (by(*OF_A, answer=True), True),
        (by(*EVERYTHING), False),
    ):
        waits = visitor.get("/overview").json()["waits_for_me"]
        assert (waits > 0) is waiting
        assert visitor.get("/waiting").json() == {"cases": waits}
        assert len(every(visitor, "/cases", "waits:me")) == waits


def test_a_cause_is_shown_with_its_rule_and_how_many_waited_a_day_ago(by: As) -> None:
    (before,) = {cause["day_ago"] for cause in every(by(*EVERYTHING), "/causes")}
    assert before is None, "nobody counted then"
    by.rows(
        """INSERT INTO cause_hour (hour, topic, consumer_group, cause_id, category, dead_letters)
           SELECT date_trunc('hour', now(), 'UTC') - interval '24 hours', t, 'billing', 1, 'poison', 2
           FROM unnest(ARRAY['orders', 'payments']) t RETURNING hour"""
    )
    by.rows(
        "UPDATE dead_letter SET classified_by = 'poison: a rule' WHERE cause_id = 1 RETURNING dead_letter_id"
    )
    everything = {cause["cause"]: cause for cause in every(by(*EVERYTHING), "/causes")}
    assert (everything[1]["day_ago"], everything[2]["day_ago"]) == (4, 0)
    assert (everything[1]["rule"], everything[2]["rule"]) == ("poison: a rule", None)
    of_a = {cause["cause"]: cause for cause in every(by(*OF_A), "/causes")}
    assert of_a[1]["day_ago"] == 2, "of the team's own topics alone"
    by.rows("DELETE FROM cause_hour RETURNING hour")


def test_the_settings_page_checks_the_installation_for_who_sees_all_of_it(by: As) -> None:
    olga = by(*EVERYTHING)
    assert action(olga.get("/me").json(), "check")["allowed"]
    checked = olga.get("/check").json()
    found = {one["subject"]: one for one in checked["findings"]}
    assert not checked["good"]
    assert not found["shard shop_a"]["good"] and found["shard shop_a"]["do"]
    assert found["control: schema"]["good"] and found["configuration"]["good"]
    assert "x:y" not in olga.get("/check").text, "a password of a connection"
    assert not action(by(*OF_A).get("/me").json(), "check")["allowed"]
    assert by(*OF_A).get("/check").status_code == 403


def test_a_proof_is_shown_with_the_manifest_and_the_signature_of_its_export(
    by: As, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTOP_PROOFS", str(tmp_path))
    olga = by(*EVERYTHING)
    proof = olga.get("/proofs/3").json()
    assert (proof["manifest"], proof["signature"]) == (None, None)
    folder = tmp_path / "run-3"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"digest": "another"}')
    (folder / "manifest.sig").write_text("00ff\n")
    assert olga.get("/proofs/3").json()["manifest"] is None, "another proof of that number"
    (folder / "manifest.json").write_text('{"digest": "d"}')
    proof = olga.get("/proofs/3").json()
    assert (proof["manifest"], proof["signature"]) == ('{"digest": "d"}', "00ff\n")


def test_a_proof_whose_check_has_not_passed_is_not_shown(by: As) -> None:
    olga = by(*EVERYTHING)
    by.rows("UPDATE proof SET published = false WHERE run_id = 3 RETURNING run_id")
    try:
        assert every(olga, "/proofs") == []
        assert olga.get("/proofs/3").status_code == 404
    finally:
        by.rows("UPDATE proof SET published = true WHERE run_id = 3 RETURNING run_id")
    assert [proof["run"] for proof in every(olga, "/proofs")] == [3]


def test_every_number_is_the_number_of_the_rows_behind_it(by: As) -> None:
    for visitor in (by(*EVERYTHING), by(*OF_A), by(*OF_B)):
        overview = visitor.get("/overview").json()
        numbers = overview["numbers"] + overview["cases"]
        for number in numbers:
            assert number["number"] == len(
                every(visitor, number["rows"]["list"], number["rows"]["filter"])
            ), number
        assert overview["newest_run"]["read"] == sum(overview["newest_run"]["verdicts"].values())
        by_verdict = {n["name"].upper(): n["number"] for n in overview["numbers"]}
        for verdict in ("LOST", "EXHAUSTED"):
            assert (
                sum(pair["verdicts"].get(verdict, 0) for pair in overview["pairs"])
                == by_verdict[verdict]
            )
        for of in ("", "topic:payments", "topic:orders group:billing", "topic:*"):
            for cause in every(visitor, "/causes", of):
                rows = every(visitor, "/dead-letters", cause["rows"]["filter"])
                assert cause["dead_letters"] == len(rows) > 0, (of, cause)
        for pair in overview["pairs"]:
            of = f"topic:{pair['topic']} group:{pair['group']}"
            rows = every(visitor, "/dead-letters", f"{of} state:undecided")
            assert pair["dead_letters"] == len(rows), pair
            for verdict, number in pair["verdicts"].items():
                assert number == len(every(visitor, "/deliveries", f"{of} verdict:{verdict}")), of
    everything = by(*EVERYTHING).get("/overview").json()
    by_name = {n["name"]: n["number"] for n in everything["numbers"]}
    # By hand: 9 messages, 2 groups, 3 topics; 15 dead letters each, every fourth decided, and one that is of no topic.
    assert (
        by_name["lost"] == 12
        and by_name["dead_letters_open"] == 25
        and by_name["resent_today"] == 4
    )
    assert (
        everything["newest_run"]["read"] == 12
        and by(*OF_B).get("/overview").json()["newest_run"]["read"] == 6
    )


def test_a_run_of_many_topics_shows_every_count_that_its_sum_is_of(by: As) -> None:
    by.rows(
        """INSERT INTO verdict_count (run_id, topic, consumer_group, verdict, deliveries, eligible, newly)
           SELECT 4, 'many-' || t, 'group-' || g, v, 1, 0, 0 FROM generate_series(1, 100) t, generate_series(1, 3) g,
               unnest(ARRAY['LOST', 'CONFIRMED', 'UNSENT', 'BACKLOGGED']) v RETURNING 1"""
    )
    try:
        olga = by(*EVERYTHING)
        read = olga.get("/overview").json()["newest_run"]
        found = every(olga, f"/runs/{read['run']}/verdicts", limit=200)
        assert len(found) > 1_200
        assert sum(one["deliveries"] for one in found) == read["read"]
        for verdict, number in read["verdicts"].items():
            of_it = every(olga, f"/runs/{read['run']}/verdicts", f"verdict:{verdict}", limit=200)
            assert sum(one["deliveries"] for one in of_it) == number
    finally:
        by.rows("DELETE FROM verdict_count WHERE topic LIKE 'many-%' RETURNING 1")


def test_console_watch_and_metrics_call_the_same_duties_overdue(by: As) -> None:
    settings = Path(os.environ["BACKSTOP_CONFIG"])
    hook = {"hook": {"kind": "webhook", "url": "backstop_hook", "at_least": "info"}}
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"alerts": {"channels": hook}})
    )
    connection = psycopg2.connect(by.url)

    def change(*statements: str) -> None:
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def late() -> set[str]:
        duties = by(*EVERYTHING).get("/overview").json()["duties"]
        console_says = {duty["duty"] for duty in duties if duty["overdue"]}
        with connection, connection.cursor() as cursor:
            ages, now = read_ages(cursor, load())
        allowed = {age.duty: age.allowed.total_seconds() for age in ages}
        assert {duty["duty"]: duty["allowed_seconds"] for duty in duties} == allowed
        watch_says = {one.topic for one in overdue(ages) if one.finding is not None}
        text, _ = render(connection, load())
        metrics_say = {
            sample.labels["duty"]
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if sample.name == "backstop_duty_late_from_timestamp_seconds"
            and sample.value < now.timestamp()
        }
        assert console_says == watch_says == metrics_say
        assert allowed["deliver_alerts"] == (900 if "deliver_alerts" in console_says else 3600)
        return console_says

    older = "UPDATE run SET started_at = started_at + {0}, finished_at = finished_at + {0}"
    try:
        assert late() == set(), "of a new installation nothing is late, though most never ran"
        change(
            "INSERT INTO run (duty, token, policy_version, code_version, state, started_at, finished_at) SELECT"
            " 'deliver_alerts', gen_random_uuid(), 'p', 'c', 'done', t, t FROM (SELECT now() - interval '30 min') n (t)"
        )
        assert late() == set(), "it has nothing to do"
        change(
            "INSERT INTO alert (dedup_key, severity, title, body, created_at)"
            " VALUES ('waits', 'info', 't', 'b', now() - interval '20 min')"
        )
        assert late() == {"deliver_alerts"}
        change(older.format("interval '-2 h'"))
        assert late() == {"deliver_alerts", "reconcile", "sweep", "resend", "triage"}
    finally:
        change(
            "DELETE FROM alert",
            "DELETE FROM run WHERE duty = 'deliver_alerts'",
            older.format("interval '2 h'")
            + " WHERE started_at < clock_timestamp() - interval '2 h'",
        )
        connection.close()


def test_the_flow_page_names_who_owns_a_queue_and_which_keys_wait_for_a_person(by: As) -> None:
    queues = {row["topic"]: row for row in every(by(*EVERYTHING), "/queues")}
    assert (queues["orders"]["owner"], queues["orders"]["owner_state"]) == ("worker-7", "OWNED")
    assert (queues["payments"]["owner"], queues["payments"]["owner_since"]) == (None, None)
    (parked,) = every(by(*OF_A), "/parked-keys")
    assert (parked["topic"], parked["key"], parked["head"], parked["messages"]) == (
        "orders",
        NASTY,
        NASTY,
        3,
    )
    assert every(by(*OF_A), "/cases?filter=kind:key_parked")[0]["case"] == parked["case"]
    found = by(*EVERYTHING).get("/parked-keys", params={"filter": "key:nothing"}).json()
    assert found["items"] == []
    by.rows(
        "UPDATE case_file SET state = 'closed', closed_at = now() WHERE kind = 'key_parked' RETURNING case_id"
    )
    assert every(by(*EVERYTHING), "/parked-keys") == []


def test_pages_follow_one_another_whatever_their_size_and_an_invented_place_is_refused(
    by: As,
) -> None:
    visitor = by(*EVERYTHING)
    for path in LISTED.values():
        assert (
            every(visitor, path, limit=1)
            == every(visitor, path, limit=200)
            == every(visitor, path, limit=3)
        ), path
    for after in (
        "x",
        "W10=",
        "WzFd",
        "WyJhIiwgImIiLCA0MDAwMDAwMDAwXQ==",
        "WzQwMDAwMDAwMDBd",
        "WyJcdTAwMDAiXQ==",
        "é",
        "WzFlOTk5XQ==",
        "WzE4NDQ2NzQ0MDczNzA5NTUxNjE2XQ==",
    ):
        for path in LISTED.values():
            answer = visitor.get(path, params={"after": after})
            assert answer.status_code in (200, 422), (path, after, answer.text)
    assert visitor.get("/cases", params={"after": "x"}).status_code == 422


def test_the_longest_names_of_the_contract_are_found_filtered_and_paged_past(by: As) -> None:
    ids = ["\x01" * ID_BYTES, '"' * ID_BYTES, "z" * ID_BYTES]
    topic, group = "\x01" * TOPIC_BYTES, "\x01" * GROUP_BYTES
    connection = psycopg2.connect(by.url)
    with connection, connection.cursor() as cursor:
        for name in ids:
            cursor.execute(
                "INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)"
                " VALUES (%s, %s, %s, 'shop_a', 'STALLED', 'long', false, 1)",
                (topic, name, group),
            )
    try:
        visitor = by(*EVERYTHING)
        found = every(visitor, "/deliveries", "verdict:STALLED", limit=1)
        assert [row["message_id"] for row in found] == sorted(ids)
        for name in ids:
            of = filter_text(topic=topic, group=group, id=name)
            assert [row["message_id"] for row in every(visitor, "/deliveries", of)] == [name]
            answer = visitor.get("/message", params={"topic": topic, "id": name})
            assert answer.status_code != 422, "not too long to ask for"
        too_long = visitor.get("/message", params={"topic": "orders", "id": "x" * (ID_BYTES + 1)})
        assert too_long.status_code == 422
    finally:
        with connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM open_delivery WHERE reason = 'long'")
        connection.close()


def test_filters_are_read_as_they_are_typed_and_what_is_none_is_said() -> None:
    listing = LISTS["dead_letters"]
    read = read_filter(
        'topic:orders id:"two \\"words\\"" cause:7 since:2h', listing.filters, listing.choices
    )
    assert (read["topic"], read["id"], read["cause"], read["since"].total_seconds()) == (
        "orders",
        'two "words"',
        7,
        7200,
    )
    for wrong in (
        "orders",
        "tpoic:orders",
        "cause:x",
        "cause:²",
        f"cause:{2**63}",
        "state:opne",
        "since:soon",
        "topic:a topic:b",
        'id:"',
        "x\x00",
    ):
        with pytest.raises(ConfigurationError):
            read_filter(wrong, listing.filters, listing.choices)


def test_runs_that_found_nothing_to_do_are_hidden_unless_asked_for(by: As) -> None:
    visitor = by(*EVERYTHING)
    assert [row["run"] for row in every(visitor, "/runs")] == [1]
    assert [row["run"] for row in every(visitor, "/runs", empty="true")] == [4, 3, 2, 1]
    assert [row["run"] for row in every(by("sweep"), "/runs", empty="true")] == [2]


def test_runs_of_incidents_are_shown_to_who_may_read_the_dag_that_plans_them(by: As) -> None:
    [(run,)] = by.rows(
        "INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)"
        " VALUES ('incident', gen_random_uuid(), 'p', 'c', 'failed', now()) RETURNING run_id"
    )
    try:
        olga, without = by(*EVERYTHING), by("decide_case", "sweep")
        assert [row["run"] for row in every(olga, "/runs", "duty:incident")] == [run]
        assert olga.get(f"/runs/{run}").json()["duty"] == "incident"
        assert olga.get(f"/runs/{run}/verdicts").status_code == 200
        assert "incident" in olga.get("/filters?list=runs").json()["duty"]
        assert every(without, "/runs", "duty:incident") == []
        assert without.get(f"/runs/{run}").status_code == 404
        assert "incident" not in without.get("/filters?list=runs").json()["duty"]
    finally:
        by.rows(f"DELETE FROM run WHERE run_id = {run} RETURNING 1")


def test_a_run_under_way_says_what_it_does_how_far_it_is_and_when_it_is_stuck(by: As) -> None:
    by.rows(
        """INSERT INTO run (duty, token, policy_version, code_version, heartbeat_at, state, finished_at, error)
           SELECT 'resend', gen_random_uuid(), 'p', 'c', now() - interval '1 s' * silent, s, CASE WHEN s <> 'running' THEN now() END, 'e'
           FROM (VALUES (1, 5, 'running'), (2, 150, 'running'), (3, 150, 'abandoned'), (4, 5, 'failed')) v (n, silent, s)
           ORDER BY n;
           UPDATE run SET phase = 'claim_publish_settle', phase_done = 40, phase_of = 300 WHERE duty = 'resend' RETURNING run_id"""
    )
    visitor = by(*EVERYTHING)
    try:
        rows = visitor.get("/runs", params={"filter": "duty:resend"}).json()["items"][::-1]
        assert [(row["state"], row["stuck"]) for row in rows] == [
            ("running", False),
            ("running", True),
            ("abandoned", False),
            ("failed", False),
        ]
        whole = [visitor.get(f"/runs/{row['run']}").json() for row in rows]
        assert [row["phase"] for row in whole] == [row["phase"] for row in rows]
        for row in rows[:3]:
            phase = row["phase"]
            assert phase["since"] and (phase["name"], phase["done"], phase["of"]) == (
                "claim_publish_settle",
                40,
                300,
            )
        assert rows[3]["phase"] is None, "what it did when it failed is in its error"
        assert 5 <= rows[0]["heartbeat_age"] < 120 < rows[1]["heartbeat_age"]
    finally:
        by.rows("DELETE FROM run WHERE duty = 'resend' RETURNING 1")


def test_a_case_says_what_each_answer_does_why_one_is_refused_and_where_airflow_takes_it(
    by: As,
) -> None:
    case = by(*EVERYTHING, answer=True).get("/cases/1").json()
    assert (
        case["form"]["href"]
        == "/api/v2/dags/decide_case__a/dagRuns/case%201%2Fof%20a/taskInstances/ask/-1/hitlDetails"
    )
    assert {one["name"] for one in case["actions"]} == {
        "resend",
        "void",
        "discard",
        "drained",
        "leave",
    }
    assert all(one["allowed"] for one in case["actions"]) and case["members"] == 9
    for visitor in (by(*EVERYTHING), by(*EVERYTHING, answer=True, name="uwe")):
        refused = visitor.get("/cases/1").json()["actions"]
        assert not any(one["allowed"] for one in refused) and all(one["why_not"] for one in refused)
    overview = by(*EVERYTHING, answer=True).get("/overview").json()
    assert (
        overview["waits_for_me"] == 4
        and by(*EVERYTHING).get("/overview").json()["waits_for_me"] == 0
    )


def test_a_case_shows_the_whole_of_what_a_second_person_would_approve(by: As) -> None:
    olga = by(*EVERYTHING, answer=True)
    of_two = (
        '{"more": 100, "message_ids": ["orders-1", "orders-2"], "once": "x", "shown": {"at": "y"}}'
    )
    with proposed(by, 2, "raise", of_two):
        case = olga.get("/cases/2").json()
        assert (case["proposal"], case["proposed"], case["proposed_by"]) == (1, "raise", "otto")
        assert case["proposed_with"] == {"more": "100"}
        assert case["proposed_messages"] == ["orders-1", "orders-2"]
        assert case["proposed_content_bytes"] is None
        assert asked(olga, "POST", "/cases/2/proposals/1/content").status_code == 404
    assert olga.get("/cases/2").json()["proposed_messages"] == []
    new = b'{"order": 8}'
    by.rows("UPDATE dead_letter SET case_id = 2 WHERE dead_letter_id IN (1, 2) RETURNING 1")
    with proposed(by, 2, "edit", '{"letters": [1]}', f"'{new.decode()}'"):
        case = olga.get("/cases/2").json()
        assert (case["proposed_with"], case["proposed_dead_letters"]) == ({}, ["1"])
        digest = hashlib.sha256(new).hexdigest()
        assert case["proposed_content_bytes"] == len(new)
        assert case["proposed_content_sha256"] == digest
        assert "order" not in str({name: case[name] for name in case if "proposed" in name})
        found = asked(olga, "POST", "/cases/2/proposals/1/content", body='{"why": "to approve"}')
        assert found.json() == {
            "text": new.decode(),
            "base64": None,
            "before": [
                {"dead_letter": 1, "message_id": "orders-1", "text": "the content", "base64": None}
            ],
        }
        last = "SELECT who, action, subject, why FROM decision_log ORDER BY entry DESC LIMIT 1"
        assert by.rows(last) == [("olga", "read contents", "case 2", "to approve")]
        for refused, status in (
            (by(*EVERYTHING), 403),
            (by(*EVERYTHING, answer=True, name="uwe"), 403),
            (by(*OF_B, answer=True), 404),
        ):
            answer = asked(refused, "POST", "/cases/2/proposals/1/content")
            assert answer.status_code == status and "order" not in answer.text.replace("orders", "")
        assert asked(olga, "POST", "/cases/2/proposals/2/content").status_code == 404
    by.rows("UPDATE dead_letter SET case_id = NULL RETURNING 1")


def test_who_proposed_a_decision_is_not_told_that_they_may_approve_it(by: As) -> None:
    olga = by(*EVERYTHING, answer=True)
    with proposed(by, 2, "raise", '{"more": 100}'):
        for who, may_approve in (("otto", True), ("olga", False)):
            by.rows(f"UPDATE proposal SET who = '{who}' RETURNING 1")
            actions = {one["name"]: one for one in olga.get("/cases/2").json()["actions"]}
            assert actions["approve"]["allowed"] == may_approve
            assert actions["reject"]["allowed"], "it is taken back so"
        assert actions["approve"]["why_not"] == "You proposed it: somebody else approves it."


def test_a_message_is_found_by_its_id_or_its_brokers_and_what_is_away_is_named(by: As) -> None:
    visitor = by(*EVERYTHING)
    for text in ("orders-1", "id-orders1"):
        found = visitor.get("/messages", params={"text": text}).json()
        assert [row["message_id"] for row in found["messages"]] == ["orders-1"]
        assert set(found["unreachable"]) == {"shard shop_a", "shard shop_b"}
    story = visitor.get("/message", params={"topic": "orders", "id": "orders-1"}).json()
    assert story["found"] and "shard shop_a" in story["unreachable"]
    assert story["dead_letters"][0]["dead_letter_id"] == 1 and story["timeline"]


def test_what_a_person_withdrew_is_not_called_confirmed() -> None:
    def sentence(**verdicts: str) -> str:
        deliveries = [
            Delivery(group, True, verdict, "r", "e", None, None)
            for group, verdict in verdicts.items()
        ]
        return story_of(MessageHistory("orders", "m", True, deliveries=deliveries), []).sentence

    assert sentence(billing="CONFIRMED") == (
        "Done: every group that owes it has confirmed it (billing)."
    )
    assert "confirmed" not in sentence(billing="VOIDED", shipping="VOIDED")
    mixed = sentence(billing="CONFIRMED", shipping="VOIDED")
    assert "gave it up for shipping" in mixed and "billing confirmed it" in mixed


def test_a_message_on_two_shards_is_not_promised_anything() -> None:
    stubs = ["shop_a", "shop_b"]
    unowed = [Delivery("billing", False, None, None, "e", None, None)]
    story = MessageHistory("orders", "m", True, shards=stubs, deliveries=unowed)
    assert story_of(story, []).sentence == (
        "Its id is on more than one shard (shop_a, shop_b): it is neither judged nor resent until one stub is removed."
    )


@pytest.mark.parametrize(
    ("query", "list_", "text", "condition"),
    [
        ("history", None, "", "hour >= (date_trunc('hour'"),
        ("groups", None, "", "taken_at >= (now()"),
        ("dead_letters", "dead_letters", "id:m-1", "message_id = 'm-1'"),
        ("dead_letters", "dead_letters", "category:conflict", "category = 'conflict'"),
        ("matching_dead_letters", "dead_letters", "topic:a state:open", "topic = 'a'"),
        ("requests", "requests", "id:m-1", "message_id = 'm-1'"),
        ("deliveries", "deliveries", "id:m-1", "message_id = 'm-1'"),
    ],
)
def test_what_a_page_asks_is_looked_up_by_an_index(
    control: dict[str, str], query: str, list_: str | None, text: str, condition: str
) -> None:
    """Tables here are small: the planner is told to read none of them whole where it can do otherwise."""
    from backstop.reports import console as reports

    values: dict[str, Any] = {
        **reports.Sight().values(),
        "hours": 24,
        "topic": None,
        "group": None,
        "topics": ["a"],
        "groups": ["b"],
        "limit": 51,
        "after_1": None,
        "after_2": None,
        "after_3": None,
    }
    if list_ is not None:
        listing = LISTS[list_]
        values |= read_filter(text, listing.filters, listing.choices)
    connection = psycopg2.connect(control["owner"])
    with connection, connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN {reports._SQL[query]}", values)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    connection.close()
    conditions = [line for line in plan.splitlines() if "Index Cond" in line]
    assert any(condition in line for line in conditions), plan


def test_a_list_that_takes_long_is_given_up(by: As, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from backstop.airflow import control_room
    from backstop.reports import console as reports

    assert timedelta(seconds=5) == control_room.READING
    monkeypatch.setattr(control_room, "READING", timedelta(seconds=1))
    visitor = by(*EVERYTHING)
    monkeypatch.setattr(reports, "_SQL", {**reports._SQL, "cases": "SELECT pg_sleep(60)"})
    answer = visitor.get("/cases")
    assert answer.status_code == 503 and "busy" in answer.json()["what"]
    # So does what the duties' login reads for a page.
    from backstop.reports import export_letters

    slow = {"export": "SELECT pg_sleep(60)"}
    monkeypatch.setattr(export_letters, "_SQL", {**export_letters._SQL, **slow})
    said = {"filter": "topic:orders", "contents": True}
    olga = by(*EVERYTHING, answer=True)
    answer = olga.post("/dead-letters/export", headers=ORIGIN, json=said)
    assert answer.status_code == 503 and "busy" in answer.json()["what"]


def test_a_control_database_that_goes_away_within_a_request_is_an_answer_and_comes_back(
    by: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.reports import console as reports

    visitor = by(*EVERYTHING)
    ended = {"cases": "SELECT pg_terminate_backend(pg_backend_pid())"}
    with monkeypatch.context() as patched:
        patched.setattr(reports, "_SQL", {**reports._SQL, **ended})
        answer = visitor.get("/cases")
    assert (answer.status_code, answer.json()["what"], answer.json()["unaffected"]) == (
        503,
        "The control database went away.",
        "What was being stored is stored whole, or not at all.",
    )
    assert answer.headers["cache-control"] == "private, no-store"
    assert visitor.get("/cases").status_code == 200


def test_the_description_is_whole_and_every_answer_is_typed(by: As) -> None:
    described = by(*EVERYTHING).get("/openapi.json").json()
    assert set(described["paths"]) == {path for _, path in routes() if path != "/openapi.json"}
    queue = described["components"]["schemas"]["Queue"]["properties"]
    assert "not what is stored now" in queue["stored"].get("description", "")
    for path, methods in described["paths"].items():
        for method in methods.values():
            assert method["responses"]["200"]["content"]["application/json"]["schema"], path


def test_a_connection_that_only_reads_can_change_nothing(by: As) -> None:
    assert visit.DUTIES[0] == "reconcile"
    from backstop.airflow.control_room import reading_room

    with (
        reading_room() as room,
        pytest.raises(psycopg2.errors.ReadOnlySqlTransaction),
        room.control.cursor() as cursor,
    ):
        cursor.execute("INSERT INTO pause VALUES ('orders', now(), 'x', 'y')")
    assert os.environ["AIRFLOW_CONN_BACKSTOP_CONSOLE"].startswith("postgresql://pages:")


ASKING_STORES = ("/message", "/messages", "/cases/{case_id}/preview", "/check")
"""Routes that wait for stores and brokers, which are away here."""


def test_no_input_of_any_form_makes_the_api_fail(by: As) -> None:
    """Schemathesis: every route, by its own description and against it."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    app = by(*EVERYTHING, run=True, answer=True).app
    schema = schemathesis.openapi.from_asgi("/openapi.json", app=app)
    tried, asked_of = 0, set()
    for found in schema.get_all_operations():
        operation = found.ok()
        asked_of.add(operation.path)

        @given(case=operation.as_strategy())
        @settings(
            max_examples=3 if operation.path in ASKING_STORES else 12,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def answers(case: Any) -> None:
            nonlocal tried
            tried += 1
            answer = case.call(headers=ORIGIN)
            # 503 is an answer of ours: a store that is away, with what still holds.
            known = answer.status_code == 503 and case.operation.path in ASKING_STORES
            assert answer.status_code < 500 or known, (case.as_curl_command(), answer.text)

        answers()
    assert tried > 200 and asked_of == {path for _, path in routes() if path != "/openapi.json"}


def test_a_plan_that_somebody_rejected_is_not_shown_as_waiting(by: As) -> None:
    olga, mark = by(*EVERYTHING, answer=True), "UPDATE incident SET shown = shown {} RETURNING 1"
    by.rows(mark.format("""|| '{"answered": true}'"""))
    try:
        assert olga.get("/replays/4").json()["form"] is None
    finally:
        by.rows(mark.format("- 'answered'"))
    assert olga.get("/replays/4").json()["form"] is not None


def test_a_case_that_closed_offers_no_answer_to_what_was_proposed_of_it(by: As) -> None:
    olga = by(*EVERYTHING, answer=True)
    closed = "UPDATE case_file SET state = '{}', closed_at = {} WHERE case_id = 2 RETURNING 1"
    with proposed(by, 2, "raise", '{"more": 100}'):
        assert len(olga.get("/cases/2").json()["actions"]) == 2
        by.rows(closed.format("closed", "now()"))
        try:
            case = olga.get("/cases/2").json()
            assert (case["proposal"], case["actions"]) == (None, [])
        finally:
            by.rows(closed.format("open", "NULL"))


def test_a_topic_that_there_is_not_names_no_other_teams_topics(by: As) -> None:
    visitor = by("decide_case", *OF_A, run=True, answer=True)
    for path, more in (("/pauses", {"why": "w"}), ("/pauses/end", {})):
        answer = visitor.post(path, headers=ORIGIN, json={"topic": "nowhere", **more})
        assert answer.status_code in (404, 422) and "payments" not in answer.text, path
