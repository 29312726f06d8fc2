"""The images of docker-compose.yaml as folders, put together from this machine.

Backstop's image follows `docker/Dockerfile`: its variables, its user, the folders that it makes, the files
that it copies, the wheel. Of the base images only what the services rely on is here, with short entry points
of ours that do the same as theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compose_file import ROOT

from backstop_lab.servers.postgres import installed as postgres_programs
from backstop_lab.servers.valkey import installed as valkey

VENV = Path(sys.prefix)
SITE = Path(sysconfig.get_paths()["purelib"])
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What the second compiler and a parallel collector give a job of seconds is less than they cost."""
FROM_THE_MACHINE = ("nsswitch.conf", "ld.so.cache", "alternatives", "ssl/certs", "java-17-openjdk")
"""Parts of /etc that programs in /usr point to."""

DUMB_INIT = """#!/bin/bash
# Stands in for dumb-init: process 1, which reaps, and hands SIGTERM on to the command's session.
[ "$1" = -- ] && shift
setsid "$@" &
trap 'kill -TERM -$!' TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code
"""
AIRFLOW = """#!/bin/bash
# Stands in for the Airflow image's entry point, whose `airflow db check` costs the start of an Airflow.
set -euo pipefail
export LD_PRELOAD="/usr/lib/$(uname -m)-linux-gnu/libstdc++.so.6"
[ "$(id -g)" = 0 ] || [ "$(id -u)" = 50000 ] || { echo "the image wants group 0" >&2; exit 1; }
umask 0002
check="import os, psycopg2
psycopg2.connect(os.environ['AIRFLOW__DATABASE__SQL_ALCHEMY_CONN'].replace('+psycopg2', '')).close()"
for try in {1..20}; do python3 -c "$check" && break; [ "$try" -lt 20 ] || exit 1; sleep 3; done
case "$1" in airflow|bash|python) exec "$@" ;; *) exec airflow "$@" ;; esac
"""
POSTGRES = """#!/bin/bash
# Stands in for the PostgreSQL image's entry point.
set -eo pipefail
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" && chown -R postgres "$PGDATA" && chmod 700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --clear-groups -- "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile=<(echo "${POSTGRES_PASSWORD:?}") $POSTGRES_INITDB_ARGS
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    pg_ctl -w -o "-c listen_addresses=''" start
    for script in /docker-entrypoint-initdb.d/*.sh; do "$script"; done
    pg_ctl -w -m fast stop
fi
exec "$@"
"""
REDIS_CLI = f"""#!{sys.executable}
# Stands in for redis-cli, which no wheel brings: `redis-cli -p PORT ping`.
import os, sys, redis
assert sys.argv[1] == "-p" and sys.argv[3:] == ["ping"]
print("PONG" if redis.Redis(port=int(sys.argv[2]), password=os.environ["REDISCLI_AUTH"]).ping() else "")
"""


@dataclass(frozen=True)
class Image:
    """A root file system without /usr, what lies over /usr, and what the image sets for a container."""

    root: Path
    user: tuple[int, int]
    entrypoint: Sequence[str]
    environment: dict[str, str]
    workdir: str = "/"
    lower: dict[str, str] = field(default_factory=dict)
    """Folders of the machine under which the image has more: mount point -> what lies over it."""


def _tree(folder: Path, name: str, uid: int, home: str) -> Path:
    """A root with one user besides root, and places for what is mounted."""
    for place in ("usr", "proc", "sys", "dev", "run", "root", "var/lib", "opt", "tmp", ".old"):
        (folder / place).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "var/run").symlink_to("/run")
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if (there := Path("/", link)).is_symlink():
            (folder / link).symlink_to(there.readlink())
    etc = folder / "etc"
    etc.mkdir()
    group = 0 if name == "airflow" else uid
    (etc / "passwd").write_text(
        f"root:x:0:0:root:/root:/bin/bash\n{name}:x:{uid}:{group}:{name}:{home}:/bin/bash\n"
    )
    (etc / "group").write_text(f"root:x:0:\n{name}:x:{uid}:\n")
    for part in FROM_THE_MACHINE:
        if (source := Path("/etc", part)).is_dir():
            shutil.copytree(source, etc / part, symlinks=True)
        elif source.exists():
            shutil.copy(source, etc / part)
    for made in ("hosts", "hostname", "resolv.conf"):
        (etc / made).touch()
    for program in machine_programs():
        (folder / program.relative_to("/")).mkdir(parents=True, exist_ok=True)
    _owned(folder / home.lstrip("/"), uid, group)
    return folder


def machine_programs() -> list[Path]:
    """Programs outside /usr, which a container sees at the same place: Python, our environment, Java."""
    java = Path(os.environ["JAVA_HOME"]).resolve()
    return [path for path in (Path(sys.base_prefix), VENV, java) if not path.is_relative_to("/usr")]


def _owned(folder: Path, uid: int, gid: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, uid, gid)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def postgres(folder: Path) -> Image:
    root = _tree(folder / "root", "postgres", 999, "/var/lib/postgresql")
    _owned(root / "var/lib/postgresql/data", 999, 999)
    _program(folder / "usr/local/bin/docker-entrypoint.sh", POSTGRES)
    _owned(root / "run/postgresql", 999, 999)
    variables = {"PATH": f"{postgres_programs('16')}:{PATH}", "PGDATA": "/var/lib/postgresql/data"}
    return Image(
        root, (0, 0), ["docker-entrypoint.sh"], variables, lower={"/usr": str(folder / "usr")}
    )


def redis(folder: Path) -> Image:
    root = _tree(folder / "root", "redis", 999, "/home/redis")
    _owned(root / "data", 999, 999)
    programs = folder / "usr/local/bin"
    _program(programs / "redis-cli", REDIS_CLI)
    (programs / "redis-server").symlink_to(valkey())
    return Image(root, (0, 0), [], {"PATH": PATH}, "/data", {"/usr": str(folder / "usr")})


def backstop(folder: Path) -> Image:
    """The last stage of the Dockerfile, on what the Airflow image brings."""
    root = _tree(folder / "root", "airflow", 50000, "/home/airflow")
    for place in ("opt/airflow", "opt/airflow/dags", "opt/airflow/logs"):
        _owned(root / place, 50000, 0)
        (root / place).chmod(0o775)
    (root / "home/airflow/.local").symlink_to(VENV)
    (root / "opt/java").symlink_to(Path(os.environ["JAVA_HOME"]).resolve())
    _program(root / "entrypoint", AIRFLOW)
    _program(folder / "usr/bin/dumb-init", DUMB_INIT)
    last = re.sub(r"\\\n\s*", "", DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :])
    for made in re.findall(r"install -d -o airflow -g root ([^&\n]*)", last):
        for place in made.split():
            _owned(root / place.lstrip("/"), 50000, 0)
    for copied in re.findall(r"(?m)^COPY (?!--from)(.*)$", last):
        *sources, target = copied.split()
        for source in sources:
            shutil.copy(ROOT / source, root / target.lstrip("/"))
    site = folder / "site"
    _install_wheel(site)
    (root / "opt/backstop/dags").symlink_to(SITE / "backstop" / "dags")
    variables = {
        "PATH": f"/home/airflow/.local/bin:{PATH}",
        "VIRTUAL_ENV": "/home/airflow/.local",
        "AIRFLOW_HOME": "/opt/airflow",
        "AIRFLOW_UID": "50000",
        "AIRFLOW_USER_HOME_DIR": "/home/airflow",
        "DUMB_INIT_SETSID": "1",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "JAVA_TOOL_OPTIONS": SHORT_JOBS,
    }
    for line in re.findall(r"(?m)^ENV (.*)$", last):
        variables |= dict(word.split("=", 1) for word in line.split())
    entrypoint = ["/usr/bin/dumb-init", "--", "/entrypoint"]
    lower = {"/usr": str(folder / "usr"), str(SITE): str(site)}
    return Image(root, (50000, 0), entrypoint, variables, "/opt/airflow", lower)


def _install_wheel(site: Path) -> None:
    """Our wheel over the locked libraries; no container has the source tree."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(site.parent)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (wheel,) = site.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    compiled = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "-s",
        str(site),
        "-p",
        str(SITE),
        str(site),
    ]
    subprocess.run(compiled, check=True, timeout=600)


IMAGES = {"postgres": postgres, "redis": redis, "backstop": backstop}
