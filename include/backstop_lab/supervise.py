"""Keep an embedded platform running behind `make up`, until `make down`: one supervisor process owns every
server."""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.model.private_file import write_private
from backstop_lab.platform import PROJECT, Platform
from backstop_lab.run_main import INTERRUPTED
from backstop_lab.servers.airflow import CALM, Airflow
from backstop_lab.servers.broker_server import BrokerServer
from backstop_lab.servers.child import (
    POLL_SECONDS,
    LocalServerError,
    uninterrupted,
    wait_until_gone,
)
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

UP_SECONDS = 900.0
DOWN_SECONDS = 120.0
NOT_UP = 3


def up(root: Path, config: Path | None) -> int:
    """Start a supervisor in the background unless one runs; return when everything is ready. Ctrl-C stops all of it."""
    started = time.monotonic()
    process = None
    try:
        with uninterrupted():
            if supervisor(root) is None:
                process = _start_supervisor(root, config)
        _wait_until_ready(root, process, started)
    except KeyboardInterrupt:
        if process is None:
            print("The platform goes on starting: another `make up` began it.", file=sys.stderr)
            return INTERRUPTED
        process.terminate()
        try:
            process.wait(DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    print(f"Up in {time.monotonic() - started:.1f} s." if process is not None else "Already up.")
    status(root, config)
    print(NEXT.format(airflow=json.loads((root / "ready.json").read_text())["Airflow"]))
    return 0


NEXT = """
Open  {airflow}  and log in as above. The DAGs run when they have something to do.
Try   make traffic   producers and consumers, until Ctrl-C; watch the DAG `reconcile` confirm their messages
      make shell     a shell in which `backstop` works on this platform: `backstop check`, `backstop runs list`
      make down      stop it; the data stays"""


def _start_supervisor(root: Path, config: Path | None) -> "subprocess.Popen[bytes]":
    root.mkdir(parents=True, exist_ok=True)
    for name in ("ready.json", "starting.txt"):
        (root / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "backstop_lab", "supervise", "--root", str(root)]
    with (root / "supervisor.log").open("w") as output:
        return subprocess.Popen(
            command + (["--config", str(config)] if config else []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=root,
        )


def _wait_until_ready(
    root: Path, process: "subprocess.Popen[bytes] | None", started: float
) -> None:
    """`process`: the supervisor, where it is ours; prints what it starts. Raises LocalServerError."""
    printed = None
    while not (root / "ready.json").exists():
        if (process is not None and process.poll() is not None) or (
            process is None and supervisor(root) is None
        ):
            raise LocalServerError(
                f"The platform did not start:\n{(root / 'supervisor.log').read_text().strip()}",
                unaffected=f"Its data lies in {root} as it was.",
                next_step="Correct what it names, then `make up` again.",
            )
        if time.monotonic() - started > UP_SECONDS:
            if process is not None:
                process.terminate()
                process.wait(DOWN_SECONDS)
            raise LocalServerError(
                f"The platform was not ready after {UP_SECONDS:.0f} s.",
                unaffected="It was stopped in order."
                if process is not None
                else "It is still starting.",
                next_step=f"Read the logs in {root}, then `make up` again.",
            )
        now = _starting(root)
        if now is not None and now != printed:
            print(f"  {time.monotonic() - started:5.1f} s  starting {now}", flush=True)
            printed = now
        time.sleep(POLL_SECONDS)


def _starting(root: Path) -> str | None:
    """What the supervisor starts at the moment."""
    file = root / "starting.txt"
    return file.read_text() or None if file.exists() else None


def down(root: Path, config: Path | None) -> int:
    """Stop the supervisor and everything it owns; servers that a killed supervisor left behind, too."""
    pid = supervisor(root)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until_gone([pid], DOWN_SECONDS)
    elif root.exists():
        Platform(root, config).end_leftovers()
    for name in ("ready.json", "starting.txt"):
        (root / name).unlink(missing_ok=True)
    print(f"Down. The data stays in {root}." if root.exists() else "Nothing was ever up.")
    return 0


def status(root: Path, config: Path | None) -> int:
    """Print where everything is; exit code 3 when it is not up."""
    pid = supervisor(root)
    ready = root / "ready.json"
    if pid is None:
        print("The platform is not up; `make up` starts it.")
        return NOT_UP
    if not ready.exists():
        print(
            f"The platform is starting: {_starting(root) or 'its supervisor'} (process {pid}). `make up` waits until it is up."
        )
        return NOT_UP
    facts = json.loads(ready.read_text())
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"  {name:<{width}}  {value}")
    return 0


def shell(root: Path, config: Path | None) -> int:  # noqa: RET503 - it becomes another program
    """Become a shell in which `backstop` works on the running platform; exit code 3 when it is not up."""
    if supervisor(root) is None or not (root / "ready.json").exists():
        return status(root, config)
    program = os.environ.get("SHELL") or "/bin/sh"
    print(
        f"`backstop` works on the platform here; `exit` leaves. Elsewhere: . {root / 'env.sh'}",
        flush=True,
    )
    os.execvpe(program, [program], {**os.environ, **Platform(root, config).environment()})


def write_environment(file: Path, environment: Mapping[str, str]) -> None:
    """What a shell reads (`. file`) for the command line to work on this platform; it holds passwords."""
    programs = str(Path(sys.executable).parent)
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environment.items())
        if name != "PATH"
    ]
    write_private(file, f'export PATH={shlex.quote(programs)}{os.pathsep}"$PATH"\n{"".join(lines)}')


def schedules(settings: Settings) -> dict[str, str]:
    """The schedules of the DAGs: those of `schedule` in the settings; the policy's intervals where nobody looks for due work."""
    policy = settings.policy
    intervals = {
        "BACKSTOP_RECONCILE_SCHEDULE": f"{policy.reconcile_interval.total_seconds():g}s",
        "BACKSTOP_SWEEP_SCHEDULE": f"{policy.sweep_interval.total_seconds():g}s",
    }
    return {
        **({} if settings.schedule.on_demand else intervals),
        # A run beside one that is at work would only be refused.
        "BACKSTOP_RECONCILE_AT_ONCE": "1",
    }


def supervise(root: Path, config: Path | None) -> int:
    """Own the servers until SIGTERM or SIGINT; end with 1, everything stopped, when one of them dies by
    itself."""
    asked_to_stop = threading.Event()
    starting = True

    def stop(*_: object) -> None:
        nonlocal starting
        asked_to_stop.set()
        if starting:
            starting = False  # a second signal must not cut the stopping short
            raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    settings = load(config or PROJECT / "backstop.yaml")
    platform = Platform(
        root, config, airflow_settings={**CALM, **schedules(settings)}, triggerer=True
    )
    try:
        platform.start(say=lambda what: write_private(root / "starting.txt", what))
        starting = False
        write_environment(root / "env.sh", platform.environment())
        facts = {
            "Airflow": platform.airflow.url,
            "login": f"admin / {platform.airflow.password}",
            "PostgreSQL": f"127.0.0.1:{platform.postgres.port}",
            platform.broker.name: f"127.0.0.1:{platform.broker.port}",
            "leases": f"127.0.0.1:{platform.leases.port}",
            "passwords": str(root / "state.json"),
            "environment": f"{root / 'env.sh'} (for the command line; `make shell` reads it)",
            "supervisor": f"process {os.getpid()}",
        }
        write_private(root / "ready.json", json.dumps(facts))
        servers: dict[str, Postgres | BrokerServer | Valkey | Airflow] = {
            "PostgreSQL": platform.postgres,
            platform.broker.name: platform.broker,
            "The Valkey of the leases": platform.leases,
            "Airflow": platform.airflow,
        }
        while not asked_to_stop.wait(1.0):
            dead = [name for name, server in servers.items() if not server.running]
            if dead:
                (root / "ready.json").unlink(missing_ok=True)
                raise LocalServerError(
                    f"{' and '.join(dead)} ended by itself; the rest was stopped.",
                    unaffected=f"The data lies in {root}.",
                    next_step="Read the server's log there, then `make up` again.",
                )
    finally:
        platform.stop()
    return 0


def supervisor(root: Path) -> int | None:
    """The process that runs a platform over this root, or None. The lock tells, not the number: numbers
    come back."""
    turn_file = root / "supervisor.pid"
    if not turn_file.exists():
        return None
    with turn_file.open("r+") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = turn.read().strip()
            return int(written) if written else None
    return None


ACTIONS = {"up": up, "down": down, "status": status, "shell": shell, "supervise": supervise}
