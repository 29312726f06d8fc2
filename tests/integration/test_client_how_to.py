"""The README's and the how-to's own commands and programs, word for word and in order, on real servers."""

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
from backstop.model.errors import ContractBroken
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from client_world import Database, broker, consumer, postgres, producer, valkey  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "produce-and-consume.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NO_EXTRA = """
import sys

class OnlyTheBase:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "yaml", "pydantic", "pydantic_core", "duckdb", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTheBase())
"""
COMMAND = """#!{python}
import os, sys
sys.path.insert(0, {include!r})
if os.path.exists({base!r}):
    exec(open({base!r}).read())
from backstop.cli import main
main()
"""


class Reader:
    """Somebody who follows the page in one folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.base = folder / "base_only.py"
        """While it is there, `backstop` runs as without any extra."""
        programs = folder / "bin"
        programs.mkdir()
        (programs / "backstop").write_text(
            COMMAND.format(
                python=sys.executable, include=str(ROOT / "include"), base=str(self.base)
            )
        )
        (programs / "backstop").chmod(0o755)
        (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (programs / "python").chmod(0o755)
        self.environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "include"),
            **environment,
        }

    def types(self, text: str) -> str:
        """What the lines print; what pip would install is there."""
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("pip install"))
        done = subprocess.run(
            ["sh", "-eu", "-c", lines],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:  # raised by hand: pytest would shorten what it says
            raise AssertionError(f"{lines}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def starts(self, text: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "-c", f"exec {text.strip()}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def reader(postgres: Postgres, valkey: Valkey, tmp_path: Path) -> Reader:
    urls = {}
    for role in ("producer", "consumer", "control"):
        name = f"how_to_{role}_{tmp_path.name}".lower()[-60:]
        postgres.create_database(name)
        urls[f"{role.upper()}_DATABASE"] = postgres.admin_dsn(name)
    return Reader(tmp_path, {**urls, "BROKER": valkey.url()})


def test_the_how_to_works_as_it_is_written(reader: Reader, postgres: Postgres) -> None:
    blocks = list(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    for _, text in blocks:
        if found := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            (reader.folder / found[1]).write_text(text, encoding="utf-8")
    install, create, order, work, tell = (text for language, text in blocks if language == "sh")
    reader.base.write_text(NO_EXTRA)
    reader.types(install + create)
    bills_in, stubs_in = (
        Database(reader.environment[f"{role}_DATABASE"]) for role in ("CONSUMER", "PRODUCER")
    )
    owners, logins = dict(reader.environment), {}
    for login, name, database in (
        ("shop", "PRODUCER_DATABASE", stubs_in),
        ("billing", "CONSUMER_DATABASE", bills_in),
    ):
        password = postgres.create_role(login)
        ((found,),) = (row.values() for row in database.run("SELECT current_database()"))
        reader.environment[name] = postgres.dsn(login, password, found)
        logins[name] = postgres.dsn(login, "...", found)
    with pytest.raises(AssertionError, match="permission denied"):  # before the page's grants
        reader.types(order)
    for text in (text for language, text in blocks if language == "sql"):
        database_of = re.match(r"-- (\w+) database\n", text)
        assert database_of is not None
        # The logins are there since the check above.
        text = text.replace("CREATE ROLE", "ALTER ROLE")
        Database(owners[f"{database_of[1].upper()}_DATABASE"]).run(text)
    reader.environment |= logins
    reader.types(order)
    worker = reader.starts(work)
    try:
        deadline = time.monotonic() + 240
        bills = "SELECT order_id, amount FROM bill ORDER BY 1"
        while len(found := bills_in.run(bills)) < 2:
            assert worker.poll() is None, worker.communicate()
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=120)
    finally:
        worker.kill()
    assert [tuple(row.values()) for row in found] == [("o-1", 5), ("o-2", 7)]
    assert said.decode().strip() == "processed 2"
    assert worker.returncode == 0
    states = stubs_in.run("SELECT sent_at IS NOT NULL AS sent FROM message_stub")
    assert [row["sent"] for row in states] == [True, True]
    with pytest.raises(AssertionError, match="UniqueViolation"):  # the same orders again
        reader.types(order)
    assert len(stubs_in.run("SELECT 1 FROM message_stub")) == 2
    with pytest.raises(AssertionError, match=r'pip install "backstop-mq\[platform\]"'):
        reader.types("backstop check")
    reader.base.unlink()
    reader.environment = owners
    assert "billing: CONFIRMED" in reader.types(tell)


def test_the_lines_of_the_readme_make_tables_roles_and_topics(reader: Reader) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(
        r"^ *```\n( *export AIRFLOW_CONN_.*?)^ *```$", readme, re.DOTALL | re.MULTILINE
    )
    (given, *lines) = [line.strip() for line in text.splitlines()]
    names = re.findall(r"_BACKSTOP_(\w+)", given)
    assert names == ["CONTROL", "SHOP", "BILLING", "BROKER"]
    page = (ROOT / "docs" / "how-to" / "configure.md").read_text(encoding="utf-8")
    (reader.folder / "backstop.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    addresses = ("CONTROL_DATABASE", "PRODUCER_DATABASE", "CONSUMER_DATABASE", "BROKER")
    for name, address in zip(names, addresses, strict=True):
        reader.environment[f"AIRFLOW_CONN_BACKSTOP_{name}"] = reader.environment[address]
    reader.types("\n".join(lines))
    found = {
        address: {
            row["found"]
            for row in Database(reader.environment[address]).run(
                "SELECT table_name AS found FROM information_schema.role_table_grants WHERE grantee = %s",
                (role,),
            )
        }
        for address, role in zip(
            addresses[:3], ("backstop_duty", "backstop_app", "backstop_consumer"), strict=True
        )
    }
    assert (
        "message_stub" in found["PRODUCER_DATABASE"]
        and "consumer_log" in found["CONSUMER_DATABASE"]
    )
    assert "run" in found["CONTROL_DATABASE"]
    with RedisStreams(reader.environment["BROKER"]) as made:
        assert made.queues("orders")


def test_a_topic_that_is_missing_is_told_to_producer_and_consumer(reader: Reader) -> None:
    """Neither fails: Backstop goes on with the message, and the consumer with the topic once it is there."""
    blocks = dict(
        re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    )
    for name, text in blocks.items():
        (reader.folder / name).write_text(text.replace('"orders"', '"nowhere"'), encoding="utf-8")
    for role in ("producer", "consumer"):
        reader.types(f"backstop migrate --role {role} --database env:{role.upper()}_DATABASE")
    Database(reader.environment["PRODUCER_DATABASE"]).run(
        "CREATE TABLE IF NOT EXISTS business_order (order_id text)"
    )
    order = subprocess.run(
        [sys.executable, "-c", "from producer import place_order; place_order('o-3', 5)"],
        cwd=reader.folder,
        env=reader.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "there is no topic 'nowhere': backstop topics create nowhere" in order.stderr
    worker = reader.starts("python consumer.py")
    try:
        assert worker.stderr is not None
        assert (
            "there is no such topic (`backstop topics create nowhere`)"
            in worker.stderr.readline().decode()
        )
    finally:
        worker.kill()
        worker.wait()


def test_the_code_of_the_readme_works_as_it_is_written(
    producer: Database, consumer: Database, broker: RedisStreams
) -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
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
