"""Fetch the official distribution of ActiveMQ Classic, once, for the tests and the demo that run it (`make activemq`).

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
from pathlib import Path
from xml.sax.saxutils import quoteattr

from backstop.local.setup import JAVA_HOME_FILE, KEPT, VENV, SetupError, maven_mirror, retried, run, step

VERSION = "5.18.3"
COORDINATE = f"org.apache.activemq:apache-activemq:{VERSION}:tar.gz:bin"
SHA256 = "943381aa6d340707de6c42eadbf7b41b7fdf93df604156d972d50c4da783544f"
HOME = KEPT / "activemq" / f"apache-activemq-{VERSION}"
"""The unpacked distribution; a server gets a folder of its own for all that it writes."""
_MARK = ".unpacked"


def installed() -> bool:
    return (HOME / _MARK).exists()


def fetch() -> None:
    """The distribution in place: fetched, compared with the pinned SHA-256, and unpacked as a whole or not at all."""
    KEPT.mkdir(exist_ok=True)
    with open(KEPT / "activemq.lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two `make` at once: the second finds it done
        if installed():
            return
        with step(f"ActiveMQ Classic {VERSION}"):
            retried("Fetching ActiveMQ Classic", _download_and_unpack)


def _download_and_unpack() -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as made:
        folder = Path(made)
        found = _resolve_by_ivy(folder) or _resolve_by_maven(folder)
        if found is None:
            raise SetupError(
                f"{COORDINATE} could not be resolved; set DEFAULT_ARTIFACT_REPOSITORY to a Maven repository that this "
                "machine reaches"
            )
        if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
            raise SetupError(f"What was fetched is not {COORDINATE} (wrong SHA-256)")
        with tarfile.open(found) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        (unpacked / _MARK).touch()
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.parent.mkdir(exist_ok=True)
        unpacked.replace(HOME)


def _resolve_by_ivy(folder: Path) -> Path | None:
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or maven_mirror()
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (folder / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir={quoteattr(str(folder / "cache"))}/>'
        f'<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>'
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="backstop" module="setup"/>'
        f'<dependencies><dependency org="org.apache.activemq" name="apache-activemq" rev="{VERSION}" transitive="false">'
        '<artifact name="apache-activemq" type="tar.gz" ext="tar.gz" m:classifier="bin"/>'
        "</dependency></dependencies></ivy-module>"
    )
    ivy = next(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"), None)
    if ivy is None or not JAVA_HOME_FILE.exists():
        raise SetupError("`make setup` has not run: there is no Spark, or no Java, to fetch it with")
    java = Path(JAVA_HOME_FILE.read_text().strip()) / "bin" / "java"
    return _tried(folder, "fetched", [
        str(java), f"-Divy.default.ivy.user.dir={folder}", "-jar", str(ivy), "-settings", str(folder / "settings.xml"),
        "-ivy", str(folder / "ivy.xml"), "-types", "tar.gz", "-retrieve", f"{folder}/fetched/[artifact].[ext]",
    ])  # fmt: skip


def _resolve_by_maven(folder: Path) -> Path | None:
    """Maven knows mirrors with a login, which Ivy here does not."""
    if shutil.which("mvn") is None:
        return None
    return _tried(folder, "copied", [
        "mvn", "-q", "-B", "dependency:copy", f"-Dartifact={COORDINATE}", f"-DoutputDirectory={folder}/copied",
        f"-Dmaven.repo.local={folder}/m2",
    ])  # fmt: skip


def _tried(folder: Path, into: str, command: list[str]) -> Path | None:
    """The file that the command fetched; null when it failed, which it says: the other way is tried next."""
    try:
        run(command, cwd=folder)
    except SetupError as failed:
        print(f"  {failed}", file=sys.stderr)
        return None
    return next((folder / into).glob("*.tar.gz"), None) if (folder / into).is_dir() else None


def main() -> int:
    try:
        fetch()
    except (SetupError, OSError, tarfile.TarError, subprocess.SubprocessError) as refused:
        print(f"\nActiveMQ Classic is not here, and its tests will fail: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
