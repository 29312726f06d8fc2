"""Run a server that speaks MongoDB's protocol (mongo-java-server) as our own child: on the loopback, in memory, without logins."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from backstop_lab.servers.child import Child, LocalServerError
from backstop_lab.servers.compile_java import compiled
from backstop_lab.servers.fetch_mongodb import HOME, installed, jars
from backstop_lab.servers.java import java
from backstop_lab.servers.ports import LOOPBACK, free_port

START_SECONDS = 300.0
MAIN = Path(__file__).with_name("MongoInMemory.java")


class MongoServer:
    """One server, whose documents end with it. It is no replica set, and has neither transactions nor majorities."""

    name = "mongo-java-server"

    def __init__(
        self, directory: Path, port: int | None = None, *, heap_megabytes: int = 256
    ) -> None:
        """`heap_megabytes`: what its JVM holds at most, every document among it."""
        self.directory = directory.resolve()
        self.heap_megabytes = heap_megabytes
        self.port = port or free_port()
        self._child = Child(self.name, self.directory / "server.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def url(self, database: str) -> str:
        """The connection as backstop.yaml's reference names it."""
        return f"mongodb://{self.address}/{database}"

    def start(self) -> None:
        """Starts it empty, and returns when it takes connections."""
        if not installed():
            raise LocalServerError(
                f"mongo-java-server is not at {HOME}.",
                unaffected="Nothing was started.",
                next_step="Run `make mongodb`.",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        classes = compiled([MAIN], libraries=jars())
        self._child.start(
            [
                str(java()),
                "-Xms32M",
                f"-Xmx{self.heap_megabytes}M",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                f"-Djava.io.tmpdir={self.directory}",
                "-cp",
                os.pathsep.join([*jars(), str(classes)]),
                MAIN.stem,
                LOOPBACK,
                str(self.port),
            ],
            env=dict(os.environ),
            cwd=self.directory,
        )
        try:
            self._child.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self._child.kill()
            raise

    def stop(self) -> None:
        self._child.stop()

    def kill(self) -> None:
        self._child.kill()

    def _answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port), timeout=1.0).close()
        except OSError:
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return True
