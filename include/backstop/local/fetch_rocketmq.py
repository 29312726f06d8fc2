"""Fetch the jars of Apache RocketMQ, once, for the tests and the demo that run it (`make rocketmq`).

`rocketmq.lock` names every jar and its SHA-256, so nothing is resolved: what is fetched is exactly that. Spark's jars hold Ivy,
which knows the central repository by itself: no Maven and no address of ours is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from backstop.local.setup import JAVA_HOME_FILE, KEPT, VENV, SetupError, maven_mirror, retried, run, step

VERSION = "5.3.3"
LOCK = Path(__file__).with_name("rocketmq.lock")
HOME = KEPT / "rocketmq" / VERSION
"""The jars; a server gets a folder of its own for all that it writes."""
_MARK = ".complete"


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    organisation: str
    name: str
    version: str
    classifier: str
    sha256: str

    @property
    def file(self) -> str:
        return "-".join(part for part in (self.name, self.version, self.classifier) if part) + ".jar"


def locked() -> list[Jar]:
    found = []
    for line in LOCK.read_text().splitlines():
        if not line.startswith("#"):
            coordinate, sha256 = line.split(" ")
            organisation, name, version, *classifier = coordinate.split(":")
            found.append(Jar(organisation, name, version, classifier[0] if classifier else "", sha256))
    return found


def installed() -> bool:
    """Whether the jars of this very lock are there, all of them."""
    mark = HOME / _MARK
    return mark.exists() and mark.read_text() == _lock_digest()


def fetch() -> None:
    """The jars in place: fetched, compared with the lock, and put there as a whole or not at all."""
    KEPT.mkdir(exist_ok=True)
    with open(KEPT / "rocketmq.lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two `make` at once: the second finds it done
        if installed():
            return
        with step(f"RocketMQ {VERSION}"):
            retried("Fetching RocketMQ", _download)


def _download() -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as made:
        folder = Path(made)
        jars = locked()
        found = _by_ivy(folder, jars) or _by_maven(folder, jars)
        if found is None:
            raise SetupError(
                "The jars of RocketMQ could not be fetched; set DEFAULT_ARTIFACT_REPOSITORY to a Maven repository that this "
                "machine reaches"
            )
        whole = folder / "whole"
        whole.mkdir()
        for jar in jars:
            fetched = found / jar.file
            if not fetched.is_file():
                raise SetupError(f"{jar.file} was not fetched")
            if hashlib.sha256(fetched.read_bytes()).hexdigest() != jar.sha256:
                raise SetupError(f"What was fetched is not {jar.file} (wrong SHA-256)")
            fetched.replace(whole / jar.file)
        (whole / _MARK).write_text(_lock_digest())
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.parent.mkdir(exist_ok=True)
        whole.replace(HOME)


def _by_ivy(folder: Path, jars: Sequence[Jar]) -> Path | None:
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or maven_mirror()
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (folder / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir={quoteattr(str(folder / "cache"))}/>'
        f'<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>'
    )
    artifacts: dict[tuple[str, str, str], str] = {}
    for jar in jars:
        classifier = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
        module = (jar.organisation, jar.name, jar.version)
        artifacts[module] = artifacts.get(module, "") + f'<artifact name={quoteattr(jar.name)} type="jar"{classifier}/>'
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="backstop" module="setup"/>'
        "<dependencies>"
        + "".join(
            f'<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(version)} transitive="false">'
            f"{wanted}</dependency>"
            for (organisation, name, version), wanted in artifacts.items()
        )
        + "</dependencies></ivy-module>"
    )
    ivy = next(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"), None)
    if ivy is None or not JAVA_HOME_FILE.exists():
        raise SetupError("`make setup` has not run: there is no Spark, or no Java, to fetch it with")
    java = Path(JAVA_HOME_FILE.read_text().strip()) / "bin" / "java"
    return _tried(folder, "fetched", [
        str(java), f"-Divy.default.ivy.user.dir={folder}", "-jar", str(ivy), "-settings", str(folder / "settings.xml"),
        "-ivy", str(folder / "ivy.xml"), "-retrieve", f"{folder}/fetched/[artifact]-[revision](-[classifier]).[ext]",
    ])  # fmt: skip


def _by_maven(folder: Path, jars: Sequence[Jar]) -> Path | None:
    """Maven knows mirrors with a login, which Ivy here does not."""
    if shutil.which("mvn") is None:
        return None
    dependencies = "".join(
        f"<dependency><groupId>{jar.organisation}</groupId><artifactId>{jar.name}</artifactId><version>{jar.version}</version>"
        + (f"<classifier>{jar.classifier}</classifier>" if jar.classifier else "")
        + "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for jar in jars
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>backstop</groupId>'
        f"<artifactId>setup</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    return _tried(folder, "copied", [
        "mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={folder}/copied",
        f"-Dmaven.repo.local={folder}/m2",
    ])  # fmt: skip


def _tried(folder: Path, into: str, command: list[str]) -> Path | None:
    """The folder that the command filled; null when it failed, which it says: the other way is tried next."""
    try:
        run(command, cwd=folder)
    except SetupError as failed:
        print(f"  {failed}", file=sys.stderr)
        return None
    return folder / into


def _lock_digest() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()


def main() -> int:
    try:
        fetch()
    except (SetupError, OSError, subprocess.SubprocessError) as refused:
        print(f"\nRocketMQ is not here, and its tests will fail: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
