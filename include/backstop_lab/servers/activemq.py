"""Run ActiveMQ Classic from its official distribution as our own child: on the loopback, over one folder, behind passwords."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from backstop.brokers.activemq.jolokia import Jolokia
from backstop.model.errors import BrokerUnavailable
from backstop.model.private_file import read_or_generate, write_private
from backstop_lab.servers.child import Child, LocalServerError, end_leftover
from backstop_lab.servers.fetch_activemq import HOME, installed, jars
from backstop_lab.servers.java import java
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.share_classes import shared_classes

START_SECONDS = 300.0
STOP_SECONDS = 60.0
CONFIGURATION = Path(__file__).with_name("activemq.xml")
WEB = Path(__file__).with_name("activemq_jetty.xml")
LONGEST = 100 * 1024 * 1024
"""What a frame may hold, in bytes: ActiveMQ's own default."""
OPENED = (
    "java.base/java.security",
    "java.base/java.net",
    "java.base/java.lang",
    "java.base/java.util",
    "java.naming/javax.naming.spi",
    "java.rmi/sun.rmi.transport.tcp",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
)


class ActiveMQServer:
    """One broker named `backstop`. The login `backstop` may do everything, `duty` may not make queues.

    `passwords`: by login; those that are not given are generated and kept. `configuration`: the text of activemq.xml.
    """

    name = "ActiveMQ Classic"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        passwords: dict[str, str] | None = None,
        configuration: str | None = None,
        longest: int = LONGEST,
    ) -> None:
        self.directory = directory.resolve()
        self.port = self.stomp_port = port or free_port()
        self.openwire_port, self.web_port = free_port(), free_port()
        self.configuration = configuration or CONFIGURATION.read_text(encoding="utf-8")
        self._passwords, self._longest = passwords or {}, longest
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
        self.kill()

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def password(self) -> str:
        return self._password("backstop")

    @property
    def jolokia_url(self) -> str:
        return f"http://backstop:{quote(self.password, safe='')}@{LOOPBACK}:{self.web_port}/api/jolokia"

    def url(self, user: str = "backstop") -> str:
        """The connection as backstop.yaml's reference names it."""
        return (
            f"stomp://{user}:{quote(self._password(user), safe='')}@{LOOPBACK}:{self.port}"
            f"?jolokia={quote(self.jolokia_url, safe='')}"
        )

    def for_duties(self) -> str:
        return self.url("duty")

    def for_airflow(self) -> str:
        return self.for_duties()

    def jolokia(self) -> Jolokia:
        return Jolokia(self.jolokia_url, timeout=10.0)

    def start(self) -> None:
        """Starts it over what an earlier life left, and returns when STOMP and Jolokia answer."""
        self.end_leftovers()
        self._prepare()
        properties = {
            "java.io.tmpdir": self.directory / "tmp",
            "activemq.home": HOME,
            "activemq.base": self.directory,
            "activemq.conf": self.directory / "conf",
            "activemq.data": self.directory / "data",
            "jetty.host": LOOPBACK,
            "jetty.port": self.web_port,
            "openwire.port": self.openwire_port,
            "stomp.port": self.stomp_port,
            "stomp.longest": self._longest,
            "java.security.auth.login.config": self.directory / "conf" / "login.config",
            "jolokia.conf": f"file:{self.directory}/conf/jolokia-access.xml",
        }
        self._child.start(
            [
                str(java()),
                "-Xms64M",
                "-Xmx384M",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                *shared_classes("activemq"),
                *(f"-D{name}={value}" for name, value in properties.items()),
                "--add-reads=java.xml=java.logging",
                *(part for name in OPENED for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
                "-cp",
                os.pathsep.join([*jars(), f"{self.directory}/conf"]),
                "org.apache.activemq.console.Main",
                "start",
                f"xbean:file:{self.directory}/conf/activemq.xml",
            ],
            env=dict(os.environ),
            cwd=self.directory,
        )
        try:
            (self.directory / "server.pid").write_text(str(self._child.pid))
            self._child.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self._child.kill()
            raise

    def stop(self) -> None:
        """In order: what it took is on disk at its acknowledgement already."""
        self._child.stop(signal.SIGTERM, STOP_SECONDS)

    def kill(self) -> None:
        self._child.kill()

    def end_leftovers(self) -> None:
        """End a server over this directory that outlived its supervisor."""
        end_leftover(self.directory / "server.pid", self.directory, signal.SIGTERM)

    def _prepare(self) -> None:
        """Its configuration, written at every start: what whoever runs it has changed is in force then."""
        if not installed():
            raise LocalServerError(
                f"ActiveMQ Classic is not at {HOME}.",
                unaffected="Nothing was started.",
                next_step="Run `make activemq`.",
            )
        for name in ("tmp", "data"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        conf = self.directory / "conf"
        if not conf.exists():
            shutil.copytree(HOME / "conf", conf)
        (conf / "activemq.xml").write_text(self.configuration, encoding="utf-8")
        shutil.copyfile(WEB, conf / "jetty.xml")
        logins = dict.fromkeys(["backstop", "duty", *self._passwords])
        # Neither on the command line nor in the environment: Java would write that one to its log.
        secrets = "".join(f"{login}.password={self._password(login)}\n" for login in logins)
        write_private(conf / "credentials.properties", secrets)
        write_private(conf / "jetty-realm.properties", f"backstop: {self.password}, admin\n")

    def _password(self, user: str) -> str:
        given = self._passwords.get(user)
        if given is not None:
            return given
        self.directory.mkdir(parents=True, exist_ok=True)
        return read_or_generate(self.directory / f"{user}.password")

    def _answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.stomp_port), timeout=1.0).close()
            self.jolokia().broker_name()
        except (OSError, BrokerUnavailable):
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return True
