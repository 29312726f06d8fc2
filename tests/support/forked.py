"""Run a program that kills itself in a fork of this process: what it imports has been imported already."""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple, NoReturn

SECONDS = 300


class Ended(NamedTuple):
    returncode: int
    """As subprocess has it: below 0, the signal that ended it."""
    stderr: str


def run_forked(program: Path | str, *arguments: str) -> Ended:
    """As `python PROGRAM ARGUMENTS` does, in a process of its own; after SECONDS it ends by SIGALRM.

    It must open connections of its own: this process goes on with those that are open now.
    """
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            _run(str(program), arguments, errors.fileno())
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), errors.read().decode(errors="replace"))


def _run(program: str, arguments: tuple[str, ...], errors: int) -> NoReturn:
    code = 1
    gc.disable()  # what the parent left is not ours to clear away: some of it speaks to a JVM when it goes
    try:
        os.dup2(errors, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - the parent shows it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)  # nothing of the parent's is closed or flushed here
