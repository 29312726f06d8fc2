"""What the embedded platform gives Airflow and Spark to run with."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from backstop_lab import platform
from backstop_lab.platform import Platform
from backstop_lab.servers.airflow import CALM, DEFAULTS


def test_a_platform_that_stays_up_is_calm_and_keeps_its_settings_when_it_moves_to_another_port(tmp_path: Path) -> None:
    up = Platform(tmp_path, airflow_settings=CALM)
    for _ in range(2):
        up.airflow.home.mkdir(parents=True, exist_ok=True)
        up.airflow._make_secrets()
        settings = up.airflow.settings()
        assert settings.items() >= ({**DEFAULTS, **CALM}).items()
        up._load()
    assert float(CALM["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"]) >= 1.0
    assert float(DEFAULTS["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"]) >= 300.0


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
    assert platform.shared_classes()[0] == f"-XX:SharedArchiveFile={tmp_path / '.local' / 'spark.jsa'}"
    assert [file.name for file in (tmp_path / ".local").iterdir()] == ["spark.jsa"]
