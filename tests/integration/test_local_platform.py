"""The embedded platform: durable, on the loopback only, its secrets private, and gone when it is stopped."""

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg2
import pytest
import redis

from backstop.model.errors import ConfigurationError
from backstop_lab import platform as platform_module
from backstop_lab.broker_kinds import EMBEDDED
from backstop_lab.demo.run import new_platform
from backstop_lab.platform import BACKSTOP_DATABASES, Platform
from backstop_lab.run_main import INTERRUPTED
from backstop_lab.servers.child import descendants, is_alive
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from backstop_lab.supervise import supervisor

pytestmark = pytest.mark.nightly

REAL_INITDB = True


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    running = Platform(tmp_path_factory.mktemp("platform"))
    running.start(airflow=False)
    yield running
    running.stop()


ENDED = (FileNotFoundError, ProcessLookupError)
"""What /proc says of a process that ended meanwhile."""


def read(dsn: str, query: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def listening_addresses(pid: int) -> set[str]:
    """The local addresses, as the kernel writes them, on which a process or a child of it listens."""
    inodes = set()
    for member in (pid, *descendants(pid)):
        with suppress(*ENDED):  # a process that ended meanwhile listens to nothing
            for link in Path(f"/proc/{member}/fd").iterdir():
                with suppress(*ENDED):  # nor does a descriptor that was closed
                    target = os.readlink(link)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].split(":")[0])
    return found


def is_airflow(pid: int) -> bool:
    with suppress(*ENDED):
        return b"airflow" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def command_lines() -> str:
    """The command line of every process on the machine."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(*ENDED):
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


LOOPBACK = "0100007F"
MAPPED_LOOPBACK = "0000000000000000FFFF00000100007F"
"""127.0.0.1 as a JVM listens on it."""


def test_what_postgres_committed_survives_a_kill(postgres: Postgres) -> None:
    dsn = postgres.admin_dsn()
    read(dsn, "CREATE TABLE kept (n int); INSERT INTO kept SELECT generate_series(1, 1000)")
    before = postgres.pid
    assert before is not None
    family = [before, *descendants(before)]
    postgres.kill()
    assert not any(is_alive(pid) for pid in family)
    assert not postgres.running
    postgres.start()
    assert postgres.pid != before
    assert read(dsn, "SELECT count(*), sum(n) FROM kept") == [(1000, 500500)]


def test_an_orderly_stop_needs_no_recovery_at_the_next_start(postgres: Postgres) -> None:
    postgres.stop()
    log = postgres.directory / "server.log"
    assert "database system is shut down" in log.read_text().splitlines()[-1]
    before = len(log.read_text())
    postgres.start()
    assert "was not properly shut down" not in log.read_text()[before:]


def test_postgres_is_durable_and_asks_for_a_scram_password(postgres: Postgres) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert read(postgres.admin_dsn(), f"SHOW {setting}") == [("on",)]
    rules = read(postgres.admin_dsn(), "SELECT DISTINCT auth_method FROM pg_hba_file_rules")
    assert rules == [("scram-sha-256",)]
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(postgres.dsn("backstop", "wrong", "postgres"))


def test_postgres_does_not_run_as_root_and_has_no_unix_socket(postgres: Postgres) -> None:
    assert postgres.pid is not None
    status = Path(f"/proc/{postgres.pid}/status").read_text()
    capabilities = next(
        line.split()[1] for line in status.splitlines() if line.startswith("CapEff")
    )
    user_namespace = os.readlink(f"/proc/{postgres.pid}/ns/user")
    assert int(capabilities, 16) == 0 or user_namespace != os.readlink("/proc/self/ns/user")
    assert read(postgres.admin_dsn(), "SHOW unix_socket_directories") == [("",)]
    assert read(postgres.admin_dsn(), "SHOW listen_addresses") == [("127.0.0.1",)]


def test_a_database_is_open_to_its_owner_only(postgres: Postgres) -> None:
    password = postgres.create_role("ann")
    postgres.create_database("anns", owner="ann")
    postgres.create_database("anns", owner="ann")  # a second time changes nothing
    read(postgres.dsn("ann", password, "anns"), "CREATE TABLE t (n int)")
    other = postgres.create_role("bob")
    with pytest.raises(psycopg2.OperationalError, match="permission denied"):
        psycopg2.connect(postgres.dsn("bob", other, "anns"))


def test_a_server_that_outlived_its_supervisor_is_ended_before_the_next_start(
    tmp_path: Path,
) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from backstop_lab.servers.postgres import Postgres\n"
        "server = Postgres(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); os._exit(0)\n"
    )
    left = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "pg")],
        check=True,
        capture_output=True,
        text=True,
    )
    leftover = int(left.stdout)
    assert is_alive(leftover)
    with Postgres(tmp_path / "pg") as server:
        assert not is_alive(leftover)
        assert read(server.admin_dsn(), "SELECT 1") == [(1,)]


def test_what_valkey_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as server:
        with redis.Redis.from_url(server.url()) as client:
            ids = [client.xadd("queue", {"n": n}) for n in range(500)]
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url()) as client:
            assert [entry for entry, _ in client.xrange("queue")] == ids
            settings = client.config_get("maxmemory-policy", "appendfsync", "appendonly")
            assert settings == {
                "maxmemory-policy": "noeviction",
                "appendfsync": "always",
                "appendonly": "yes",
            }
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_servers_listen_on_the_loopback_only(platform: Platform) -> None:
    for server in (platform.postgres, platform.broker, platform.leases):
        assert server.pid is not None
        assert listening_addresses(server.pid) == {LOOPBACK}


def test_every_file_that_holds_a_secret_is_private(platform: Platform) -> None:
    found = secrets_of(platform)
    holders = []
    for path in platform.root.rglob("*"):
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in found):
            holders.append(path.name)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {"state.json", "superuser.password", "valkey.password", "valkey.conf"} <= set(holders)
    assert not [name for name in holders if name.endswith(".log")]


def test_no_secret_is_on_any_command_line(platform: Platform) -> None:
    seen = command_lines()
    assert str(platform.root) in seen  # the servers are among what was looked at
    assert not [secret for secret in secrets_of(platform) if secret in seen]


def secrets_of(platform: Platform) -> set[str]:
    state = json.loads((platform.root / "state.json").read_text())
    superuser = (platform.root / "postgres" / "superuser.password").read_text()
    return {
        *state["passwords"].values(),
        superuser,
        platform.broker.password,
        platform.leases.password,
    }


def test_every_connection_reaches_its_own_database(platform: Platform) -> None:
    connections = platform.connections()
    for name in BACKSTOP_DATABASES:
        asked = read(connections[f"backstop_{name}"], "SELECT current_database(), current_user")
        assert asked == [(name, name)]
        carried = json.loads(platform.environment()[f"AIRFLOW_CONN_BACKSTOP_{name.upper()}"])
        address = f":{carried['password']}@{carried['host']}:{carried['port']}/{carried['schema']}"
        assert connections[f"backstop_{name}"].endswith(address)
    for name, server in (("broker", platform.broker), ("leases", platform.leases)):
        with redis.Redis.from_url(connections[f"backstop_{name}"]) as client:
            assert client.info("server")["tcp_port"] == server.port
        carried = json.loads(platform.environment()[f"AIRFLOW_CONN_BACKSTOP_{name.upper()}"])
        assert (carried["port"], carried["password"]) == (server.port, server.password)


def test_the_redis_of_the_leases_is_not_the_brokers_and_keeps_nothing_on_disk(
    platform: Platform,
) -> None:
    urls = platform.connections()
    with (
        redis.Redis.from_url(urls["backstop_leases"]) as leases,
        redis.Redis.from_url(urls["backstop_broker"]) as broker,
    ):
        assert leases.config_get("appendonly", "maxmemory-policy") == {
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
        }
        broker.set("kept", "yes")
        leases.set("lost", "yes")
        leases.flushall()
        assert broker.get("kept") == b"yes"
        broker.delete("kept")
    assert not list((platform.root / "leases").rglob("*.aof"))


def test_a_second_platform_over_the_same_root_is_refused_and_disturbs_nothing(
    platform: Platform,
) -> None:
    before = platform.postgres.pid
    with pytest.raises(ConfigurationError, match="already running"):
        Platform(platform.root).start(airflow=False)
    assert platform.postgres.pid == before
    assert read(platform.dsn("control"), "SELECT 1") == [(1,)]


def test_a_demo_clears_what_one_on_another_broker_left_and_its_servers_too(tmp_path: Path) -> None:
    before = Platform(tmp_path / "platform", broker="rocketmq")
    before._state.save(tmp_path / "platform" / "state.json")
    before.postgres.start()
    left = before.postgres.pid
    assert left is not None and is_alive(left)
    with new_platform(tmp_path) as platform:
        assert (platform.broker_kind, is_alive(left)) == (EMBEDDED, False)


def test_stopping_and_starting_again_loses_nothing_even_when_a_port_was_taken(
    tmp_path: Path,
) -> None:
    first = Platform(tmp_path)
    first.start(airflow=False)
    read(first.dsn("producer_a"), "CREATE TABLE business (n int); INSERT INTO business VALUES (7)")
    with redis.Redis.from_url(first.connections()["backstop_broker"]) as client:
        client.set("kept", "yes")
    first.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", first.postgres.port))
        squatter.listen()
        second = Platform(tmp_path)
        second.start(airflow=False)
    try:
        assert second.postgres.port != first.postgres.port
        assert second.broker.port == first.broker.port
        assert read(second.dsn("producer_a"), "SELECT n FROM business") == [(7,)]
        with redis.Redis.from_url(second.connections()["backstop_broker"]) as client:
            assert client.get("kept") == b"yes"
    finally:
        second.stop()


def belonging(folder: Path) -> list[str]:
    """The command lines of the processes that work in a folder, or name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(*ENDED, PermissionError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if is_alive(int(process.name)) and (
                str(folder) in line or (process / "cwd").resolve().is_relative_to(folder)
            ):
                found.append(line)
    return found


def interrupt(program: subprocess.Popen[str], *, times: int = 1) -> str:
    """Ctrl-C, as a terminal sends it to a whole group; what the program wrote to stderr."""
    for _ in range(times):
        os.killpg(program.pid, signal.SIGINT)
        select.select([program.stderr], [], [], 60)  # its answer to the first
    _, errors = program.communicate(timeout=120)
    assert program.returncode == INTERRUPTED, errors
    assert "Traceback" not in errors
    return errors


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_file(file: Path, program: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert program.poll() is None and time.monotonic() < deadline, file
        time.sleep(0.05)


def test_ctrl_c_ends_the_demo_and_all_that_it_started_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = started(["backstop_lab.demo", "--folder", str(folder)])
    wait_for_file(folder / "platform" / "postgres" / "data" / "postmaster.pid", demo)
    assert "nothing is left running" in interrupt(demo, times=2)
    assert belonging(folder) == []


def check_airflow(platform: Platform, pid: int) -> None:
    """The platform's Airflow listens on the loopback only, shows no secret and runs a DAG for the generated login."""
    airflow = platform.airflow
    assert listening_addresses(pid) <= {LOOPBACK, MAPPED_LOOPBACK}
    assert len([child for child in descendants(pid) if is_airflow(child)]) >= 4
    kept_secrets = json.loads((airflow.home / "secrets.json").read_text()).values()
    shown = command_lines()
    assert not [
        secret
        for secret in (*secrets_of(platform), airflow.password, *kept_secrets)
        if secret in shown
    ]
    assert not (airflow.home / "standalone_admin_password.txt").exists()
    for name in ("secrets.json", "passwords.json"):
        assert stat.S_IMODE((airflow.home / name).stat().st_mode) == 0o600
    # Of a topic of its own, it runs beside those of the schedule.
    run = airflow.api.trigger("reconcile", {"topic": "refunds"})
    assert airflow.api.wait("reconcile", run, 600) == "success"
    tasks = {
        task["task_id"]: task["state"] for task in airflow.api.task_instances("reconcile", run)
    }
    assert {name for name, state in tasks.items() if state != "skipped"} == {
        "open_run",
        "revisit",
        "close_run",
    }
    assert {tasks[name] for name in ("open_run", "revisit", "close_run")} == {"success"}
    assert "nothing is due" in airflow.api.task_log("reconcile", run, "judge")
    assert airflow.api.import_errors() == []


def test_up_and_down_from_the_command_line_and_down_after_the_supervisor_was_killed(
    tmp_path: Path,
) -> None:
    """Ctrl-C while it starts stops all of it, and so does `down` after its supervisor was killed; up, its DAGs run when
    something is due and on slow schedules, all of Airflow is healthy, and the command line works at once."""

    def command(what: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "backstop_lab", what, "--root", str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **environment},
        )

    assert command("status").returncode == 3
    interrupted = started(["backstop_lab", "up", "--root", str(tmp_path)])
    wait_for_file(tmp_path / "starting.txt", interrupted)
    starting = command("status")
    assert (starting.returncode, starting.stdout[:25]) == (3, "The platform is starting:")
    interrupt(interrupted)
    assert belonging(tmp_path) == []
    assert "is not up" in command("status").stdout

    orphaned = started(["backstop_lab", "up", "--root", str(tmp_path)])
    wait_for_file(tmp_path / "airflow" / "triggerer.pid", orphaned)  # the last of its processes
    killed = supervisor(tmp_path)
    assert killed is not None
    deadline = time.monotonic() + 60
    while sum(map(is_airflow, descendants(killed))) < 4:  # the last one is forked, not yet Airflow
        assert time.monotonic() < deadline, descendants(killed)
        time.sleep(0.05)
    family = descendants(killed)
    os.kill(killed, signal.SIGKILL)
    _, errors = orphaned.communicate(timeout=60)
    assert orphaned.returncode != 0 and "The platform did not start" in errors
    assert [member for member in family if is_alive(member)]
    (tmp_path / "ready.json").write_text("{}")  # as one that was ready leaves it
    assert command("down").returncode == 0
    assert not [member for member in family if is_alive(member)]
    assert belonging(tmp_path) == []
    assert command("status").returncode == 3 and not (tmp_path / "ready.json").exists()

    up = command("up")
    assert up.returncode == 0, up.stderr
    assert "admin / " in up.stdout
    assert (
        "Open  http://127.0.0.1:" in up.stdout
        and "make traffic" in up.stdout
        and "make shell" in up.stdout
    )
    pid = supervisor(tmp_path)
    assert pid is not None
    family = [pid, *descendants(pid)]
    assert command("up").returncode == 0
    assert supervisor(tmp_path) == pid
    platform = Platform(tmp_path)
    api = platform.airflow.api
    assert api.healthy("metadatabase", "scheduler", "triggerer", "dag_processor")
    deadline = time.monotonic() + 120
    while len(dags := {dag["dag_id"]: dag for dag in api.dags()}) < len(
        list((platform_module.PROJECT / "dags").glob("*.py"))
    ):
        assert time.monotonic() < deadline, (sorted(dags), api.import_errors())
        time.sleep(0.2)
    assert [name for name, dag in dags.items() if dag["is_paused"]] == []
    assert {dags[name]["timetable_summary"] for name in ("reconcile", "sweep")} == {
        "Asset or 0:45:00"
    }
    check_airflow(platform, pid)
    asked = tmp_path / "asked.sh"
    asked.write_text("#!/bin/sh\nexec backstop check --json\n")
    asked.chmod(0o755)
    shell = command("shell", SHELL=str(asked))
    assert shell.returncode == 0, shell.stdout + shell.stderr
    assert json.loads(shell.stdout[shell.stdout.index("{") :])["good"]
    assert stat.S_IMODE((tmp_path / "env.sh").stat().st_mode) == 0o600
    sourced = subprocess.run(
        ["sh", "-c", f". {tmp_path}/env.sh; backstop runs list"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sourced.returncode == 0, sourced.stderr
    assert command("down").returncode == 0
    assert not [member for member in family if is_alive(member)]
