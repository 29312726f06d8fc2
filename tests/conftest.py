"""What every test shares: one Spark session (a JVM takes its classpath at its start, so there can be only one kind), one PostgreSQL
and one Valkey for all files that leave them as they are, one RocketMQ for a file, and the suite's order and budgets."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from backstop_lab.servers import ports
from committed import close_sessions
from quick_postgres import copied_data, end_at_once
from suite_time import SuiteTime

ROOT = Path(__file__).resolve().parents[1]

# `make` sets these; a bare pytest finds what `make setup` installed.
for name, value in {
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "BACKSTOP_JDBC_JAR": next(
        (str(jar) for jar in (ROOT / ".local" / "jars").glob("postgresql-*.jar")), ""
    ),
}.items():
    os.environ.setdefault(name, value)
java_home = ROOT / ".local" / "java_home"
if java_home.exists():
    os.environ.setdefault("JAVA_HOME", java_home.read_text(encoding="utf-8").strip())

# An example's time on a busy machine says nothing of the code: `hostile text` and its like measure by themselves.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SuiteTime(config), "suite_time")
    # Workers of pytest-xdist choose ports from ranges of their own: a server may bind its port a minute after it was chosen.
    if (given := getattr(config, "workerinput", None)) is not None:
        first, last = ports.CHOSEN_FROM
        share = (last - first) // int(given["workercount"])
        first += share * int(given["workerid"].removeprefix("gw"))
        ports.CHOSEN_FROM = (first, first + share)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the test files import stays to the end: half a million objects that garbage need not be looked for among."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else extensions say at the end that they leak what was left out


@pytest.fixture(scope="module", autouse=True)
def quick_postgres(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Quick servers (quick_postgres.py), but for files that test how the server itself is made (`REAL_INITDB = True`)."""
    is_real = getattr(request.module, "REAL_INITDB", False)
    with nullcontext() if is_real else quickly_made(request.config, tmp_path_factory):
        yield
    close_sessions()


@contextmanager
def quickly_made(config: pytest.Config, folders: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of PostgreSQL that start meanwhile are copies, and end at once."""
    from backstop_lab.servers.postgres import Postgres

    base = folders.getbasetemp()
    shared = base.parent if hasattr(config, "workerinput") else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Postgres, "_make_data", copied_data(shared / "pg", Postgres._make_data))
        patch.setattr(Postgres, "__exit__", end_at_once)
        yield


@pytest.fixture(scope="session")
def postgres(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One server with the templates of `system` for all files of a worker, but for those that stop, configure or fill theirs: they
    have a fixture of this name."""
    from backstop_lab.servers.postgres import Postgres
    from system import build_template

    server = Postgres(tmp_path_factory.mktemp("postgres"))
    with quickly_made(request.config, tmp_path_factory):
        server.start()
    try:
        build_template(server)
        yield server
    finally:
        end_at_once(server)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One server likewise; each `system` empties it."""
    from backstop_lab.servers.valkey import Valkey

    with Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as server:
        yield server


@pytest.fixture(scope="session")
def servers(postgres: Any, valkey: Any) -> tuple[Any, Any]:
    return postgres, valkey


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session as the duties start it; its workers find the jobs, too."""
    from backstop.spark.session import start_session
    from backstop_lab.servers import fetch_iceberg

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "include")]))
        with pytest.MonkeyPatch.context() as jars:
            if fetch_iceberg.installed():  # else the tests of Iceberg's tables say what is missing
                jars.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {fetch_iceberg.jar()} pyspark-shell")
            session = start_session("tests", "local[2]")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def shared_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One real RocketMQ for the tests of a file that do not kill, stall or fill it: every test names its own topics and groups.

    Idle it takes a fifth of a core, so it ends with the file.
    """
    from rocketmq_server import RocketMQ

    with RocketMQ(tmp_path_factory.mktemp("rocketmq")) as server:
        yield server
