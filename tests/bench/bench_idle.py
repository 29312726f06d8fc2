"""platform.idle: what the platform of `make up` takes of the machine while nothing is to be done, its duties on their schedules.

CPU time (user and system) of the supervisor's whole tree, children that ended included, over three minutes after the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from backstop_lab.servers.child import descendants
from backstop_lab.supervise import supervisor
from bench.measure import Row, said

SECONDS = 180.0
MOST = 0.5
"""Of one core."""
TICKS = os.sysconf("SC_CLK_TCK")


def bench(_: bool) -> list[Row]:
    """One start, one figure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "backstop_lab"]
        try:
            with said("make up"):
                subprocess.run(
                    [*command, "up", "--root", folder], check=True, stdout=subprocess.DEVNULL
                )
            root = supervisor(Path(folder))
            assert root is not None
            begun, before = time.monotonic(), _spent(root)
            with said("idle"):
                time.sleep(SECONDS)
            cores = round((_spent(root) - before) / (time.monotonic() - begun), 3)
        finally:
            subprocess.run(
                [*command, "down", "--root", folder], check=True, stdout=subprocess.DEVNULL
            )
    return [Row("platform.idle", cores, "cores", f"<= {MOST} cores", cores <= MOST)]


def _spent(root: int) -> float:
    """Seconds of CPU of a process, of those beneath it, and of those that they have waited for."""
    ticks = 0
    for pid in (root, *descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since it was listed; its parent's figure has it
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


BENCHMARKS = {("platform.idle",): bench}
