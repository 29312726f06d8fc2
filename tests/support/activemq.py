"""The real ActiveMQ Classic of the tests: the demo's server (backstop_lab.servers.activemq) with more logins and redelivery."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from backstop_lab.servers.activemq import CONFIGURATION, ActiveMQServer
from backstop_lab.servers.fetch_activemq import HOME, installed
from backstop_lab.servers.java import java
from backstop_lab.servers.ports import LOOPBACK

__all__ = ["PASSWORD", "READER_PASSWORD", "ActiveMQ", "compile_java", "jars", "java"]

PASSWORD = "s3cret-of/Backstop@never:shown"
READER_PASSWORD = "secret-of-limited"
LONGEST = 3_000_000
FURTHER = {
    "<!-- further logins -->": '<authenticationUser username="limited" password="${limited.password}" groups="all"/>',
    '     <policyEntry queue=">" ': '     <policyEntry queue="first.>" prioritizedMessages="true"/>\n'
    '     <policyEntry queue=">" ',
    "<!-- further plugins -->": """
    <!-- Redelivery by the broker, for the queues under retried. alone; 1000 ms or less makes the broker refuse to start. -->
    <redeliveryPlugin fallbackToDeadLetter="true" sendToDlqIfMaxRetriesExceeded="true">
      <redeliveryPolicyMap><redeliveryPolicyMap>
        <redeliveryPolicyEntries>
          <redeliveryPolicy queue="retried.>" maximumRedeliveries="2" initialRedeliveryDelay="1001" redeliveryDelay="1001"/>
        </redeliveryPolicyEntries>
      </redeliveryPolicyMap></redeliveryPolicyMap>
    </redeliveryPlugin>""",
}


def jars(*patterns: str) -> list[str]:
    """Jars of the distribution; a pattern that finds none is a mistake of the test."""
    found: list[str] = []
    for pattern in patterns:
        some = sorted(str(jar) for jar in HOME.glob(pattern))
        assert some, pattern
        found += some
    return found


class ActiveMQ(ActiveMQServer):
    """One broker named `backstop`. `backstop` may do everything, `limited` may read but not write, `duty` may not make queues."""

    def __init__(self, directory: Path, *, without: str = "") -> None:
        """`without`: a text of the configuration that is left out."""
        if not installed():
            pytest.fail(
                f"ActiveMQ Classic is not at {HOME}, and these tests need a real one: make activemq",
                pytrace=False,
            )
        written = CONFIGURATION.read_text(encoding="utf-8")
        assert without in written
        for mark, text in FURTHER.items():
            assert mark in written
            written = written.replace(mark, text)
        passwords = {"backstop": PASSWORD, "duty": READER_PASSWORD, "limited": READER_PASSWORD}
        super().__init__(
            directory,
            passwords=passwords,
            longest=LONGEST,
            configuration=written.replace(without, "") if without else written,
        )

    def url(  # type: ignore[override]
        self,
        user: str = "backstop",
        password: str = PASSWORD,
        *,
        port: int | None = None,
        jolokia: bool = True,
    ) -> str:
        """The connection as backstop.yaml's reference names it."""
        look = f"?jolokia={quote(self.jolokia_url, safe='')}" if jolokia else ""
        return (
            f"stomp://{user}:{quote(password, safe='')}@{LOOPBACK}:{port or self.stomp_port}{look}"
        )


def compile_java(source: Path, into: Path) -> str:
    """Compiles a Java source with the compiler that the distribution brings, and returns the class path to run it."""
    libraries = [
        *jars(
            "activemq-all-*.jar",
            "lib/optional/log4j-slf4j2-impl-*.jar",
            "lib/optional/log4j-core-*.jar",
            "lib/optional/log4j-api-*.jar",
        ),
        os.environ["BACKSTOP_JDBC_JAR"],
    ]
    path = os.pathsep.join([str(into), *libraries])
    made = subprocess.run(
        [
            str(java()),
            "-cp",
            jars("lib/web/ecj-*.jar")[0],
            "org.eclipse.jdt.internal.compiler.batch.Main",
            "-11",
            "-nowarn",
            "-cp",
            path,
            "-d",
            str(into),
            str(source),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return path
