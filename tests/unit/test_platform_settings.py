"""What the embedded platform gives Airflow and Spark to run with."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from backstop.config.load import load
from backstop.config.settings import Settings
from backstop_lab import platform
from backstop_lab.platform import Platform
from backstop_lab.servers.airflow import CALM, DEFAULTS
from backstop_lab.supervise import schedules, write_environment


def test_a_platform_that_stays_up_is_calm_and_keeps_its_settings_when_it_moves_to_another_port(
    tmp_path: Path,
) -> None:
    up = Platform(tmp_path, airflow_settings=CALM)
    for _ in range(2):
        up.airflow.home.mkdir(parents=True, exist_ok=True)
        up.airflow._make_secrets()
        settings = up.airflow.settings()
        assert settings.items() >= ({**DEFAULTS, **CALM}).items()
        up._load()
    assert float(CALM["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"]) >= 1.0
    assert float(DEFAULTS["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"]) >= 300.0


def test_every_dag_is_unpaused_and_runs_when_something_is_due_or_on_the_intervals_of_the_settings() -> (
    None
):
    settings = load(platform.PROJECT / "backstop.yaml")
    assert schedules(settings) == {"BACKSTOP_RECONCILE_AT_ONCE": "1"}
    written = settings.model_dump(exclude_unset=True) | {"schedule": {"on_demand": False}}
    found = schedules(Settings.model_validate(written))
    assert (found["BACKSTOP_RECONCILE_SCHEDULE"], found["BACKSTOP_SWEEP_SCHEDULE"]) == ("10s", "5s")
    assert CALM["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "False"


def test_what_a_shell_reads_is_private_and_quoted(tmp_path: Path) -> None:
    write_environment(tmp_path / "env.sh", {"PATH": "/elsewhere", "A_URL": "pg://u:it's $HOME@h"})
    assert (tmp_path / "env.sh").stat().st_mode & 0o777 == 0o600
    read = subprocess.run(
        ["sh", "-c", f'. {tmp_path}/env.sh; echo "$A_URL"; echo "$PATH"'],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert read.stdout.splitlines() == [
        "pg://u:it's $HOME@h",
        f"{Path(sys.executable).parent}:/usr/bin:/bin",
    ]


def test_the_archive_of_sparks_classes_is_used_only_where_set_up_could_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = importlib.import_module("backstop_lab.setup")
    monkeypatch.setattr(platform, "PROJECT", tmp_path)
    monkeypatch.setattr(setup, "KEPT", tmp_path / ".local")
    monkeypatch.setattr(setup, "SPARK_CLASSES", tmp_path / ".local" / "spark.jsa")
    (tmp_path / ".local").mkdir()

    def no_spark(*_: object) -> None:
        raise setup.SetupError("Spark does not run here")

    monkeypatch.setattr(setup, "run", no_spark)
    setup.share_spark_classes(tmp_path)
    assert platform.shared_classes() == ()

    def spark(_: object, env: dict[str, str], __: object) -> None:
        Path(env["SPARK_SUBMIT_OPTS"].rpartition("=")[2]).write_bytes(b"classes")

    monkeypatch.setattr(setup, "run", spark)
    setup.share_spark_classes(tmp_path)
    assert (
        platform.shared_classes()[0] == f"-XX:SharedArchiveFile={tmp_path / '.local' / 'spark.jsa'}"
    )
    assert [file.name for file in (tmp_path / ".local").iterdir()] == ["spark.jsa"]


def test_a_set_up_whose_mark_was_cut_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = importlib.import_module("backstop_lab.setup")
    marker = tmp_path / "backstop-setup.json"
    monkeypatch.setattr(setup, "MARKER", marker)
    assert not setup.already_done()
    marker.write_text("")
    assert not setup.already_done()

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(setup, "KEPT", tmp_path / ".local")
    monkeypatch.setattr(setup, "use_supported_python", lambda: None)
    monkeypatch.setattr(setup, "set_up", full)
    assert setup.main() == 1
    assert "No space left on device. Nothing half-made is used" in capsys.readouterr().err
