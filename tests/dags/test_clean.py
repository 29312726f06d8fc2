"""What goes of Airflow's own history; that `airflow db clean` takes the rest is tested on a live one (test_fab_live.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backstop.airflow import clean_airflow
from backstop.model.errors import ConfigurationError


@pytest.mark.parametrize("keep", ["1d", "47h", "0", "a month", "-5d"])
def test_a_limit_that_is_too_short_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: str
) -> None:
    monkeypatch.setenv("BACKSTOP_CLEAN_KEEP", keep)
    for clean in (clean_airflow.clean_database, clean_airflow.clean_logs):
        with pytest.raises(ConfigurationError, match="BACKSTOP_CLEAN_KEEP"):
            clean.function({"dry_run": False})


@pytest.mark.parametrize("connection", [None, "sqlite:////tmp/airflow.db"])
def test_only_a_connection_to_airflows_own_database_is_used(
    monkeypatch: pytest.MonkeyPatch, connection: str | None
) -> None:
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_DB", connection)
    with pytest.raises(ConfigurationError, match="airflow_db"):
        clean_airflow.clean_database.function({"dry_run": False})
    monkeypatch.setenv(
        "AIRFLOW_CONN_AIRFLOW_DB", "postgresql://airflow:p%40ss@db:5432/airflow?sslmode=verify-full"
    )
    assert (
        clean_airflow.database_url()
        == "postgresql+psycopg2://airflow:p%40ss@db:5432/airflow?sslmode=verify-full"
    )


def test_old_files_of_logs_go_and_nothing_outside_or_newer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    logs, outside = tmp_path / "logs", tmp_path / "outside.log"
    old, young, empty = logs / "run" / "old.log", logs / "run" / "young.log", logs / "empty"
    empty.mkdir(parents=True)
    old.parent.mkdir()
    for file in (old, young, outside):
        file.write_text("a line")
    (logs / "latest").symlink_to(outside)
    for path in (old, outside, empty):
        os.utime(path, (long_ago := time.time() - 3 * 24 * 3600, long_ago))
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(logs))
    assert clean_airflow.clean_logs.function({"dry_run": False}) == 0, "within 30 days"
    monkeypatch.setenv("BACKSTOP_CLEAN_KEEP", "2d")
    assert (
        clean_airflow.clean_logs.function({"dry_run": True}) == 1
        and old.exists()
        and empty.exists()
    )
    assert clean_airflow.clean_logs.function({"dry_run": False}) == 1
    assert not old.exists() and not empty.exists() and young.exists() and outside.exists()


def test_a_log_that_its_worker_takes_away_meanwhile_keeps_no_other_from_going(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with remote logging and delete_local_logs."""
    folder, empty = tmp_path / "run", tmp_path / "empty"
    folder.mkdir(), empty.mkdir()
    old, sent = folder / "old.log", folder / "a sent.log"
    walk, long_ago = os.walk, time.time() - 40 * 24 * 3600
    for path in (old, sent):
        path.write_text("")
    for path in (old, sent, empty):
        os.utime(path, (long_ago, long_ago))

    def walk_and_lose(*arguments: Any, **named: Any) -> Iterator[Any]:
        for found in walk(*arguments, **named):
            if found[0] == str(folder):
                sent.unlink()
            if found[0] == str(empty):
                (empty / "begun.log").write_text("")
                os.utime(empty, (long_ago, long_ago))
            yield found

    monkeypatch.setattr(clean_airflow.os, "walk", walk_and_lose)
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    assert clean_airflow.clean_logs.function({"dry_run": False}) == 1
    assert not old.exists() and (empty / "begun.log").exists()
