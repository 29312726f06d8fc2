"""Each service of docker-compose.yaml by its own command, environment and health check, and a run of the duties through them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg2
import pytest
import redis
from compose_file import ROOT, read_env
from native import Stack

from backstop_lab.servers.airflow_api import AirflowApi
from backstop_lab.servers.ports import LOOPBACK

ORDER = (
    "postgres", "redis", "initialise", "spark-master", "spark-worker", "airflow-api-server", "airflow-scheduler",
    "airflow-dag-processor", "airflow-triggerer",
)  # fmt: skip
STUB = """
    INSERT INTO message_stub (topic, message_id, content, created_at, first_seen_at, next_check_at)
    SELECT 'orders', 'm-' || n, 'content', now() - interval '5 minutes', now() - interval '5 minutes', now() - interval '1 minute'
    FROM generate_series(1, 20) AS n
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    folder.chmod(0o711)
    subprocess.run([sys.executable, str(ROOT / "docker" / "write_env.py"), str(folder / ".env")], check=True)
    made = Stack(folder, read_env(folder / ".env"))
    try:
        for name in ORDER:
            made.start(name)
        yield made
    finally:
        made.stop()


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_every_service_of_the_file_starts_and_passes_its_own_health_check(stack: Stack) -> None:
    assert set(stack.children) == set(stack.services)
    assert [name for name, child in stack.children.items() if not child.running] == ["initialise"]
    assert [name for name in stack.services if name != "initialise" and not stack.healthy(name)] == []


def test_each_login_can_do_what_is_its_own_and_nothing_else(stack: Stack) -> None:
    shop, duty = stack.url("shop", "BACKSTOP_APP_PASSWORD", "producer_a"), stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "control")
    assert rows(shop, "SELECT count(*) FROM message_stub") == [(0,)]
    reader = stack.url("reader", "BACKSTOP_READER_PASSWORD", "control")
    assert rows(duty, "SELECT count(*) FROM resend_request") == rows(reader, "SELECT count(*) FROM resend_request") == [(0,)]
    for url, statement in (
        (shop, "UPDATE message_stub SET status = 'confirmed'"),
        (shop, "DROP TABLE message_stub"),
        (duty, "DROP TABLE run"),
        (stack.url("shop", "BACKSTOP_APP_PASSWORD", "control"), "SELECT 1"),
        (stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "airflow"), "SELECT 1"),
        (reader, "UPDATE run SET state = 'done'"), (reader, "SELECT content FROM dead_letter"),
        (stack.url("reader", "BACKSTOP_READER_PASSWORD", "producer_a"), "SELECT 1"),
    ):
        with pytest.raises((psycopg2.errors.InsufficientPrivilege, psycopg2.OperationalError), match=r"denied|owner"):
            rows(url, statement)


def test_the_broker_wants_its_password_and_no_process_shows_a_secret(stack: Stack) -> None:
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=stack.port["redis"]).ping()
    shown = [path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert [name for name, value in stack.variables.items() if any(value in line for line in shown)] == []


def test_the_duties_run_through_the_stack_on_its_spark_worker(stack: Stack) -> None:
    rows(stack.url("shop", "BACKSTOP_APP_PASSWORD", "producer_a"), STUB)
    api = AirflowApi(f"http://{LOOPBACK}:{stack.port['airflow']}", "admin", stack.variables["AIRFLOW_ADMIN_PASSWORD"])
    assert api.import_errors() == []
    api.unpause("reconcile")
    run = api.trigger("reconcile")
    state = api.wait("reconcile", run, 600)
    assert state == "success", api.task_log("reconcile", run, "judge")[-4000:]
    control = stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "control")
    assert rows(control, "SELECT duty, state, error FROM run") == [("reconcile", "done", None)]
    assert rows(control, "SELECT requested_by, count(*) FROM resend_request GROUP BY 1") == [("reconcile", 20)]
    with urlopen(f"http://{LOOPBACK}:{stack.port['master-page']}/json/", timeout=10) as page:
        ended = [app["name"] for app in json.load(page)["completedapps"]]
    assert "backstop reconcile" in ended
