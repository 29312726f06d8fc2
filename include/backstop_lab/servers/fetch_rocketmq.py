"""Fetch the jars of Apache RocketMQ, once, for the tests and the demo that run it (`make rocketmq`).

`rocketmq.lock` names every jar and its SHA-256, so nothing is resolved: what is fetched is exactly that.
"""

from __future__ import annotations

from pathlib import Path

from backstop_lab.run_main import run_main
from backstop_lab.servers.fetch_from_maven import Wanted, fetch_or_say_why, lock_digest, locked
from backstop_lab.setup import KEPT

VERSION = "5.3.3"
LOCK = Path(__file__).with_name("rocketmq.lock")
HOME = KEPT / "rocketmq" / VERSION
"""The jars; a server gets a folder of its own for all that it writes."""


def wanted() -> Wanted:
    """The jars of this very lock: after a change of it they are fetched again."""
    return Wanted("RocketMQ", VERSION, locked(LOCK), HOME, ".complete", lock_digest(LOCK))


def jars() -> list[str]:
    """The class path."""
    return sorted(str(jar) for jar in HOME.glob("*.jar"))


def installed() -> bool:
    return wanted().is_there()


if __name__ == "__main__":
    run_main(lambda: fetch_or_say_why(wanted()))
