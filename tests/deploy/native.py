"""Starts a service of docker-compose.yaml on this machine: its own command, environment and health check, other places.

What an image brings (a program, an address of its own, a data folder) is named here, service by service; nothing else is
changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg2
import pyspark
from compose_file import ROOT, as_written, filled

from backstop_lab.servers.child import Child
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.postgres import SUPERUSER, Postgres, installed
from backstop_lab.servers.unprivileged import choose_run_as
from backstop_lab.servers.valkey import installed as valkey

REDIS_CLI = """#!{python}
# Stands in for redis-cli, which no wheel brings: `redis-cli -p PORT ping`.
import os, sys, redis
port = int(sys.argv[sys.argv.index("-p") + 1])
assert sys.argv[-1] == "ping"
print("PONG" if redis.Redis(port=port, password=os.environ["REDISCLI_AUTH"]).ping() else "")
"""


class Stack:
    """The services of the file, started one after the other; `stop` ends them all."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = dict(variables)
        self.services: dict[str, Any] = filled(as_written(), variables)["services"]
        self.port = {name: free_port() for name in ("postgres", "redis", "master", "master-page", "worker-page", "airflow")}
        self.children: dict[str, Child] = {}
        for name in ("bin", "secrets", "private", "home", "redis", "docs", "logs", "spark"):
            (folder / name).mkdir()
        for name, secret in as_written()["secrets"].items():
            (folder / "secrets" / name).write_text(variables[secret["environment"]])
        (folder / "bin" / "redis-server").symlink_to(valkey())
        client = folder / "bin" / "redis-cli"
        client.write_text(REDIS_CLI.format(python=sys.executable))
        client.chmod(0o755)
        self._places = [
            ("postgres:5432", f"{LOOPBACK}:{self.port['postgres']}"), ("redis:6379", f"{LOOPBACK}:{self.port['redis']}"),
            ("spark-master:7077", f"{LOOPBACK}:{self.port['master']}"), ('"port": 7077', f'"port": {self.port["master"]}'),
            ("spark-master:8080", f"{LOOPBACK}:{self.port['master-page']}"), ("spark-master", LOOPBACK),
            ("airflow-api-server:8080", f"{LOOPBACK}:{self.port['airflow']}"),
            ("/opt/backstop/backstop.yaml", str(ROOT / "backstop.yaml")), ("/opt/backstop/dags", str(ROOT / "dags")),
            ("/opt/backstop/data-docs", str(folder / "docs")), ("/opt/backstop/proofs", str(folder / "proofs")),
            ("/run/secrets", str(folder / "secrets")),
            ("/opt/backstop/", f"{ROOT / 'docker'}/"), ("/dev/shm", str(folder / "private")),
            ("/tmp/spark-work", str(folder / "spark")), ("-p 6379", f"-p {self.port['redis']}"),
        ]  # fmt: skip
        # Numbers that stand alone as a word, by service.
        self._words = {
            "postgres": {"5432": self.port["postgres"]},
            "spark-master": {"7077": self.port["master"], "8080": self.port["master-page"]},
            "spark-worker": {"8081": self.port["worker-page"]},
            "airflow-api-server": {"8080": self.port["airflow"]},
        }

    def stop(self) -> None:
        for child in reversed(self.children.values()):
            child.stop(seconds=20)

    def start(self, name: str) -> None:
        """Starts it when all that it depends on is there; returns when its own health check passes."""
        service = self.services[name]
        assert set(service.get("depends_on", {})) <= set(self.children), f"{name} comes too early"
        assert service.get("entrypoint", ["/usr/bin/dumb-init", "--"]) == ["/usr/bin/dumb-init", "--"]
        child = self.children[name] = Child(name, self.folder / f"{name}.log")
        prefix = self._make_data() if name == "postgres" else ()
        command = self._here(name, service["command"])
        if name == "postgres":
            command = [str(installed("16") / command[0]), *command[1:], "-D", str(self.folder / "postgres" / "data")]
        cwd = self.folder / ("redis" if name == "redis" else "home")
        child.start([*prefix, *command], env=self.environment(name), cwd=Path("/") if name == "postgres" else cwd)
        if service["healthcheck"].get("disable"):
            assert child.wait(120) and child.returncode == 0, child.last_lines(40)
            return
        child.wait_until(lambda: self.healthy(name), 120)
        if name == "postgres":
            self._run_init_scripts()

    def healthy(self, name: str) -> bool:
        """What the engine would find."""
        kind, *words = self.services[name]["healthcheck"]["test"]
        here = self._here(name, words)
        argv = here if kind == "CMD" else ["/bin/sh", "-c", *here]
        if name == "postgres":
            # The databases are made by the image before this server starts; here, a moment later.
            argv = [{"postgres": SUPERUSER, "airflow": "postgres"}.get(word, word) for word in argv]
        asked = subprocess.run(argv, env=self.environment(name), check=False, capture_output=True, timeout=20)
        if asked.returncode:
            time.sleep(0.5)  # as the engine's interval
        return asked.returncode == 0

    def environment(self, name: str) -> dict[str, str]:
        """The service's own, and what the image's would be."""
        own = {key: self._place(str(value)) for key, value in (self.services[name].get("environment") or {}).items()}
        if name == "redis":
            own["REDIS_PORT"] = str(self.port["redis"])
        programs = (self.folder / "bin", Path(sys.executable).parent, installed("16"), Path(os.environ["JAVA_HOME"]) / "bin")
        return {
            "PATH": os.pathsep.join([*map(str, programs), os.defpath]), "HOME": str(self.folder / "home"), "LC_ALL": "C.UTF-8",
            "JAVA_HOME": os.environ["JAVA_HOME"],
            "PYSPARK_PYTHON": "python3",
            "SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": LOOPBACK, "PYTHONPATH": str(ROOT / "include"),
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"], "AIRFLOW_HOME": str(self.folder / "home"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"), "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"), "BACKSTOP_RECONCILE_SCHEDULE": "none",
            **own,
        }  # fmt: skip

    def url(self, login: str, password: str, database: str) -> str:
        return f"postgresql://{login}:{self.variables[password]}@{LOOPBACK}:{self.port['postgres']}/{database}"

    def _here(self, name: str, words: list[str]) -> list[str]:
        return [str(self._words.get(name, {}).get(word, self._place(word))) for word in words]

    def _place(self, text: str) -> str:
        for there, here in self._places:
            text = text.replace(there, here)
        return text

    def _make_data(self) -> tuple[str, ...]:
        """What the image's entry point does first: a data folder with a password for the superuser."""
        made = Postgres(self.folder / "postgres", self.port["postgres"])
        made.start()
        made.stop()
        return choose_run_as(installed("16") / "postgres", self.folder / "postgres").prefix

    def _run_init_scripts(self) -> None:
        """What the image's entry point does with a new data folder, with its variables."""
        password = (self.folder / "postgres" / "superuser.password").read_text()
        address = {"POSTGRES_USER": SUPERUSER, "PGPASSWORD": password, "PGHOST": LOOPBACK, "PGPORT": str(self.port["postgres"])}
        for script in sorted((ROOT / "docker" / "postgres").glob("*.sh")):
            done = subprocess.run(
                ["bash", str(script)], env={**self.environment("postgres"), **address}, check=False, capture_output=True,
                text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        psycopg2.connect(self.url("airflow", "AIRFLOW_DB_PASSWORD", "airflow")).close()
