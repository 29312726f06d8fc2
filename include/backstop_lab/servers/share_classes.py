"""Keep a Java server's classes in the form that the Java runtime shares between processes (class data sharing).

`make rocketmq` and `make activemq` write the archive once; it saves half of the computing time of a start. Java ignores an
archive that does not fit, and a server without one starts as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from backstop_lab.servers import fetch_activemq, fetch_rocketmq
from backstop_lab.servers.child import LocalServerError
from backstop_lab.servers.java import java
from backstop_lab.setup import SetupError, run, step

HOMES = {"activemq": fetch_activemq.HOME, "rocketmq": fetch_rocketmq.HOME}
JARS = {"activemq": fetch_activemq.jars, "rocketmq": fetch_rocketmq.jars}


def archive(kind: str) -> Path:
    """The archive that fits these jars at this place and this Java."""
    program = java().resolve()
    fits = f"{JARS[kind]()} {program} {program.stat().st_mtime_ns}"
    return HOMES[kind] / f"classes-{hashlib.sha256(fits.encode()).hexdigest()[:12]}.jsa"


def shared_classes(kind: str) -> list[str]:
    """Java's options for a program whose class path begins with these jars."""
    found = archive(kind)
    return [f"-XX:SharedArchiveFile={found}", "-Xlog:cds=off"] if found.exists() else []


def share_classes(kind: str) -> None:
    """Run the server once, and keep the classes that it loads."""
    home = HOMES[kind]
    with (
        step(f"{kind}'s classes, to be shared (optional)"),
        tempfile.TemporaryDirectory(dir=home.parent) as made,
    ):
        folder = Path(made)
        with _lists_classes(folder):
            _start_once(kind, folder / "server")
        # A server that is killed leaves half a line.
        lines = dict.fromkeys(
            line
            for listed in sorted(folder.glob("*.classes"))
            for line in listed.read_text().rpartition("\n")[0].splitlines()
            if not line.startswith("#")
        )
        (folder / "all").write_text("\n".join(lines) + "\n")
        written = folder / "classes.jsa"
        run(
            [
                str(java()),
                "-Xshare:dump",
                f"-XX:SharedClassListFile={folder / 'all'}",
                f"-XX:SharedArchiveFile={written}",
                "-XX:+UseSerialGC",
                "-Xlog:cds=off",
                "-cp",
                os.pathsep.join(JARS[kind]()),
            ]
        )
        written.replace(archive(kind))


@contextlib.contextmanager
def _lists_classes(folder: Path) -> Iterator[None]:
    """Each Java that is started meanwhile lists the classes that it loads, in a file of its own."""
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:DumpLoadedClassList={folder}/%p.classes"
    try:
        yield
    finally:
        del os.environ["JAVA_TOOL_OPTIONS"]
        if before is not None:
            os.environ["JAVA_TOOL_OPTIONS"] = before


def _start_once(kind: str, directory: Path) -> None:
    """Start the server until it answers."""
    if kind == "activemq":
        from backstop_lab.servers.activemq import ActiveMQServer as Server
    else:
        from backstop_lab.servers.rocketmq import RocketMQServer as Server  # type: ignore[assignment]
    with Server(directory):
        pass


def main() -> int:
    [kind] = sys.argv[1:]
    if archive(kind).exists():
        return 0
    try:
        share_classes(kind)
    except (SetupError, LocalServerError, OSError, subprocess.SubprocessError) as failed:
        print(f"\n{kind} starts without shared classes, and slower: {failed}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
