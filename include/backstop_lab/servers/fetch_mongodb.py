"""Fetch the jars of mongo-java-server, once, for the tests that read MongoDB (`make mongodb`).

No registry that builds here use has MongoDB itself. This server speaks its protocol and keeps documents in memory.
"""

from __future__ import annotations

from pathlib import Path

from backstop_lab.run_main import run_main
from backstop_lab.servers.fetch_from_maven import Wanted, fetch_or_say_why, lock_digest, locked
from backstop_lab.setup import KEPT

VERSION = "1.47.0"
LOCK = Path(__file__).with_name("mongodb.lock")
HOME = KEPT / "mongodb" / VERSION
"""The jars; a server keeps nothing but its log."""


def wanted() -> Wanted:
    """The jars of this very lock: after a change of it they are fetched again."""
    return Wanted("mongo-java-server", VERSION, locked(LOCK), HOME, ".complete", lock_digest(LOCK))


def jars() -> list[str]:
    """The class path."""
    return sorted(str(jar) for jar in HOME.glob("*.jar"))


def installed() -> bool:
    return wanted().is_there()


if __name__ == "__main__":
    run_main(lambda: fetch_or_say_why(wanted()))
