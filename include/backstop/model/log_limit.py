"""Logs a fault that lasts once in some minutes, not each time that it is met."""

from __future__ import annotations

import logging
import re
import time

AGAIN_SECONDS = 300.0
_MOST_KINDS = 1000
_VARIES = re.compile(r"\d+")


class LimitedLog:
    """Warnings, one for each kind of fault and AGAIN_SECONDS. Not shared between threads."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[str, tuple[float, int]] = {}
        """kind -> when it was logged, and how often it was met since."""

    def warning(self, text: str) -> None:
        """Texts that differ in numbers alone are of one kind."""
        kind, now = _VARIES.sub("#", text), time.monotonic()
        at, met = self._logged.get(kind, (float("-inf"), 0))
        if now - at < AGAIN_SECONDS:
            self._logged[kind] = at, met + 1
            return
        if len(self._logged) >= _MOST_KINDS:
            self._logged.clear()
        self._logged[kind] = now, 0
        self._log.warning(
            "%s%s", text, f" ({met} times more since it was logged last)" if met else ""
        )
