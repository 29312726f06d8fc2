"""How a task hands its connections to Spark, and what it tells when it fails: no secret on the way, none left
behind."""

from __future__ import annotations

import json
import logging
import os
import py_compile
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn

from backstop.airflow import control_room, notify, spark_operator, steps
from backstop.airflow.resend import resend_here
from backstop.config.connections import Connections
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.runs.duty import Duty, Step
from backstop.runs.phase import CurrentPhase

ROOT = Path(__file__).resolve().parents[2]
IDS = (
    "backstop_control",
    "backstop_producer_a",
    "backstop_producer_b",
    "backstop_consumer_billing",
    "backstop_consumer_shipping",
)
SECRET = "s3cr3t-4f7a@:/%'\" é"
OPENED = {"run_id": 7, "token": "token-7", "dry_run": False, "due": 1}
LOCAL = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}

# Stands where Spark's own spark-submit would: keeps what it was given, and what lay in the file it was
# pointed to.
SUBMIT = """#!{python}
import json, os, pathlib, stat, sys
secrets = pathlib.Path(os.environ["BACKSTOP_SECRETS_FILE"])
argv = sys.argv[1:]
packed = argv[argv.index("--py-files") + 1] if "--py-files" in argv else None
pathlib.Path({report!r}).write_text(json.dumps({{
    "argv": argv, "file": str(secrets), "mode": stat.S_IMODE(secrets.stat().st_mode),
    "folder_mode": stat.S_IMODE(secrets.parent.stat().st_mode), "urls": json.loads(secrets.read_text()),
    "environment": dict(os.environ), "packed": packed and pathlib.Path(packed).read_bytes().hex(),
}}))
print("driver says hello")
sys.exit({code})
"""


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Airflow's connections in its environment; returns where the stand-in's report will lie."""
    monkeypatch.setenv("BACKSTOP_CONFIG", str(ROOT / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(LOCAL))
    for number, name in enumerate(IDS):
        connection = {
            "conn_type": "postgres",
            "host": "db",
            "port": 5432,
            "schema": "d",
            "login": f"u{number}",
            "password": SECRET,
            "extra": {"sslmode": "require"},
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    broker = {
        "conn_type": "redis",
        "host": "broker",
        "port": 6379,
        "password": SECRET,
        "extra": {"db": 3},
    }
    for name in ("BROKER", "LEASES"):
        monkeypatch.setenv(f"AIRFLOW_CONN_BACKSTOP_{name}", json.dumps(broker))
    return tmp_path / "report.json"


def submit(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, *, code: int = 0, xcoms: Any = None
) -> dict[str, Any]:
    """What the stand-in saw when the operator ran for OPENED."""
    programs = airflow.parent / "bin"
    programs.mkdir()
    script = programs / "spark-submit"
    python = spark_operator.sys.executable
    script.write_text(SUBMIT.format(python=python, report=str(airflow), code=code))
    script.chmod(0o755)
    monkeypatch.setattr(spark_operator, "sys", SimpleNamespace(executable=str(programs / "python")))
    spark_operator.SparkDutyOperator(task_id="judge", duty="reconcile", opened=OPENED).execute(
        {"ti": xcoms}
    )
    return json.loads(airflow.read_text())


class Xcoms(dict[str, Any]):
    """What a task handed on."""

    def xcom_push(self, key: str, value: Any) -> None:
        self[key] = value


def test_connections_go_by_a_private_file_that_is_gone_afterwards(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = submit(airflow, monkeypatch)
    assert seen["mode"] == stat.S_IRUSR | stat.S_IWUSR
    assert seen["folder_mode"] == stat.S_IRWXU
    assert set(seen["urls"]) == {*IDS, "backstop_broker", "backstop_leases"}
    assert not Path(seen["file"]).exists()
    assert not Path(seen["file"]).parent.exists()


def test_what_a_killed_task_left_is_removed_by_the_next_one_and_what_a_living_one_holds_is_not(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spark_operator, "_IN_MEMORY", tmp_path)
    program = (
        "import pathlib, sys, time\n"
        "from backstop.airflow import spark_operator\n"
        f"spark_operator._IN_MEMORY = pathlib.Path({str(tmp_path)!r})\n"
        "folder = spark_operator.private_folder()\n"
        "(folder / 'connections.json').write_text('secret')\n"
        "with spark_operator.held(folder):\n"
        "    print(folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    folders = []
    for task in tasks:
        assert task.stdout is not None
        folders.append(Path(task.stdout.readline().strip()))
    tasks[0].kill()
    tasks[0].wait()
    for folder in folders:
        os.utime(folder, (0, 0))
    seen = submit(airflow, monkeypatch)
    assert Path(seen["file"]).is_relative_to(tmp_path)
    assert [folder.exists() for folder in folders] == [False, True]
    tasks[1].communicate("")


def test_a_folder_is_gone_before_anybody_may_take_it_for_left_over(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    @contextmanager
    def held(folder: Path) -> Iterator[None]:
        assert folder.exists()
        try:
            yield
        finally:
            there.append(folder.exists())

    monkeypatch.setattr(spark_operator, "held", held)
    submit(airflow, monkeypatch)
    shutil.rmtree(airflow.parent / "bin")
    with pytest.raises(Exception, match="spark-submit"):
        submit(airflow, monkeypatch, code=1, xcoms=Xcoms())
    assert there == [False, False]


def test_the_command_line_carries_the_run_and_its_token_only(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = submit(airflow, monkeypatch)
    assert seen["argv"][-5:] == [
        str(ROOT / "spark_jobs" / "reconcile.py"),
        "--run-id",
        "7",
        "--token",
        "token-7",
    ]
    assert "--jars" not in seen["argv"]
    assert "spark.speculation=false" in seen["argv"]
    given = [*seen["argv"], caplog.text]
    assert not [text for text in given if "s3cr3t-4f7a" in text]
    assert str(ROOT / "include") in seen["environment"]["PYTHONPATH"].split(":")


@pytest.mark.parametrize(
    ("code", "told"),
    [(3, {"something_away": "the log of the task names what did not answer"}), (1, {})],
)
def test_the_file_is_gone_after_a_failed_job_too_and_a_store_away_is_told_apart(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: dict[str, Any]
) -> None:
    xcoms = Xcoms()
    with pytest.raises(Exception, match="spark-submit"):
        submit(airflow, monkeypatch, code=code, xcoms=xcoms)
    assert xcoms == told
    assert not Path(json.loads(airflow.read_text())["file"]).parent.exists()


@pytest.mark.parametrize(("due", "from_", "where"), [(3, "4", "here"), (4, "4", "spark")])
def test_little_is_done_in_the_tasks_own_process_and_much_by_spark(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, due: int, from_: str, where: str
) -> None:
    monkeypatch.setenv("BACKSTOP_SPARK_FROM", from_)
    opened = {**OPENED, "due": due}
    done: list[Any] = []
    hook = SimpleNamespace(submit=lambda *_, **__: done.append("spark"))
    monkeypatch.setattr(spark_operator.SparkDutyOperator, "_prepare", lambda *_: hook)
    operator = spark_operator.SparkDutyOperator(
        task_id="s", duty="resend", opened=opened, here=lambda *_: done.append("here")
    )
    operator.execute({"ti": Xcoms()})
    assert done == [where]


@pytest.mark.parametrize(
    ("duty", "due", "options"),
    [
        ("reconcile", 499_999, "-XX:TieredStopAtLevel=1 -Xmx3g"),
        ("reconcile", 500_000, "-XX:TieredStopAtLevel=4 -Xmx3g"),
        ("prove", 1, "-Xmx3g"),
        ("classify", 1, "-XX:TieredStopAtLevel=1 -Xmx3g"),
    ],
)
def test_the_compiler_of_sparks_jvm_follows_the_size_of_the_run(
    duty: str, due: int, options: str
) -> None:
    conf = spark_operator.with_compiler({"spark.driver.extraJavaOptions": "-Xmx3g"}, duty, due)
    assert conf["spark.driver.extraJavaOptions"] == options


def test_spark_is_told_which_compiler(airflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
        in submit(airflow, monkeypatch)["argv"]
    )


def test_a_store_away_is_told_apart_without_spark_too(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise StoreUnavailable(
            "shop_a is away.", unaffected="All else was done.", next_step="Bring it back."
        )

    duty: Duty[Any] = Duty(
        "resend", (Step("claim_publish_settle", away),), unaffected="Nothing was changed."
    )
    work = SimpleNamespace(
        duty=duty,
        run=SimpleNamespace(dry_run=False, phase=CurrentPhase()),
        settings=None,
        counts={},
    )
    monkeypatch.setattr(steps, "opened_work", lambda *_: nullcontext(work))
    xcoms = Xcoms()
    with pytest.raises(StoreUnavailable):
        spark_operator.SparkDutyOperator(
            task_id="s", duty="resend", opened=OPENED, here=resend_here
        ).execute({"ti": xcoms})
    assert xcoms == {spark_operator.SOMETHING_AWAY: "shop_a is away."}


def test_executors_elsewhere_get_our_code(airflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**LOCAL, "host": "spark://cluster:7077"})
    )
    seen = submit(airflow, monkeypatch)
    packed = airflow.parent / "packed.zip"
    packed.write_bytes(bytes.fromhex(seen["packed"]))
    with zipfile.ZipFile(packed) as archive:
        assert {"backstop/model/records.py", "backstop/verdicts/verdict.sql"} <= set(
            archive.namelist()
        )


def test_our_code_goes_compiled_and_an_executor_takes_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each Python worker compiles all that it imports."""
    ours = tmp_path / "here" / "backstop"
    ours.mkdir(parents=True)
    for name, written in (
        ("__init__", ""),
        ("now", "AT = 1"),
        ("older", "AT = 1"),
        ("alone", "AT = 2"),
    ):
        (ours / f"{name}.py").write_text(written)
        if name != "alone":
            py_compile.compile(str(ours / f"{name}.py"))
    (ours / "older.py").write_text("AT = 2 # since it was compiled")
    monkeypatch.setattr(spark_operator, "source_root", lambda _: str(ours.parent))
    packed = spark_operator.pack_code(tmp_path)
    shutil.rmtree(ours)
    names = ("now", "older", "alone")
    program = (
        f"import sys; sys.path.insert(0, {packed!r}); from backstop import {', '.join(names)};"
        f" print([(one.AT, one.__file__[-4:]) for one in ({', '.join(names)})])"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[(1, '.pyc'), (2, 'r.py'), (2, 'e.py')]"


def test_executors_elsewhere_take_their_libraries_and_their_python_from_the_archive(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"archives": "/somewhere/executors.tar.gz", "conf": {"spark.cores.max": 4}}
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        json.dumps({**LOCAL, "host": "spark://cluster:7077", "extra": extra}),
    )
    seen = submit(airflow, monkeypatch)
    assert (
        seen["argv"][seen["argv"].index("--archives") + 1]
        == "/somewhere/executors.tar.gz#environment"
    )
    assert {"spark.cores.max=4", "spark.speculation=false"} <= set(seen["argv"])
    assert seen["environment"]["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert seen["environment"]["PYSPARK_DRIVER_PYTHON"].startswith("/")


@pytest.mark.parametrize("host", ["yarn", "k8s://https://cluster:6443"])
def test_on_yarn_and_kubernetes_the_drivers_environment_is_no_argument(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.setattr(
        spark_submit, "kube_client", object(), raising=False
    )  # as if its provider were installed
    given = {**LOCAL, "host": host, "extra": {"deploy-mode": "client", "namespace": "etl"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(given))
    seen = submit(airflow, monkeypatch)
    assert seen["argv"][seen["argv"].index("--master") + 1] == host
    assert seen["argv"][seen["argv"].index("--deploy-mode") + 1] == "client"
    assert Path(seen["environment"]["BACKSTOP_SECRETS_FILE"]).name == "connections.json"
    assert not [word for word in seen["argv"] if "Env." in word or "connections.json" in word]
    assert "spark.kubernetes.namespace=etl" in seen["argv"]


def test_kubernetes_without_its_provider_is_refused_with_what_to_install(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**LOCAL, "host": "k8s://https://cluster:6443"})
    )
    with pytest.raises(ConfigurationError, match="cncf-kubernetes"):
        submit(airflow, monkeypatch)


@pytest.mark.parametrize(
    ("connection", "what"),
    [
        (None, "no connection spark_default"),
        ("spark://local[2]", "names no Spark master|no connection"),
        (json.dumps({**LOCAL, "host": ""}), "names no Spark master"),
        (
            json.dumps({**LOCAL, "host": "spark://c:7077", "extra": {"deploy-mode": "cluster"}}),
            "deploy mode cluster",
        ),
    ],
)
def test_a_master_that_nobody_meant_is_refused_before_anything_starts(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, connection: str | None, what: str
) -> None:
    if connection is None:
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    with pytest.raises(ConfigurationError, match=what):
        submit(airflow, monkeypatch)
    assert not airflow.exists()


def test_airflows_connections_become_urls_that_the_drivers_understand(airflow: Path) -> None:
    connections = Connections(resolver=control_room.url_from_airflow)
    read = parse_dsn(connections.url("backstop_producer_a"))
    assert read == {
        "user": "u1",
        "password": SECRET,
        "host": "db",
        "port": "5432",
        "dbname": "d",
        "sslmode": "require",
    }
    assert connections.url("backstop_broker").endswith("@broker:6379/3")
    assert control_room.url_from_airflow("nobody_knows_this") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://:a-token@collector.example:4318/v1/metrics",
        "https://hc.example.org/ping/7f3c5b1e",
        "hdfs://names:8020/warehouse/iceberg",
        "file:///data/lake",
    ],
)
def test_a_path_of_several_parts_stays_as_it_was_written(
    airflow: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WITH_A_PATH", url)
    assert Connections(resolver=control_room.url_from_airflow).url("with_a_path") == url


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    taken: list[Any] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook/s3cr3t-4f7a", taken
    server.shutdown()
    server.server_close()


def failure() -> dict[str, Any]:
    """What Airflow gives to a failure callback, with an error that quotes a secret."""
    return {
        "dag": SimpleNamespace(dag_id="reconcile"),
        "run_id": "manual__1",
        "ti": SimpleNamespace(task_id="judge"),
        "exception": RuntimeError("could not log in with s3cr3t-4f7a"),
        "reason": "s3cr3t-4f7a",
    }


def test_a_failure_is_told_in_one_line_and_at_the_webhook(
    webhook: tuple[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, taken = webhook
    settings = tmp_path / "backstop.yaml"
    settings.write_text((ROOT / "backstop.yaml").read_text() + "\nnotify: {url: 'env:HOOK'}\n")
    monkeypatch.setenv("BACKSTOP_CONFIG", str(settings))
    monkeypatch.setenv("HOOK", url)
    notify.tell_failure(failure())
    (notice,) = taken
    assert (notice["duty"], notice["run"], notice["task"]) == ("reconcile", "manual__1", "judge")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "reconcile failed in run manual__1, task judge" in line
    assert "next:" in line
    assert "s3cr3t-4f7a" not in caplog.text + json.dumps(taken)


def test_a_webhook_that_is_away_neither_fails_nor_tells_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tmp_path / "backstop.yaml"
    settings.write_text((ROOT / "backstop.yaml").read_text() + "\nnotify: {url: 'env:HOOK'}\n")
    monkeypatch.setenv("BACKSTOP_CONFIG", str(settings))
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/hook/s3cr3t-4f7a")
    notify.tell_failure(failure())
    assert "could not be delivered" in caplog.text
    assert "s3cr3t-4f7a" not in caplog.text


def test_without_settings_the_line_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BACKSTOP_CONFIG", "/nowhere/backstop.yaml")
    notify.tell_failure(failure())
    assert "reconcile failed in run manual__1" in caplog.text
