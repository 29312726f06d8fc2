"""Makes a process stand still: SIGSTOP alone only asks for it.

One thread of the process takes the signal when it gets a core, and the others work until then: on a busy machine a server with many
threads answers what comes meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SECONDS = 60.0


def stand_still(pid: int) -> None:
    """Returns once each of its threads is stopped. TimeoutError after a minute."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + SECONDS
    while not _is_stopped(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.002)


def _is_stopped(pid: int) -> bool:
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            # The name before it, in brackets, may hold anything.
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        except FileNotFoundError:
            continue  # this thread has ended
    return all(state in "TtZX" for state in states)
