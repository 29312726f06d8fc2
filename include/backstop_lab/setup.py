"""Make the project ready to run: interpreter and Java checked, locked dependencies and the JDBC driver in
place.

Runs before any dependency exists, so it uses the standard library only and keeps to syntax that an old
Python can read: a Python that is too old gets a sentence instead of a syntax error. A second run costs
milliseconds, because every `make` target asks for it.
"""

from __future__ import annotations

import sys

# Run as a script, Python puts this folder first on its path, and `platform.py` here would hide the
# standard one.
if sys.path and sys.path[0].rstrip("/").endswith("backstop_lab"):
    sys.path.pop(0)

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
UV_ENV = ROOT / ".uv"
VENV = ROOT / ".venv"
KEPT = ROOT / ".local"
MARKER = VENV / "backstop-setup.json"
JAVA_HOME_FILE = KEPT / "java_home"
JDBC_VERSION = "42.7.8"
JDBC_COORDINATE = f"org.postgresql:postgresql:{JDBC_VERSION}"
JDBC_SHA256 = "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"
JDBC_JAR = KEPT / "jars" / f"postgresql-{JDBC_VERSION}.jar"
SPARK_CLASSES = KEPT / "spark.jsa"
"""Spark's classes as the Java runtime shares them between its processes: a job starts seconds sooner (class data sharing)."""
SMALL_JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
rows = spark.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS part", "cast(id AS string) AS text", "current_timestamp() AS at")
counted = rows.groupBy("part").count()
columns = "part long, id long, text string, at timestamp, count long"
joined = rows.join(counted, "part").mapInArrow(lambda batches: batches, columns)
assert joined.repartition(2, "part").filter("length(text) > 0").count() == 100
spark.createDataFrame([(1, "a")], "id long, text string").createOrReplaceTempView("one")
spark.sql("SELECT * FROM one ORDER BY id").collect()
spark.stop()
"""
PYTHONS = ((3, 11), (3, 14))
DOWNLOAD_ATTEMPTS = 3
DOWNLOAD_SECONDS = 900


class SetupError(Exception):
    """What is missing, and the command that helps, in one sentence for a person."""


# -- what the machine must bring -------------------------------------------------------------------------


def supported(version: Sequence[int]) -> bool:
    return PYTHONS[0] <= tuple(version[:2]) < PYTHONS[1]


def use_supported_python() -> None:
    """Go on under a Python that the lock was made for, when this one is not; refuse when there is none."""
    if not supported(sys.version_info[:2]):
        for name in ("python3.13", "python3.12", "python3.11"):
            found = shutil.which(name)
            if (
                found
                and subprocess.run(
                    [found, "-c", "pass"], check=False, capture_output=True
                ).returncode
                == 0
            ):
                os.execv(found, [found, "-I", str(Path(__file__).resolve())])
        raise SetupError(
            f"Backstop needs Python 3.11, 3.12 or 3.13, and `python3` is {sys.version_info[0]}."
            f"{sys.version_info[1]}; on Debian 12: {apt('python3 python3-venv')}"
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise SetupError(
            f"This Python cannot make virtual environments (no ensurepip); on Debian: {apt('python3-venv')}"
        ) from None


def apt(packages: str) -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {packages}"


def java_candidates() -> list[Path]:
    """Every java that may be there, the one that Spark would take first."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parents[1])
    homes += sorted(Path("/usr/lib/jvm").glob("*/"), reverse=True)
    return [home / "bin" / "java" for home in homes if (home / "bin" / "java").is_file()]


def java_version(java: Path) -> int:
    """The major version of a java that Spark can run on, or 0.

    The incubator module is asked for because trimmed runtimes lack it and Spark fails without it.
    """
    asked = subprocess.run(
        [str(java), "--add-modules", "jdk.incubator.vector", "-version"],
        check=False,
        capture_output=True,
        text=True,
    )
    found = re.search(r'version "(\d+)', asked.stderr)
    return int(found.group(1)) if asked.returncode == 0 and found else 0


def find_java() -> Path:
    """The home of a Java 17 or newer, or a SetupError that says how to get one."""
    candidates = java_candidates()
    for java in candidates:
        if java_version(java) >= 17:
            return java.parents[1]
    seen = f" (found only {', '.join(map(str, candidates))})" if candidates else ""
    raise SetupError(
        f"Spark needs a full Java 17 or newer and there is none{seen}; "
        f"on Debian: {apt('openjdk-17-jre-headless')}"
    )


# -- registries, as this user has set them up ------------------------------------------------------------


def uv_environment(pip_settings: dict[str, str]) -> dict[str, str]:
    """The environment for uv, which does not read pip's settings: index, certificates and proxy are handed
    over."""
    env = dict(os.environ, UV_PYTHON_DOWNLOADS="never")
    env.pop("VIRTUAL_ENV", None)
    handed_over = {
        "index-url": ("UV_DEFAULT_INDEX", ("UV_INDEX_URL", "UV_CONFIG_FILE")),
        "extra-index-url": ("UV_INDEX", ("UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")),
        "trusted-host": ("UV_INSECURE_HOST", ()),
        "cert": ("SSL_CERT_FILE", ()),
        "proxy": ("ALL_PROXY", ("HTTPS_PROXY", "https_proxy")),
    }
    for setting, (variable, instead) in handed_over.items():
        if setting in pip_settings and not any(name in env for name in (variable, *instead)):
            env[variable] = " ".join(pip_settings[setting].split())
    links = [
        link
        for link in pip_settings.get("find-links", "").split()
        if "://" in link or os.path.isdir(link)
    ]
    if links:
        env.setdefault("UV_FIND_LINKS", ",".join(links))
    env.setdefault("UV_HTTP_TIMEOUT", "180")
    if not os.access(os.path.expanduser("~"), os.W_OK):
        env.setdefault("UV_CACHE_DIR", str(KEPT / "uv-cache"))
    return env


def read_pip_settings(python: Path) -> dict[str, str]:
    """What `pip config list` says, the more specific place winning: global, install, environment."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    )
    settings: dict[str, str] = {}
    for place in ("global.", "install.", ":env:."):
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(place):
                settings[name[len(place) :]] = value.strip("'\"").replace("\\n", " ")
    return settings


def maven_mirror() -> str | None:
    """The address that the user's Maven settings put in place of the central repository, if any."""
    settings = Path.home() / ".m2" / "settings.xml"
    if not settings.is_file():
        return None
    for mirror in ElementTree.parse(settings).iter():
        if mirror.tag.rpartition("}")[2] != "mirror":
            continue
        parts = {part.tag.rpartition("}")[2]: (part.text or "").strip() for part in mirror}
        if (
            set(parts.get("mirrorOf", "").split(",")) & {"*", "central", "external:*"}
            and "url" in parts
        ):
            return parts["url"].rstrip("/") + "/"
    return None


# -- the steps -------------------------------------------------------------------------------------------


def run(arguments: list[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run one command; its output is shown only when it fails."""
    try:
        done = subprocess.run(
            arguments,
            check=False,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as timed_out:
        raise SetupError(f"`{arguments[0]}` did not end within {DOWNLOAD_SECONDS} s") from timed_out
    if done.returncode != 0:
        raise SetupError(
            f"`{' '.join(arguments[:4])} ...` failed:\n" + "\n".join(done.stdout.splitlines()[-15:])
        )


def retried(what: str, attempt: Callable[[], None]) -> None:
    """Try something that downloads a bounded number of times, with a growing pause."""
    for number in range(1, DOWNLOAD_ATTEMPTS + 1):
        try:
            attempt()
            return
        except SetupError as failed:
            if number == DOWNLOAD_ATTEMPTS:
                raise SetupError(
                    f"{what} failed {number} times; nothing half-made is used, so run `make setup` again "
                    f"when the registry can be reached.\n{failed}"
                ) from failed
            print(
                f"  {what}: attempt {number} of {DOWNLOAD_ATTEMPTS} failed, trying again",
                flush=True,
            )
            time.sleep(2.0 * number)


@contextlib.contextmanager
def step(label: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"  {label} ", end="", flush=True)
    yield
    print("." * max(3, 66 - len(label)) + f" {time.monotonic() - started:6.1f} s", flush=True)


def make_installer() -> None:
    """The small environment that holds uv, which installs the big one."""
    if not (UV_ENV / "bin" / "python").exists():
        run([sys.executable, "-m", "venv", "--clear", str(UV_ENV)])
    if not (UV_ENV / "bin" / "uv").exists():
        pip = [str(UV_ENV / "bin" / "python"), "-m", "pip", "install", "-q", "uv"]
        retried("Installing uv", lambda: run(pip))


def sync_environment() -> None:
    """`.venv` with exactly what the lock names, the source tree on its path, and `backstop` as a command."""
    env = uv_environment(read_pip_settings(UV_ENV / "bin" / "python"))
    uv = str(UV_ENV / "bin" / "uv")
    python = VENV / "bin" / "python"
    MARKER.unlink(missing_ok=True)
    kept = False
    if (
        python.exists()
    ):  # at this very place, and of this Python? An environment that was moved is made anew
        asked = subprocess.run(
            [str(python), "-c", "import sys; print(sys.prefix, *sys.version_info[:2])"],
            check=False,
            capture_output=True,
            text=True,
        )
        kept = asked.stdout.split() == [str(VENV), *map(str, sys.version_info[:2])]
    if not kept:
        run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(VENV)], env)
    install = [uv, "pip", "sync", "-q", "--require-hashes", "--python", str(python), str(LOCK)]
    retried("Installing the locked dependencies", lambda: run(install, env))
    (packages,) = VENV.glob("lib/python3*/site-packages")
    (packages / "backstop_source.pth").write_text(f"{ROOT / 'include'}\n")
    command = VENV / "bin" / "backstop"
    command.write_text(
        f"#!{python}\nimport sys\n\nfrom backstop.cli import main\n\nsys.exit(main())\n"
    )
    command.chmod(0o755)


def has_driver(jar: Path) -> bool:
    return jar.is_file() and hashlib.sha256(jar.read_bytes()).hexdigest() == JDBC_SHA256


def fetch_driver(java_home: Path) -> None:
    """The PostgreSQL JDBC driver, once: from the local Maven repository, through Spark, or through Maven."""
    if has_driver(JDBC_JAR):
        return
    JDBC_JAR.parent.mkdir(parents=True, exist_ok=True)
    in_maven = (
        Path.home() / ".m2/repository/org/postgresql/postgresql" / JDBC_VERSION / JDBC_JAR.name
    )
    if has_driver(in_maven):
        keep_driver(in_maven)
    else:
        retried("Fetching the JDBC driver", lambda: download_driver(java_home))


def download_driver(java_home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        found = resolve_by_spark(Path(folder), java_home)
        if found is None and shutil.which("mvn"):
            found = resolve_by_maven(Path(folder))
        if found is None:
            raise SetupError(
                f"{JDBC_COORDINATE} could not be resolved; set DEFAULT_ARTIFACT_REPOSITORY to a Maven "
                f"repository that this machine reaches, or put the file at {JDBC_JAR}"
            )
        if not has_driver(found):
            raise SetupError(
                f"The JDBC driver that was fetched is not {JDBC_COORDINATE} (wrong SHA-256)"
            )
        keep_driver(found)


def keep_driver(found: Path) -> None:
    partial = JDBC_JAR.with_suffix(f".{os.getpid()}")
    shutil.copyfile(found, partial)
    partial.replace(JDBC_JAR)


def resolve_by_spark(folder: Path, java_home: Path) -> Path | None:
    """Spark's own `--packages` needs no Maven; its caches go to our folder, so that no home is needed."""
    program = folder / "nothing.py"
    program.write_text("")
    python = str(VENV / "bin" / "python")
    env = dict(
        os.environ, JAVA_HOME=str(java_home), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python
    )
    env.pop("SPARK_HOME", None)
    mirror = maven_mirror()
    if mirror:
        env.setdefault("DEFAULT_ARTIFACT_REPOSITORY", mirror)
    with contextlib.suppress(SetupError):
        run(
            [
                str(VENV / "bin" / "spark-submit"),
                "--master",
                "local[1]",
                "--packages",
                JDBC_COORDINATE,
                "--conf",
                f"spark.jars.ivy={folder}/ivy",
                "--conf",
                "spark.ui.enabled=false",
                str(program),
            ],
            env,
            folder,
        )
    return next(folder.glob(f"ivy/jars/*postgresql-{JDBC_VERSION}.jar"), None)


def resolve_by_maven(folder: Path) -> Path | None:
    """Maven knows mirrors with a login, which Spark's resolver does not."""
    with contextlib.suppress(SetupError):
        run(
            [
                "mvn",
                "-q",
                "-B",
                "dependency:get",
                f"-Dartifact={JDBC_COORDINATE}",
                "-Dtransitive=false",
                f"-Dmaven.repo.local={folder}/m2",
            ]
        )
    return next(folder.glob(f"m2/org/postgresql/postgresql/*/{JDBC_JAR.name}"), None)


def share_spark_classes(java_home: Path) -> None:
    """Runs a small Spark job, which leaves its classes in SPARK_CLASSES. Without them every job works, and starts slower."""
    SPARK_CLASSES.unlink(missing_ok=True)
    python = str(VENV / "bin" / "python")
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        made, program = Path(folder) / SPARK_CLASSES.name, Path(folder) / "small_job.py"
        program.write_text(SMALL_JOB)
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={made}"
        env = dict(
            os.environ,
            JAVA_HOME=str(java_home),
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_SUBMIT_OPTS=options,
        )
        env.update(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
        for name in ("SPARK_HOME", "JDK_JAVA_OPTIONS"):
            env.pop(name, None)
        with contextlib.suppress(SetupError):
            run(
                [
                    str(VENV / "bin" / "spark-submit"),
                    "--master",
                    "local[2]",
                    "--jars",
                    str(JDBC_JAR),
                    str(program),
                ],
                env,
                Path(folder),
            )
            if made.exists():
                made.replace(SPARK_CLASSES)


# -- the whole -------------------------------------------------------------------------------------------


def fingerprint() -> dict[str, str]:
    digest = hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    return {"lock": digest, "root": str(ROOT)}


def already_done() -> bool:
    """Whether a finished set-up for this lock, at this place, is there with its interpreter, Java and
    driver."""
    try:
        marked = json.loads(MARKER.read_text())
    except (OSError, ValueError):
        return False  # there is none, or its writing was cut off
    return (
        marked == fingerprint()
        and (VENV / "bin" / "python").exists()
        and JDBC_JAR.exists()
        and JAVA_HOME_FILE.exists()
        and (Path(JAVA_HOME_FILE.read_text().strip()) / "bin" / "java").exists()
    )


def main() -> int:
    try:
        use_supported_python()
        KEPT.mkdir(exist_ok=True)
        with open(KEPT / "setup.lock", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # two `make` at once: the second finds it done
            if already_done():
                return 0
            set_up()
    except SetupError as refused:
        print(f"\nSet-up stopped: {refused}", file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk
        print(
            f"\nSet-up stopped: {error}. Nothing half-made is used: fix this, then run it again.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nSet-up stopped. Nothing half-made is used: run it again.", file=sys.stderr)
        return 130
    return 0


def set_up() -> None:
    started = time.monotonic()
    print("Setting up (once):", flush=True)
    with step("Java"):
        java_home = find_java()
    with step("Installer (.uv)"):
        make_installer()
    with step("Locked dependencies (.venv)"):
        sync_environment()
    with step(f"PostgreSQL JDBC driver {JDBC_VERSION}"):
        fetch_driver(java_home)
    with step("Spark's classes, to be shared (optional)"):
        share_spark_classes(java_home)
    JAVA_HOME_FILE.write_text(f"{java_home}\n")
    MARKER.write_text(json.dumps(fingerprint()))
    print(f"Ready in {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
