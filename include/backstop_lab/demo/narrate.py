"""The demo's progress on standard error: a line for each phase, and with `full` one for each step and each long wait.

Everything below `backstop_lab` writes to its logger; only `narrate` decides what of it is shown.
"""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import TextIO

_LOGGER = logging.getLogger("backstop_lab")


class SinceStart(logging.Formatter):
    """Each line begins with the seconds since the demo began."""

    def __init__(self) -> None:
        super().__init__("%(message)s")
        self._started = monotonic()

    def format(self, record: logging.LogRecord) -> str:
        return f"{monotonic() - self._started:5.0f} s  {super().format(record)}"


def narrate(*, full: bool, stream: TextIO | None = None) -> None:
    """Shows phases, and what a phase still waits for after a while; with `full` every step and every wait."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(SinceStart())
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(logging.DEBUG if full else logging.INFO)
    _LOGGER.propagate = False
