"""Ends this process when one of those that started it dies, so that a driver does not outlive its task.

PR_SET_PDEATHSIG is not enough: under spark-submit the parent is a Java process, which lives on when the task that started
it is killed. So the chain of ancestors is watched, not only the parent.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

EXIT_CODE = 70
_SECONDS = 0.5
# spark-submit's Java, the task's process, and the process that supervises the task.
_LEVELS_UNDER_SPARK_SUBMIT = 3


def watch_parent(levels: int | None = None) -> None:
    """Starts watching `levels` ancestors (default: 3 under spark-submit, else the parent) and returns.

    The process ends with code 70, without clean-up, within about half a second after one of them is gone: whatever it was
    doing is safe to be cut off anywhere, and anything it would still do is better left to the next run.
    """
    if levels is None:
        levels = _LEVELS_UNDER_SPARK_SUBMIT if os.environ.get("PYSPARK_GATEWAY_PORT") else 1
    chain = ancestors(levels)
    threading.Thread(target=_watch, args=(chain, levels), daemon=True, name="watch-parent").start()


def ancestors(levels: int) -> list[int]:
    """The process ids of up to `levels` ancestors, the parent first, none beyond process 1."""
    chain: list[int] = []
    pid: int | None = os.getppid()
    while pid is not None and pid > 1 and len(chain) < levels:
        chain.append(pid)
        pid = _parent_of(pid)
    return chain


def _parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return (
            None  # it has just ended, or this system has no /proc: then only the parent is watched
        )
    # The command in parentheses may contain anything, also blanks and parentheses.
    return int(stat.rpartition(")")[2].split()[1])


def _watch(chain: list[int], levels: int) -> None:
    # A process whose parent dies gets another one, so a changed chain means that somebody in it is gone.
    while ancestors(levels) == chain:
        threading.Event().wait(_SECONDS)
    print(
        "backstop: the process that started this one is gone; ending", file=sys.stderr, flush=True
    )
    os._exit(EXIT_CODE)
