"""A Spark cluster of real processes, and jobs submitted to it as Airflow submits them."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from backstop_lab.servers.child import Child, descendants, kill_if_there
from backstop_lab.servers.ports import LOOPBACK, free_port

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
SPARK = "org.apache.spark.deploy."
OPERATOR = """
import json, sys
from backstop.airflow.spark_operator import SparkDutyOperator
SparkDutyOperator(task_id="t", duty=sys.argv[1], opened=json.loads(sys.argv[2])).execute({"ti": None})
"""


class Cluster:
    """A master and two workers of one core, which know nothing of our code, our settings or our environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.page, self.secret = free_port(), free_port(), secrets.token_hex(16)
        self.master = Child("Spark's master", folder / "master.log")
        self.workers = [Child(f"Spark's worker {n}", folder / f"worker{n}.log") for n in (1, 2)]

    def start(self) -> None:
        home = Path(pyspark.__file__).parent
        program = str(home / "bin" / "spark-class")
        environment = {
            **PLAIN,
            "JAVA_HOME": os.environ["JAVA_HOME"],
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            # The secret as docker-compose.yaml gives it: tasks carry connections, and are encrypted on their way.
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": "/no/such/python",
            "_SPARK_AUTH_SECRET": self.secret,
            "SPARK_DAEMON_JAVA_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Dspark.authenticate=true"
            " -Dspark.network.crypto.enabled=true -Dspark.master.rest.enabled=false",
        }
        ports = ("--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self.page))
        self.master.start(
            [program, f"{SPARK}master.Master", *ports], env=environment, cwd=self.folder
        )
        self.master.wait_until(
            lambda: "I have been elected leader" in self.master.log.read_text(), 300
        )
        for number, worker in enumerate(self.workers):
            worker.start(
                [
                    program,
                    f"{SPARK}worker.Worker",
                    "--host",
                    LOOPBACK,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(self.folder / f"work{number}"),
                    f"spark://{LOOPBACK}:{self.port}",
                ],
                env=environment,
                cwd=self.folder,
            )
        for worker in self.workers:
            worker.wait_until(
                lambda log=worker.log: "Successfully registered" in log.read_text(), 300
            )

    def stop(self) -> None:
        for child in (*self.workers, self.master):
            child.kill()  # executors are in their workers' families

    def executors(self) -> list[int]:
        """The executors' JVMs that run now."""
        return [
            pid
            for worker in self.workers
            for pid in descendants(worker.pid or 0)
            if "CoarseGrained" in command_line(pid)
        ]

    def kill_executors(self, count: int) -> list[int]:
        """SIGKILL for so many executors and their Python processes; returns the JVMs' ids."""
        chosen = self.executors()[:count]
        for pid in chosen:
            for one in (pid, *descendants(pid)):
                kill_if_there(one)
        return chosen


@dataclass
class Submitter:
    """Submits a job as Airflow's task does: the operator, its connections, its secrets file."""

    master: Mapping[str, Any]
    folder: Path
    key: str | None = None
    secrets: tuple[str, ...] = ()
    seen: set[str] = field(default_factory=set)

    @contextmanager
    def submitted(
        self, duty: str, run: Any, settings: Mapping[str, Any], urls: Mapping[str, str]
    ) -> Iterator[Job]:
        """The job while it runs; whatever is left of it at the end is killed."""
        config = self.folder / "backstop.yaml"
        config.write_text(json.dumps(settings))
        environment = {
            **PLAIN,
            "JAVA_HOME": os.environ["JAVA_HOME"],
            "SPARK_LOCAL_IP": LOOPBACK,
            "BACKSTOP_CONFIG": str(config),
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            "PYTHONPATH": str(ROOT / "include"),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(self.master),
            **({"_SPARK_AUTH_SECRET": self.key} if self.key else {}),
            **{f"AIRFLOW_CONN_{name.upper()}": url for name, url in urls.items()},
        }
        opened = json.dumps({"run_id": run.run_id, "token": str(run.token), "due": 1})
        log = self.folder / f"{duty}-{run.run_id}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", OPERATOR, duty, opened],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), daemon=True)
        if self.secrets:
            watcher.start()
        job = Job(process, log)
        try:
            yield job
        finally:
            for pid in (*descendants(process.pid), process.pid):
                kill_if_there(pid)
            process.wait()
            over.set()
            if self.secrets:
                watcher.join()

    def run(self, duty: str, run: Any, settings: Mapping[str, Any], urls: Mapping[str, str]) -> str:
        """The log of a job that ended well."""
        with self.submitted(duty, run, settings, urls) as job:
            code = job.wait()
            assert code == 0, job.text()[-6000:]
        return job.text()

    def _watch(self, over: threading.Event) -> None:
        """Every command line of this machine while a job runs, to see that no secret is in one."""
        while not over.wait(0.2):
            for folder in Path("/proc").glob("[0-9]*"):
                text = command_line(int(folder.name))
                self.seen |= {secret for secret in self.secrets if secret in text}


@dataclass
class Job:
    """A submitted job."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 800) -> int:
        return self.process.wait(seconds)

    @property
    def running(self) -> bool:
        return self.process.poll() is None


def command_line(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it ended meanwhile


def passwords(urls: Mapping[str, str]) -> tuple[str, ...]:
    return tuple({found[1] for url in urls.values() if (found := re.search(r":([^:@/]+)@", url))})
