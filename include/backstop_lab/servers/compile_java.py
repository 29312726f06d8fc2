"""Compile Java sources with the compiler among RocketMQ's jars: no JDK is needed, and each text is compiled once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from backstop_lab.servers.child import LocalServerError
from backstop_lab.servers.fetch_rocketmq import HOME, jars
from backstop_lab.servers.java import java
from backstop_lab.setup import KEPT

CLASSES = KEPT / "rocketmq" / "classes"


def class_path(*folders: Path) -> str:
    """RocketMQ's jars, the PostgreSQL driver, and the folders."""
    return os.pathsep.join([*jars(), *_driver(), *(str(folder) for folder in folders)])


def compiled(
    sources: Sequence[Path],
    services: dict[str, str] | None = None,
    libraries: Sequence[str] = (),
) -> Path:
    """The folder of the classes of these sources; `services`: interface -> our class, as RocketMQ looks them up; `libraries`: further
    jars that they use."""
    digest = hashlib.sha256(repr((services, [Path(jar).name for jar in libraries])).encode())
    for source in sources:
        digest.update(source.read_bytes())
    CLASSES.mkdir(parents=True, exist_ok=True)
    done = CLASSES / digest.hexdigest()[:20]
    with open(CLASSES / ".lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two runs at once: the second finds it done
        if not done.exists():
            with tempfile.TemporaryDirectory(dir=CLASSES) as made:
                into = Path(made) / "whole"
                into.mkdir()
                _compile(sources, into, libraries)
                (into / "META-INF" / "service").mkdir(parents=True)
                for interface, ours in (services or {}).items():
                    (into / "META-INF" / "service" / interface).write_text(f"{ours}\n")
                shutil.move(into, done)
    return done


def _compile(sources: Sequence[Path], into: Path, libraries: Sequence[str]) -> None:
    [compiler] = HOME.glob("ecj-*.jar")
    path = os.pathsep.join([*libraries, class_path()])
    made = subprocess.run(
        [
            str(java()),
            "-XX:TieredStopAtLevel=1",
            "-cp",
            str(compiler),
            "org.eclipse.jdt.internal.compiler.batch.Main",
            "-11",
            "-nowarn",
            "-proc:none",
            "-cp",
            path,
            "-d",
            str(into),
            *map(str, sources),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if made.returncode != 0:
        raise LocalServerError(
            f"Java sources could not be compiled:\n{made.stdout}{made.stderr}",
            unaffected="Nothing was started.",
            next_step="Fix the sources that it names.",
        )


def _driver() -> list[str]:
    """The PostgreSQL driver, for sources that use it."""
    jar = os.environ.get("BACKSTOP_JDBC_JAR")
    return [jar] if jar else []
