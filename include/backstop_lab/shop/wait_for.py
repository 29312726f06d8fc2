"""Wait for a condition, never for a time; say what is still open when it does not come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from backstop_lab.shop.workers import demo_broken

POLL_SECONDS = 0.25
TELL_SECONDS = 20.0
"""How often a long wait says what is still open."""
log = logging.getLogger(__name__)


def wait_for(
    what: str,
    done: Callable[[], bool],
    seconds: float,
    still_open: Callable[[], str] | None = None,
    *,
    every: float = POLL_SECONDS,
) -> float:
    """Looks every so many seconds; returns after how many `done()` held. A long wait says what is `still_open`.

    Raises DemoBroken when the time is over; with what is `still_open`, where it can be told.
    """
    started = told_at = time.monotonic()
    log.debug("  waiting for: %s", what)
    while not done():
        if still_open and time.monotonic() - told_at > TELL_SECONDS:
            told_at = time.monotonic()
            log.info("  still waiting for: %s (%s)", what, still_open())
        if time.monotonic() - started > seconds:
            told = f" Still open: {still_open()}" if still_open else ""
            raise demo_broken(
                f"{what} did not come within {seconds:.0f} s.{told}",
                "Read the logs in build/demo/platform/airflow/logs and in build/demo/processes.",
            )
        time.sleep(every)
    return time.monotonic() - started
