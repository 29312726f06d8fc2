"""Run a program of `make` so that Ctrl-C ends it in order: everything it started is stopped, and nobody reads a traceback."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exits with what `main` returns, or with 130 after Ctrl-C. A second Ctrl-C does not cut the stopping short."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\nStopping what was started ...", file=sys.stderr, flush=True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Stopped: nothing is left running. Doing it again is safe.", file=sys.stderr)
        sys.exit(INTERRUPTED)
