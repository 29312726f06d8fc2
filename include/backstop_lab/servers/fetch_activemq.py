"""Fetch the official distribution of ActiveMQ Classic, once, for the tests and the demo that run it (`make activemq`)."""

from __future__ import annotations

import tarfile
from pathlib import Path

from backstop_lab.run_main import run_main
from backstop_lab.servers.fetch_from_maven import Artifact, Wanted, fetch_or_say_why
from backstop_lab.setup import KEPT

VERSION = "5.18.3"
ARCHIVE = Artifact(
    "org.apache.activemq",
    "apache-activemq",
    VERSION,
    "bin",
    "943381aa6d340707de6c42eadbf7b41b7fdf93df604156d972d50c4da783544f",
    "tar.gz",
)
HOME = KEPT / "activemq" / f"apache-activemq-{VERSION}"
"""The unpacked distribution; a server gets a folder of its own for all that it writes."""


def unpacked(files: Path) -> Path:
    """The one folder that the archive holds."""
    with tarfile.open(files / ARCHIVE.file) as archive:
        archive.extractall(files / "unpacked", filter="data")
    (found,) = (files / "unpacked").iterdir()
    return found


def jars() -> list[str]:
    """The class path: all jars at once, because classes of the distribution's own class loader cannot be shared."""
    found = [
        jar
        for folder in ("lib", "lib/optional", "lib/web")
        for jar in sorted((HOME / folder).glob("*.jar"))
    ]
    return [str(jar) for jar in (HOME / "bin" / "activemq.jar", *found)]


WANTED = Wanted("ActiveMQ Classic", VERSION, [ARCHIVE], HOME, mark=".unpacked", unpack=unpacked)


def installed() -> bool:
    return WANTED.is_there()


if __name__ == "__main__":
    run_main(lambda: fetch_or_say_why(WANTED))
