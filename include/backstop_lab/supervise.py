"""Keep an embedded platform running behind `make up`, until `make down`: one supervisor process owns every
server."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from backstop.private_file import write_private
from backstop_lab.platform import Platform
from backstop_lab.servers.airflow import CALM, Airflow
from backstop_lab.servers.broker_server import BrokerServer
from backstop_lab.servers.child import POLL_SECONDS, LocalServerError, wait_until_gone
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

UP_SECONDS = 900.0
DOWN_SECONDS = 120.0


def up(root: Path, config: Path | None) -> int:
    """Start a supervisor in the background unless one runs; return when everything is ready."""
    if supervisor(root) is None:
        started = time.monotonic()
        root.mkdir(parents=True, exist_ok=True)
        (root / "ready.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "backstop_lab.platform", "supervise", "--root", str(root)]
        log = root / "supervisor.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command + (["--config", str(config)] if config else []),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=root,
            )
        while not (root / "ready.json").exists():
            if process.poll() is not None:
                raise LocalServerError(
                    f"The platform did not start:\n{log.read_text().strip()}",
                    kept=f"Its data lies in {root} as it was.",
                    next_step="Mend what it names, then `make up` again.",
                )
            if time.monotonic() - started > UP_SECONDS:
                process.terminate()
                process.wait(DOWN_SECONDS)
                raise LocalServerError(
                    f"The platform was not ready after {UP_SECONDS:.0f} s.",
                    kept="It was stopped in order.",
                    next_step=f"Read the logs in {root}, then `make up` again.",
                )
            time.sleep(POLL_SECONDS)
        print(f"Up in {time.monotonic() - started:.1f} s.")
    return status(root, config)


def down(root: Path, config: Path | None) -> int:
    """Stop the supervisor and everything it owns; servers that a killed supervisor left behind, too."""
    pid = supervisor(root)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until_gone([pid], DOWN_SECONDS)
    elif root.exists():
        Platform(root, config).end_leftovers()
    (root / "ready.json").unlink(missing_ok=True)
    print(f"Down. The data stays in {root}." if root.exists() else "Nothing was ever up.")
    return 0


def status(root: Path, config: Path | None) -> int:
    """Print where everything is; exit code 3 when it is not up."""
    pid = supervisor(root)
    ready = root / "ready.json"
    if pid is None or not ready.exists():
        print("The platform is not up; `make up` starts it.")
        return 3
    facts = json.loads(ready.read_text())
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"  {name:<{width}}  {value}")
    return 0


def supervise(root: Path, config: Path | None) -> int:
    """Own the servers until SIGTERM or SIGINT; end with 1, everything stopped, when one of them dies by
    itself."""
    asked_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_stop.set())
    platform = Platform(root, config, airflow_settings=CALM)
    with platform:
        facts = {
            "Airflow": platform.airflow.url,
            "login": f"admin / {platform.airflow.password}",
            "PostgreSQL": f"127.0.0.1:{platform.postgres.port}",
            platform.broker.name: f"127.0.0.1:{platform.broker.port}",
            "leases": f"127.0.0.1:{platform.leases.port}",
            "passwords": str(root / "state.json"),
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
                    kept=f"The data lies in {root}.",
                    next_step="Read the server's log there, then `make up` again.",
                )
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


ACTIONS = {"up": up, "down": down, "status": status, "supervise": supervise}
