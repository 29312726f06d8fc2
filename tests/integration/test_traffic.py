"""Traffic over a running platform: real producers and consumers, each message's work done once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import psycopg2

from backstop_lab.demo.traffic import drive
from backstop_lab.platform import Platform


def count(dsn: str, query: str) -> int:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
            return int(row[0]) if row else 0
    finally:
        connection.close()


def test_traffic_is_made_and_worked_until_it_is_stopped(tmp_path: Path) -> None:
    platform = Platform(tmp_path / "platform")
    platform.start(airflow=False)
    stop, made = threading.Event(), []
    thread = threading.Thread(
        target=lambda: made.append(drive(platform, tmp_path / "traffic", 30, stop))
    )
    try:
        thread.start()
        effects = platform.connections()["backstop_consumer_billing"]
        until = monotonic() + 120
        done = 0
        while done < 60 and monotonic() < until and thread.is_alive():
            stop.wait(0.5)
            exists = count(effects, "SELECT count(*) FROM pg_tables WHERE tablename = 'effect'")
            done = count(effects, "SELECT count(*) FROM effect") if exists else 0
        stop.set()
        thread.join(60)
        assert done >= 60
        assert made and made[0] >= 60
        assert (
            count(effects, "SELECT count(*) - count(DISTINCT (topic, message_id)) FROM effect") == 0
        )
    finally:
        stop.set()
        thread.join(60)
        platform.stop()


def test_without_a_platform_it_says_how_to_start_one(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "backstop_lab.demo.traffic", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3
    assert "make up" in ended.stderr
