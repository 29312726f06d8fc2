"""The read-only pages: closed to strangers, escaped, and no way out of the folder of the Data Docs."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psycopg2
import pytest
import yaml
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from backstop.airflow import access, control_room, pages
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.schema.migrate import grant, migrate
from backstop_lab.servers.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
NASTY = "<script>alert('o')</script>"


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Postgres(tmp_path_factory.mktemp("pg")) as server:
        server.create_database("control")
        url = server.admin_dsn("control")
        migrate(url, "control")
        connection = psycopg2.connect(url)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO run (duty, token, policy_version, code_version, counts)"
                " VALUES ('reconcile', %s, 'p', 'c', '{\"lost\": 1}')",
                (str(uuid.uuid4()),),
            )
            cursor.execute(
                "INSERT INTO case_file (kind, topic, summary, evidence)"
                " VALUES ('unknown', %s, %s, jsonb_build_object('x', %s::text))",
                (NASTY, NASTY, NASTY),
            )
            cursor.execute(
                "INSERT INTO case_note (case_id, written_by, note) VALUES (1, 'olga', %s)", (NASTY,)
            )
            cursor.execute(
                "INSERT INTO cause (fingerprint, shown, template, category, first_seen_at, last_seen_at, dead_letters)"
                " VALUES ('f', %s, 'payment for Greta', 'poison', now(), now(), 4)",
                (NASTY,),
            )
            cursor.execute(
                "INSERT INTO verdict_count VALUES (1, %s, 'billing', 'LOST', 7, 7, 0)", (NASTY,)
            )
            cursor.execute(
                "INSERT INTO data_check (run_id, suite, passed, expectations, held, failed, report)"
                " VALUES (1, 'verdicts', false, 3, %s, %s, '1/verdicts/index.html')",
                (
                    json.dumps({"deliveries_counted": "counts hold", "ours": f"of us {NASTY}"}),
                    json.dumps(
                        [
                            {
                                "name": "names_known",
                                "must_hold": "every verdict is one of the rule's",
                                "count": 21,
                                "ids": [
                                    {"topic": "orders", "message_id": NASTY},
                                    {"topic": "orders", "message_id": "order-7"},
                                ],
                            }
                        ]
                    ),
                ),
            )
        connection.close()
        # Pages have a login that only reads, and no content.
        grant(url, "control")
        password = server.create_role("pages")
        granting = psycopg2.connect(url)
        with granting, granting.cursor() as cursor:
            cursor.execute("GRANT backstop_reader TO pages")
        granting.close()
        os.environ["PAGES_URL"] = server.dsn("pages", password, "control")
        yield url
        del os.environ["PAGES_URL"]


@pytest.fixture
def environment(control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKSTOP_CONFIG", str(ROOT / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", os.environ["PAGES_URL"])
    docs = tmp_path / "docs"
    (docs / "1" / "verdicts").mkdir(parents=True)
    (docs / "1" / "verdicts" / "index.html").write_text("the report")
    (tmp_path / "secret.txt").write_text("secret")
    (docs / "way_out").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setenv("BACKSTOP_DOCS_FOLDER", str(docs))
    return docs


@pytest.fixture
def reader(environment: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Somebody whom Airflow lets pass, and read every DAG."""
    return client(monkeypatch, lambda _: True)


def client(monkeypatch: pytest.MonkeyPatch, may_read: Callable[[str], bool]) -> TestClient:
    def let_pass(request: Request) -> None:
        request.state.backstop_visitor = access.Visitor("7", NASTY, may_read)

    monkeypatch.setattr(pages, "reader", lambda: let_pass)
    return TestClient(pages.make_app())


def test_what_a_page_shows_is_for_who_may_read_the_dag_that_shows_it(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(*dags: str) -> list[int]:
        visitor = client(monkeypatch, dags.__contains__)
        return [
            visitor.get(path).status_code
            for path in ("/cases/1", "/runs", "/runs/1", "/docs/1/verdicts/index.html", "/me")
        ]

    assert seen("reconcile") == [404, 200, 200, 200, 200] and seen("decide_case") == [
        200,
        403,
        403,
        403,
        200,
    ]
    assert "cases/1" not in client(monkeypatch, "reconcile".__eq__).get("/cases").text
    assert "poison" not in client(monkeypatch, "decide_case".__eq__).get("/cases").text
    # The case's topic becomes a team's.
    written = (ROOT / "backstop.yaml").read_text().replace("orders:", f"{json.dumps(NASTY)}:", 1)
    (tmp_path / "backstop.yaml").write_text(
        f"{written}\nteams: [{{name: a, topics: [{json.dumps(NASTY)}]}}]\n"
    )
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    assert [seen("decide_case")[0], seen("decide_case__a")[0]] == [404, 200]
    assert "cases/1" not in client(monkeypatch, "decide_case".__eq__).get("/cases").text
    assert "cases/1" in client(monkeypatch, "decide_case__a".__eq__).get("/cases").text


def test_a_page_says_how_airflow_knows_who_looks(reader: TestClient) -> None:
    page = reader.get("/me").text
    assert "{id: &quot;7&quot;" in page and NASTY not in page


def test_open_cases_and_causes_are_listed_and_a_case_has_its_page_with_every_value_escaped(
    reader: TestClient,
) -> None:
    listed, shown = reader.get("/cases").text, reader.get("/cases/1").text
    assert '<a href="cases/1">1</a>' in listed and "poison" in listed
    assert "olga" in shown
    for text in (listed, shown):
        assert "<script>" not in text and "&lt;script&gt;" in text
    assert reader.get("/cases/99").status_code == 404


def test_a_run_page_shows_counts_and_checks_and_escapes_every_value(reader: TestClient) -> None:
    page = reader.get("/runs/1")
    assert page.status_code == 200
    assert NASTY not in page.text
    assert "&lt;script&gt;" in page.text
    assert "names_known (21)" in page.text
    assert 'href="1/checks/verdicts"' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "script-src" not in page.headers["content-security-policy"]


def test_a_failed_check_shows_its_rows_on_a_page_of_ours_and_leads_to_a_report_without_script(
    reader: TestClient, environment: Path
) -> None:
    result = environment / "1" / "verdicts" / "validations" / "verdicts" / "result.html"
    result.parent.mkdir(parents=True)
    result.write_text("the result")
    page = reader.get("/runs/1/checks/verdicts").text
    assert (
        "names_known" in page
        and "FAILED: 21 rows" in page
        and "every verdict is one of the rule" in page
    )
    assert "<td>order-7</td>" in page and "The first 2 of 21." in page
    assert NASTY not in page and "&lt;script&gt;" in page
    assert page.count("<td>holds</td>") == 2 and "counts hold" in page
    [link] = re.findall(r'href="\.\./\.\./\.\./(docs/[^"]+)"', page)
    assert reader.get(f"/{link}").text == "the result"
    for path in ("/runs/1/checks/requests", "/runs/2/checks/verdicts", "/runs/1/checks/%2e%2e"):
        assert reader.get(path).status_code == 404, path


def test_no_check_is_shown_as_held_in_a_row_that_does_not_name_it(
    reader: TestClient, control: str
) -> None:
    """As an earlier version wrote it, when this version's suite has other checks."""
    connection = psycopg2.connect(control)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO data_check (run_id, suite, passed, expectations) VALUES (1, 'audit', true, 3)"
        )
    page = reader.get("/runs/1/checks/audit").text
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM data_check WHERE suite = 'audit'")
    connection.close()
    assert "<td>holds</td>" not in page and "3 others held." in page


def test_a_run_page_does_not_show_the_fencing_token(reader: TestClient, control: str) -> None:
    connection = psycopg2.connect(control)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT token::text FROM run")
        token = cursor.fetchone()[0]
    connection.close()
    assert token not in reader.get("/runs/1").text


def test_a_run_under_way_shows_its_phase_and_heartbeat_without_a_script(
    reader: TestClient, control: str
) -> None:
    connection = psycopg2.connect(control)
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE run SET phase = 'lookup', phase_done = 3, phase_of = 8")
        cursor.execute("UPDATE run SET heartbeat_at = clock_timestamp() - interval '10 min'")
    whole, listed = reader.get("/runs/1").text, reader.get("/runs").text
    assert "<td>lookup</td>" in whole and "<td>3 of 8</td>" in whole
    assert "<td>lookup</td>" in listed
    for text in (whole, listed):
        assert "stuck: last heard of 60" in text
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE run SET heartbeat_at = clock_timestamp()")
    assert "stuck" not in reader.get("/runs/1").text
    connection.close()


def test_the_list_leads_to_each_run(reader: TestClient) -> None:
    assert 'href="runs/1"' in reader.get("/runs").text
    assert reader.get("/runs/2").status_code == 404


def test_data_docs_are_served_from_their_folder_only(reader: TestClient) -> None:
    assert reader.get("/docs/1/verdicts/index.html").text == "the report"
    for path in (
        "../secret.txt",
        "%2e%2e/secret.txt",
        "1/../../secret.txt",
        "%2e%2e%2fsecret.txt",
        "way_out",
        "1",
        "",
        "/etc/passwd",
        "%00",
        "1/verdicts/none.html",
    ):
        answer = reader.get(f"/docs/{path}")
        assert answer.status_code in (404, 307), path
        assert "secret" not in answer.text.replace("secret.txt", ""), path


@pytest.mark.parametrize(
    "path",
    ["/runs", "/runs/1", "/runs/1/checks/verdicts", "/docs/1/verdicts/index.html", "/docs/none"],
)
def test_a_stranger_is_refused_everywhere(environment: Path, path: str) -> None:
    stranger = TestClient(pages.make_app())
    answer = stranger.get(path)
    assert answer.status_code in (401, 403)
    assert "the report" not in answer.text


def test_without_airflows_helpers_everybody_is_refused(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.core_api.security", None)
    assert access.reader() is access.refuse
    assert TestClient(pages.make_app()).get("/runs").status_code == 403


@pytest.mark.parametrize("opened", [{"run_id": 4}, '{"run_id": 4, "token": "t"}'])
def test_a_button_leads_to_the_run_that_its_task_was_handed(
    monkeypatch: pytest.MonkeyPatch, opened: object
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/prefix/")
    task = SimpleNamespace(op_kwargs={"suite": "verdicts", "opened": opened})
    links = [link.get_link(task, ti_key=None) for link in (RunLink(), DataDocsLink())]
    assert links == [
        "https://airflow.example/prefix/backstop/runs/4",
        "https://airflow.example/prefix/backstop/runs/4/checks/verdicts",
    ]


@pytest.mark.parametrize("opened", [None, "{{ a template }}", {}])
def test_a_button_of_a_task_without_a_run_leads_nowhere(opened: object) -> None:
    task = SimpleNamespace(op_kwargs={"suite": "verdicts", "opened": opened})
    assert [link.get_link(task, ti_key=None) for link in (RunLink(), DataDocsLink())] == ["", ""]


def test_a_page_that_takes_long_is_given_up_and_holds_no_thread_of_airflows_server(
    reader: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert control_room.READING.total_seconds() == 5
    for slow in ("SELECT pg_sleep(60)", "UPDATE run SET state = 'done'"):
        monkeypatch.setattr(pages, "_SQL", {**pages._SQL, "newest_runs": slow})
        seconds = 1 if slow.startswith("SELECT") else 60
        monkeypatch.setattr(control_room, "READING", timedelta(seconds=seconds))
        if slow.startswith("SELECT"):
            answer = reader.get("/runs")
            assert answer.status_code == 503 and "too busy" in answer.text
        else:
            with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
                reader.get("/runs")
    monkeypatch.undo()


def test_pages_read_by_the_consoles_login_where_there_is_one(
    reader: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has no other login shows every page."""
    settings = yaml.safe_load((ROOT / "backstop.yaml").read_text())
    settings |= {"console": {"reader": "backstop_console"}}
    (tmp_path / "backstop.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONSOLE", os.environ["PAGES_URL"])
    monkeypatch.delenv("AIRFLOW_CONN_BACKSTOP_CONTROL")
    for path in ("/runs", "/runs/1", "/runs/1/checks/verdicts", "/cases", "/cases/1"):
        assert reader.get(path).status_code == 200, path


def test_a_control_database_that_is_away_or_goes_away_is_said_on_a_page(
    reader: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"newest_runs": "SELECT pg_terminate_backend(pg_backend_pid())"}
    with monkeypatch.context() as patched:
        patched.setattr(pages, "_SQL", {**pages._SQL, **ended})
        gone = reader.get("/runs")
    assert (gone.status_code, gone.headers["content-type"][:9]) == (503, "text/html")
    assert "went away" in gone.text and "whole, or not at all" in gone.text
    assert gone.headers["cache-control"] == "private, no-store"
    assert reader.get("/runs").status_code == 200
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", "postgresql://nobody@127.0.0.1:1/gone")
    away = reader.get("/cases")
    assert away.status_code == 503 and "did not answer" in away.text
    assert "Nothing was decided or sent" in away.text


def test_a_page_takes_styles_from_the_hosts_of_great_expectations_alone() -> None:
    policy = pages.HEADERS["Content-Security-Policy"]
    assert "script" not in policy and " https: " not in f" {policy.replace(';', ' ')} "
    assert policy.count("https://cdn.jsdelivr.net") == 2


def test_nothing_can_be_changed(reader: TestClient) -> None:
    for method in ("post", "put", "patch", "delete"):
        assert getattr(reader, method)("/runs/1").status_code == 405
    assert reader.get("/openapi.json").status_code == 404
    assert isinstance(reader.app, FastAPI)
