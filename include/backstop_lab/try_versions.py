"""Proves the ranges of versions that pyproject.toml declares, at both ends: the oldest versions on the oldest Python, and the
newest on the newest Python. `make test` covers the newest versions on the interpreter that `make setup` found.

Each end has an environment of its own below build/versions, which is made again when its lock changes; with `--environments`
only these are made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backstop_lab.setup import (
    JAVA_HOME_FILE,
    LOCK,
    ROOT,
    UV_ENV,
    SetupError,
    read_pip_settings,
    retried,
    run,
    uv_environment,
)

TESTS = ROOT / "tests" / "versions" / "tests.txt"
"""What touches a library: a test file, or one test of it, on each line."""


@dataclass(frozen=True)
class End:
    """One end of the declared ranges."""

    name: str
    python: str
    lock: Path

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "versions" / self.name


ENDS = (
    End("oldest", "3.11", ROOT / "tests" / "versions" / "oldest.lock"),
    End("newest", "3.13", LOCK),
)


def find_python(version: str) -> str:
    """An interpreter of this version: on the path, or one that pyenv installed and did not switch on. SetupError without one."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    installed = sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    for candidate in (shutil.which(name), *map(str, installed)):
        if (
            candidate is not None
            and subprocess.run(
                [candidate, "-c", "pass"], check=False, capture_output=True
            ).returncode
            == 0
        ):
            return candidate
    raise SetupError(
        f"There is no Python {version} here, neither on the path nor of pyenv. Install it: one end of the declared versions is tried "
        "on it."
    )


def make_environment(end: End) -> Path:
    """The interpreter of an environment with exactly what the end's lock names; SetupError if this machine has no such Python."""
    venv, marker = end.folder / "venv", end.folder / "made.json"
    python = venv / "bin" / "python"
    digest = hashlib.sha256(end.lock.read_bytes()).hexdigest()
    wanted = {"lock": digest, "python": end.python, "root": str(ROOT)}
    if marker.exists() and json.loads(marker.read_text()) == wanted and python.exists():
        return python
    marker.unlink(missing_ok=True)
    end.folder.mkdir(parents=True, exist_ok=True)
    uv, env = (
        str(UV_ENV / "bin" / "uv"),
        uv_environment(read_pip_settings(UV_ENV / "bin" / "python")),
    )
    run([uv, "venv", "-q", "--clear", "--python", find_python(end.python), str(venv)], env)
    install = [uv, "pip", "sync", "-q", "--require-hashes", "--python", str(python), str(end.lock)]
    retried(f"Installing the {end.name} versions", lambda: run(install, env))
    marker.write_text(json.dumps(wanted))
    return python


def start_tests(end: End, python: Path) -> subprocess.Popen[bytes]:
    """pytest on the listed tests; its output goes to a file in the end's folder."""
    tests = [
        line.partition("#")[0].strip()
        for line in TESTS.read_text(encoding="utf-8").splitlines()
        if line.partition("#")[0].strip()
    ]
    # Spark's shared classes are those of another version.
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    env = dict(
        os.environ,
        PYTHONPATH=str(ROOT / "include"),
        PYSPARK_PYTHON=str(python),
        PYSPARK_DRIVER_PYTHON=str(python),
        JAVA_HOME=JAVA_HOME_FILE.read_text(encoding="utf-8").strip(),
        SPARK_SUBMIT_OPTS=options,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    with (end.folder / "tests.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def main(arguments: Sequence[str] = ()) -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running: list[tuple[End, subprocess.Popen[bytes]]] = []
    try:
        if "--environments" in arguments:
            for end in ENDS:
                make_environment(end)
            return 0
        for end in ENDS:
            python = make_environment(end)
            running.append((end, start_tests(end, python)))
        failed = False
        for end, process in running:
            failed |= process.wait() != 0
            print(f"\n{end.name} versions on Python {end.python}:", flush=True)
            print((end.folder / "tests.log").read_text(encoding="utf-8", errors="replace"))
        print(f"Both ends tried in {time.monotonic() - started:.0f} s", flush=True)
        return 1 if failed else 0
    except SetupError as refused:
        print(f"\nStopped: {refused}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    finally:
        for _, process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # pytest then ends the servers of its fixtures
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
