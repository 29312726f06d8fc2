"""Ordinary traffic over the platform that `make up` started, until it is interrupted: `make traffic RATE=20`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from backstop_lab.demo.stage import Stage
from backstop_lab.platform import DEFAULT_ROOT, Platform
from backstop_lab.run_main import run_main
from backstop_lab.supervise import supervisor

TOPICS = ("orders", "payments", "refunds")


def drive(platform: Platform, folder: Path, rate: int, stop: threading.Event) -> int:
    """Makes about `rate` messages a second over every topic, with the demo's producers and consumers, until `stop` is set.

    Returns how many were made. What is under way at the end is finished by the next start, or by Backstop.
    """
    stage = Stage(platform, folder, seed=1)
    made = 0
    try:
        stage.make_tables()
        stage.start()
        while not stop.is_set():
            for topic in TOPICS:
                count = max(1, rate // len(TOPICS))
                stage.bulk(count, topic)
                made += count
            stop.wait(1.0)
    finally:
        stage.stop()
    return made


def main() -> int:
    """Ends with 3 when the platform is not up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20, help="messages a second")
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT)
    asked = parser.parse_args()
    root = asked.root.resolve()
    if supervisor(root) is None:
        print("The platform is not up. Nothing was sent. Start it: make up", file=sys.stderr)
        return 3
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    print(f"About {asked.rate} messages a second, until Ctrl-C.", flush=True)
    print(f"{drive(Platform(root), root / 'traffic', asked.rate, stop)} messages were made.")
    return 0


if __name__ == "__main__":
    run_main(main)
