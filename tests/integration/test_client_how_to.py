"""The README's and the how-to's own programs, word for word, on real servers."""


from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg2.errors
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import KeptConnection
from backstop.errors import ContractBroken
from backstop_lab.servers.valkey import Valkey
from client_world import Database, broker, consumer, postgres, producer, valkey  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "produce-and-consume.md"


def test_the_how_to_works_as_it_is_written(
    producer: Database, consumer: Database, broker: RedisStreams, valkey: Valkey, tmp_path: Path
) -> None:
    programs = dict(
        re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    )
    assert sorted(programs) == ["consumer.py", "producer.py"]
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    consumer.run("DROP TABLE IF EXISTS bill; CREATE TABLE bill (order_id text, amount integer)")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "include"),
        "PRODUCER_DATABASE": producer.dsn,
        "CONSUMER_DATABASE": consumer.dsn,
        "BROKER": valkey.url(),
    }
    order = "from producer import place_order; place_order('o-1', 5); place_order('o-2', 7)"
    subprocess.run([sys.executable, "-c", order], cwd=tmp_path, env=environment, check=True, timeout=60)
    worker = subprocess.Popen(
        [sys.executable, "consumer.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 30
        bills = "SELECT order_id, amount FROM bill ORDER BY 1"
        while len(found := consumer.run(bills)) < 2:
            assert worker.poll() is None, "the worker ended"
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert [tuple(row.values()) for row in found] == [("o-1", 5), ("o-2", 7)]
    assert said.decode().strip() == "processed 2"
    assert worker.returncode == 0
    states = producer.run("SELECT sent_at IS NOT NULL AS sent FROM message_stub")
    assert [row["sent"] for row in states] == [True, True]
    with pytest.raises(subprocess.CalledProcessError):  # the same order again
        subprocess.run(
            [sys.executable, "-c", order],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
    assert len(producer.run("SELECT 1 FROM message_stub")) == 2


def test_the_code_of_the_readme_works_as_it_is_written(
    producer: Database, consumer: Database, broker: RedisStreams
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    consumer.run("DROP TABLE IF EXISTS bill; CREATE TABLE bill (order_id text)")
    names = {
        "store": KeptConnection(producer.connect, "producer database"),
        "broker": broker,
        "subscription": broker.subscribe("billing", ["orders"], "readme"),
        "connect": consumer.connect,
        "order_id": "o-1",
    }
    exec(compile(program, "README.md", "exec"), names)
    assert producer.one("SELECT message_id, sent_at IS NOT NULL AS sent FROM message_stub") == {
        "message_id": "o-1:placed",
        "sent": True,
    }
    assert consumer.one("SELECT order_id FROM bill") == {"order_id": "o-1"}
    assert consumer.one("SELECT message_id, state FROM consumer_log") == {
        "message_id": "o-1:placed",
        "state": "CONSUMED",
    }
    with pytest.raises((ContractBroken, psycopg2.errors.UniqueViolation)):  # the same order again
        exec(compile(program, "README.md", "exec"), names)
    assert len(producer.run("SELECT 1 FROM business_order")) == 1
