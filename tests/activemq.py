"""Run ActiveMQ Classic from its official distribution as our own child: on the loopback, over one folder, behind passwords."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest

from backstop.brokers.activemq.jolokia import Jolokia
from backstop.errors import BrokerUnavailable
from backstop.local.child import Child
from backstop.local.fetch_activemq import HOME, installed
from backstop.local.ports import LOOPBACK, free_port

PASSWORD = "s3cret-of/Backstop@never:shown"
READER_PASSWORD = "secret-of-limited"
START_SECONDS = 120.0
CONFIGURATION = Path(__file__).parent / "java" / "activemq.xml"
WEB = Path(__file__).parent / "java" / "jetty.xml"
OPENED = (
    "java.base/java.security", "java.base/java.net", "java.base/java.lang", "java.base/java.util",
    "java.naming/javax.naming.spi", "java.rmi/sun.rmi.transport.tcp", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
)  # fmt: skip


def java() -> Path:
    return Path(os.environ["JAVA_HOME"]) / "bin" / "java"


def jars(*patterns: str) -> list[str]:
    """Jars of the distribution; a pattern that finds none is a mistake of the test."""
    found: list[str] = []
    for pattern in patterns:
        some = sorted(str(jar) for jar in HOME.glob(pattern))
        assert some, pattern
        found += some
    return found


class ActiveMQ:
    """One broker named `backstop`. `backstop` may do everything, `limited` may read but not write, `duty` may not make queues."""

    def __init__(self, directory: Path, *, without: str = "") -> None:
        """`without`: a text of the configuration that is left out."""
        if not installed():
            pytest.fail(f"ActiveMQ Classic is not at {HOME}, and these tests need a real one: make activemq", pytrace=False)
        self.base = directory.resolve()
        self.stomp_port, self.openwire_port, self.web_port = free_port(), free_port(), free_port()
        self._child = Child("ActiveMQ", self.base / "server.log")
        self._prepared, self._without = False, without

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def jolokia_url(self) -> str:
        return f"http://backstop:{quote(PASSWORD, safe='')}@{LOOPBACK}:{self.web_port}/api/jolokia"

    def url(self, user: str = "backstop", password: str = PASSWORD, *, port: int | None = None, jolokia: bool = True) -> str:
        """The connection as backstop.yaml's reference names it."""
        look = f"?jolokia={quote(self.jolokia_url, safe='')}" if jolokia else ""
        return f"stomp://{user}:{quote(password, safe='')}@{LOOPBACK}:{port or self.stomp_port}{look}"

    def jolokia(self) -> Jolokia:
        return Jolokia(self.jolokia_url, timeout=10.0)

    def start(self) -> None:
        """Starts it over what an earlier life left, and returns when STOMP and Jolokia answer."""
        self._prepare()
        options = {
            "java.io.tmpdir": self.base / "tmp", "activemq.home": HOME, "activemq.base": self.base,
            "activemq.conf": self.base / "conf", "activemq.data": self.base / "data", "jetty.host": LOOPBACK,
            "jetty.port": self.web_port, "openwire.port": self.openwire_port, "stomp.port": self.stomp_port,
            "java.security.auth.login.config": self.base / "conf" / "login.config",
            "jolokia.conf": f"file:{self.base}/conf/jolokia-access.xml", "backstop.password": PASSWORD,
            "limited.password": READER_PASSWORD,
        }  # fmt: skip
        # Passwords come by the environment, not by the command line, which every user may read.
        secret = {"backstop.password", "limited.password"}
        tool_options = [f"-D{name}={value}" for name, value in options.items() if name in secret]
        self._child.start(
            [
                str(java()), "-Xms64M", "-Xmx384M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
                *(f"-D{name}={value}" for name, value in options.items() if name not in secret),
                "--add-reads=java.xml=java.logging",
                *(part for name in OPENED for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
                "-cp", f"{self.base}/conf:{HOME}/bin/activemq.jar",
                "org.apache.activemq.console.Main", "start", f"xbean:file:{self.base}/conf/activemq.xml",
            ],
            env={**os.environ, "JDK_JAVA_OPTIONS": " ".join(tool_options)},
            cwd=self.base,
        )  # fmt: skip
        try:
            self._child.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self._child.kill()
            raise

    def kill(self) -> None:
        self._child.kill()

    def _prepare(self) -> None:
        if self._prepared:
            return
        for name in ("tmp", "data"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        conf = self.base / "conf"
        shutil.copytree(HOME / "conf", conf)
        written = CONFIGURATION.read_text()
        assert self._without in written
        (conf / "activemq.xml").write_text(written.replace(self._without, "") if self._without else written)
        shutil.copyfile(WEB, conf / "jetty.xml")
        (conf / "jetty-realm.properties").write_text(f"backstop: {PASSWORD}, admin\n")
        (conf / "jetty-realm.properties").chmod(0o600)
        self._prepared = True

    def _answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.stomp_port), timeout=1.0).close()
            self.jolokia().broker_name()
        except (OSError, BrokerUnavailable):
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return True


def compile_java(source: Path, into: Path) -> str:
    """Compiles a Java source with the compiler that the distribution brings, and returns the class path to run it."""
    libraries = [
        *jars("activemq-all-*.jar", "lib/optional/log4j-slf4j2-impl-*.jar", "lib/optional/log4j-core-*.jar",
              "lib/optional/log4j-api-*.jar"),
        os.environ["BACKSTOP_JDBC_JAR"],
    ]  # fmt: skip
    path = os.pathsep.join([str(into), *libraries])
    made = subprocess.run(
        [str(java()), "-cp", jars("lib/web/ecj-*.jar")[0], "org.eclipse.jdt.internal.compiler.batch.Main", "-11", "-nowarn",
         "-cp", path, "-d", str(into), str(source)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return path
