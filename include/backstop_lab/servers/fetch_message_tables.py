"""Fetch the jars of the libraries whose message tables Backstop reads, once, for the tests that run them (`make message-tables`).

Each lock names every jar and its SHA-256, so nothing is resolved: what is fetched is exactly that.
"""

from __future__ import annotations

from pathlib import Path

from backstop_lab.run_main import run_main
from backstop_lab.servers.fetch_from_maven import Wanted, fetch_or_say_why, lock_digest, locked
from backstop_lab.setup import KEPT


def _wanted(name: str, version: str, folder: str) -> Wanted:
    """The jars of this very lock: after a change of it they are fetched again."""
    lock = Path(__file__).with_name(f"{folder}.lock")
    return Wanted(
        name, version, locked(lock), KEPT / folder / version, ".complete", lock_digest(lock)
    )


SPRING_MODULITH = _wanted("Spring Modulith", "2.1.1", "spring_modulith")
EVENTUATE_TRAM = _wanted("Eventuate Tram", "0.36.0", "eventuate_tram")


def fetch_all() -> int:
    """As a program: its exit code. A library that cannot be fetched does not stop the other."""
    return max([fetch_or_say_why(wanted) for wanted in (SPRING_MODULITH, EVENTUATE_TRAM)])


if __name__ == "__main__":
    run_main(fetch_all)
