"""Fetch pinned files from a Maven repository into one folder, once, as a whole or not at all.

Spark's jars hold Ivy, which knows the central repository by itself: no Maven and no address of ours is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from backstop_lab.setup import (
    JAVA_HOME_FILE,
    KEPT,
    VENV,
    SetupError,
    maven_mirror,
    retried,
    run,
    step,
)


@dataclass(frozen=True)
class Artifact:
    """One file of a Maven repository; `extension` is its packaging, too."""

    organisation: str
    name: str
    version: str
    classifier: str
    sha256: str
    extension: str = "jar"

    @property
    def file(self) -> str:
        return (
            "-".join(part for part in (self.name, self.version, self.classifier) if part)
            + f".{self.extension}"
        )


def as_fetched(files: Path) -> Path:
    return files


@dataclass(frozen=True)
class Wanted:
    """A program, and the folder that it is to be in."""

    name: str
    version: str
    artifacts: Sequence[Artifact]
    home: Path
    mark: str
    """A file in `home` that says: this is the whole of it."""
    marked: str = ""
    """What stands in the mark; a folder whose mark says something else is fetched anew."""
    unpack: Callable[[Path], Path] = as_fetched
    """The folder of the files -> the folder that becomes `home`."""

    def is_there(self) -> bool:
        mark = self.home / self.mark
        return mark.exists() and mark.read_text() == self.marked


def locked(lock: Path) -> list[Artifact]:
    """The files that a lock names, one a line: its coordinate and its SHA-256."""
    found = []
    for line in lock.read_text().splitlines():
        if not line.startswith("#"):
            coordinate, sha256 = line.split(" ")
            organisation, name, version, *classifier = coordinate.split(":")
            found.append(
                Artifact(organisation, name, version, classifier[0] if classifier else "", sha256)
            )
    return found


def lock_digest(lock: Path) -> str:
    """Stands in the mark of what was fetched by this very lock."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def fetch(wanted: Wanted) -> None:
    """The folder in place: every file fetched and compared with its SHA-256."""
    KEPT.mkdir(exist_ok=True)
    with open(KEPT / f"{wanted.home.parent.name}.lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two `make` at once: the second finds it done
        if wanted.is_there():
            return
        with step(f"{wanted.name} {wanted.version}"):
            retried(f"Fetching {wanted.name}", lambda: _download(wanted))


def fetch_or_say_why(wanted: Wanted) -> int:
    """As a program: its exit code."""
    try:
        fetch(wanted)
    except (SetupError, OSError, tarfile.TarError, subprocess.SubprocessError) as refused:
        print(f"\n{wanted.name} is not here, and its tests will fail: {refused}", file=sys.stderr)
        return 1
    return 0


def _download(wanted: Wanted) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as made:
        folder = Path(made)
        found = _by_ivy(folder, wanted.artifacts) or _by_maven(folder, wanted.artifacts)
        if found is None:
            raise SetupError(
                f"{wanted.name} could not be fetched; set DEFAULT_ARTIFACT_REPOSITORY to a Maven repository that this machine "
                "reaches"
            )
        whole = folder / "whole"
        whole.mkdir()
        for artifact in wanted.artifacts:
            fetched = found / artifact.file
            if not fetched.is_file():
                raise SetupError(f"{artifact.file} was not fetched")
            if hashlib.sha256(fetched.read_bytes()).hexdigest() != artifact.sha256:
                raise SetupError(f"What was fetched is not {artifact.file} (wrong SHA-256)")
            fetched.replace(whole / artifact.file)
        whole = wanted.unpack(whole)
        (whole / wanted.mark).write_text(wanted.marked)
        shutil.rmtree(wanted.home, ignore_errors=True)
        wanted.home.parent.mkdir(exist_ok=True)
        whole.replace(wanted.home)


def _by_ivy(folder: Path, artifacts: Sequence[Artifact]) -> Path | None:
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or maven_mirror()
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (folder / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir={quoteattr(str(folder / "cache"))}/>'
        f'<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>'
    )
    by_module: dict[tuple[str, str, str], str] = {}
    for one in artifacts:
        classifier = f" m:classifier={quoteattr(one.classifier)}" if one.classifier else ""
        kind = quoteattr(one.extension)
        module = (one.organisation, one.name, one.version)
        line = f"<artifact name={quoteattr(one.name)} type={kind} ext={kind}{classifier}/>"
        by_module[module] = by_module.get(module, "") + line
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="backstop" module="setup"/>'
        "<dependencies>"
        + "".join(
            f'<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(version)} transitive="false">'
            f"{lines}</dependency>"
            for (organisation, name, version), lines in by_module.items()
        )
        + "</dependencies></ivy-module>"
    )
    ivy = next(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"), None)
    if ivy is None or not JAVA_HOME_FILE.exists():
        raise SetupError(
            "`make setup` has not run: there is no Spark, or no Java, to fetch it with"
        )
    java = Path(JAVA_HOME_FILE.read_text().strip()) / "bin" / "java"
    return _tried(
        folder,
        "fetched",
        [
            str(java),
            f"-Divy.default.ivy.user.dir={folder}",
            "-jar",
            str(ivy),
            "-settings",
            str(folder / "settings.xml"),
            "-ivy",
            str(folder / "ivy.xml"),
            "-types",
            *sorted({one.extension for one in artifacts}),
            "-retrieve",
            f"{folder}/fetched/[artifact]-[revision](-[classifier]).[ext]",
        ],
    )


def _by_maven(folder: Path, artifacts: Sequence[Artifact]) -> Path | None:
    """Maven knows mirrors with a login, which Ivy here does not."""
    if shutil.which("mvn") is None:
        return None
    dependencies = "".join(
        f"<dependency><groupId>{one.organisation}</groupId><artifactId>{one.name}</artifactId><version>{one.version}</version>"
        f"<type>{one.extension}</type>"
        + (f"<classifier>{one.classifier}</classifier>" if one.classifier else "")
        + "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for one in artifacts
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>backstop</groupId>'
        f"<artifactId>setup</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    return _tried(
        folder,
        "copied",
        [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(folder / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}/copied",
            f"-Dmaven.repo.local={folder}/m2",
        ],
    )


def _tried(folder: Path, into: str, command: list[str]) -> Path | None:
    """The folder that the command filled; null when it failed, which it says: the other way is tried next."""
    try:
        run(command, cwd=folder)
    except SetupError as failed:
        print(f"  {failed}", file=sys.stderr)
        return None
    return folder / into
