"""Each service of docker-compose.yaml as a container: its own command, mounts, secrets, user, capabilities,
environment, names and networks, and a run of the duties through all of them.

There is no engine and no registry here. The services run in namespaces, over images that are put together
from this machine (images.py), in the file's order and with its health checks. This does not test the content
of the base images (their entry points are short ones of ours, the servers are the embedded PostgreSQL and
Valkey, Python is this machine's), the build of the Dockerfile, the limits of memory, CPU and processes, and
the published ports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import psycopg2
import pytest
import redis
from compose_file import ROOT, read_env
from stack import Stack

from backstop_lab.servers.airflow_api import AirflowApi

pytestmark = pytest.mark.nightly

STUB = """
    INSERT INTO message_stub (topic, message_id, content, created_at, first_seen_at, next_check_at)
    SELECT 'orders', 'm-' || n, 'content', now() - interval '5 minutes', now() - interval '5 minutes',
        now() - interval '1 minute'
    FROM generate_series(1, 20) AS n
"""
REACHES = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print(place)
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    folder.chmod(0o711)
    env = folder / ".env"
    subprocess.run([sys.executable, str(ROOT / "docker" / "write_env.py"), str(env)], check=True)
    made = Stack(folder, read_env(env))
    try:
        with made.networks.entered():
            made.up()
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


def test_every_service_of_the_file_comes_up_and_stays(stack: Stack) -> None:
    """The fixture waited for each one's own health check; Exited would name the one that failed."""
    assert stack.services and set(stack.containers) == set(stack.services)
    ended = [name for name, one in stack.containers.items() if not one.child.running]
    assert ended == ["initialise"]
    going = [one for name, one in stack.containers.items() if name not in ended]
    # As Docker has it: unhealthy after so many failed checks in a row.
    unhealthy = [
        one.name
        for one in going
        if not any(one.healthy for _ in range(one.service["healthcheck"]["retries"]))
    ]
    assert unhealthy == []


def test_a_container_has_its_own_user_capabilities_and_environment_and_no_others(
    stack: Stack,
) -> None:
    for name, user in (("airflow-scheduler", "50000"), ("spark-worker", "50000"), ("redis", "999")):
        one = stack.containers[name]
        facts = "id -u; grep -h -E '^(CapBnd|NoNewPrivs)' /proc/1/status"
        inside = one.run("/bin/sh", "-c", facts)
        assert inside.stdout.split() == [user, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"], inside
        assert one.run("ls", "-A", str(ROOT)).stdout.split() == [".venv"], (
            "the source tree is in the image"
        )
    for name in ("airflow-scheduler", "spark-worker"):
        one = stack.containers[name]
        environ = one.run("cat", "/proc/1/environ").stdout.split("\0")
        assert dict(line.split("=", 1) for line in environ if line) == one.environment
    assert stack.containers["redis"].run("touch", "/tmp/x").returncode != 0, "its root is read-only"


def test_a_spark_worker_reaches_what_its_tasks_need_and_nothing_else(stack: Stack) -> None:
    """By name, and by the address of a network that it is not in."""
    places = {
        "spark-master:7077": True,
        "postgres:5432": True,
        "redis:6379": True,
        "airflow-api-server:8080": False,
        f"{stack.address('airflow-api-server')}:8080": False,
    }
    tried = stack.containers["spark-worker"].run("python3", "-c", REACHES, *places)
    assert {place: place in tried.stdout.split() for place in places} == places, tried


def test_each_login_can_do_what_is_its_own_and_nothing_else(stack: Stack) -> None:
    shop = stack.url("shop", "BACKSTOP_APP_PASSWORD", "producer_a")
    duty = stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "control")
    reader = stack.url("reader", "BACKSTOP_READER_PASSWORD", "control")
    assert rows(shop, "SELECT count(*) FROM message_stub") == [(0,)]
    requests = "SELECT count(*) FROM resend_request"
    assert rows(duty, requests) == rows(reader, requests) == [(0,)]
    for url, statement in (
        (shop, "UPDATE message_stub SET status = 'confirmed'"),
        (shop, "DROP TABLE message_stub"),
        (duty, "DROP TABLE run"),
        (stack.url("shop", "BACKSTOP_APP_PASSWORD", "control"), "SELECT 1"),
        (stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "airflow"), "SELECT 1"),
        (reader, "UPDATE run SET state = 'done'"),
        (reader, "SELECT content FROM dead_letter"),
        (stack.url("reader", "BACKSTOP_READER_PASSWORD", "producer_a"), "SELECT 1"),
    ):
        with pytest.raises(
            (psycopg2.errors.InsufficientPrivilege, psycopg2.OperationalError),
            match=r"denied|owner",
        ):
            rows(url, statement)


def test_the_broker_wants_its_password_and_no_process_shows_a_secret(stack: Stack) -> None:
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(stack.address("redis")).ping()
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    shown = b"\n".join(lines).decode(errors="replace")
    assert [name for name, value in stack.variables.items() if value in shown] == []


def test_a_service_with_a_wrong_secret_mount_or_user_ends_and_logs_why(stack: Stack) -> None:
    """A volume that an Airflow service writes was once read-only in the file, and nothing came up."""
    volumes = {name: stack.services[name]["volumes"] for name in ("airflow-dag-processor", "redis")}
    read_only = [
        f"{one}:ro" if one.startswith("airflow-logs:") else one
        for one in volumes["airflow-dag-processor"]
    ]
    without_data = [one for one in volumes["redis"] if not one.startswith("redis-data:")]
    assert volumes["airflow-dag-processor"] != read_only and volumes["redis"] != without_data
    wrong = {
        "No such file or directory: '/run/secrets/airflow-admin'": stack.start(
            "initialise", changed={"secrets": []}
        ),
        "Read-only file system: '/opt/airflow/logs/": stack.start(
            "airflow-dag-processor", changed={"volumes": read_only}
        ),
        "Can't open or create append-only dir": stack.start(
            "redis", changed={"volumes": without_data}
        ),
        "Permission denied": stack.start("redis", changed={"user": "1234:1234"}),
    }
    logs = {why: stack.log_of_failure(one) for why, one in wrong.items()}
    assert [log for why, log in logs.items() if why not in log] == []


def test_the_duties_run_through_the_stack_on_its_spark_worker(stack: Stack) -> None:
    rows(stack.url("shop", "BACKSTOP_APP_PASSWORD", "producer_a"), STUB)
    url = f"http://{stack.address('airflow-api-server')}:8080"
    api = AirflowApi(url, "admin", stack.variables["AIRFLOW_ADMIN_PASSWORD"])
    assert api.import_errors() == []
    api.unpause("reconcile")
    # Its schedule starts a run at once; another beside it would be refused.
    deadline = time.monotonic() + 600
    while not (runs := api.dag_runs("reconcile")):
        assert time.monotonic() < deadline, "the schedule started no run"
        time.sleep(0.5)
    run = runs[0]["dag_run_id"]
    state = api.wait("reconcile", run, 600)
    assert state == "success", api.task_log("reconcile", run, "judge")[-4000:]
    control = stack.url("duty", "BACKSTOP_DUTY_PASSWORD", "control")
    assert rows(control, "SELECT duty, state, error FROM run") == [("reconcile", "done", None)]
    requested = "SELECT requested_by, count(*) FROM resend_request GROUP BY 1"
    assert rows(control, requested) == [("reconcile", 20)]
    page = build_opener(ProxyHandler({})).open(
        f"http://{stack.address('spark-master')}:8080/json/", timeout=60
    )
    with page:
        assert "backstop reconcile" in [app["name"] for app in json.load(page)["completedapps"]]
