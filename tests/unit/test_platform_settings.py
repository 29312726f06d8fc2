"""What the embedded platform gives Airflow and Spark to run with."""

from __future__ import annotations

from pathlib import Path

from backstop.local.airflow import CALM, DEFAULTS
from backstop.local.platform import Platform


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
