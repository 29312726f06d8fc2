"""`make demo`: the whole of Backstop on real traffic with real faults, under a live Airflow; ends with an accounting."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from backstop.model.errors import BackstopError
from backstop_lab.broker_kinds import BROKERS
from backstop_lab.demo.accounting import page
from backstop_lab.demo.narrate import narrate
from backstop_lab.demo.run import run_demo
from backstop_lab.demo.scenario import LEAST_MESSAGES
from backstop_lab.platform import MARIADB, POSTGRESQL, PROJECT
from backstop_lab.run_main import run_main

FOLDER = PROJECT / "build" / "demo"
DEFAULT_MESSAGES = 4000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m backstop_lab.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or 1))
    parser.add_argument(
        "--messages", type=int, default=int(os.environ.get("MESSAGES") or DEFAULT_MESSAGES)
    )
    parser.add_argument(
        "--broker", choices=sorted(BROKERS), default=os.environ.get("BROKER") or "embedded"
    )
    parser.add_argument(
        "--stores",
        choices=(POSTGRESQL, MARIADB),
        default=os.environ.get("STORES") or POSTGRESQL,
        help="the server that has the databases of producers and consumers",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--full", action="store_true", help="tell each step and each wait, not the phases alone"
    )
    asked = parser.parse_args(arguments)
    if asked.messages < LEAST_MESSAGES:
        parser.error(f"at least {LEAST_MESSAGES} messages: the faults alone need most of them")
    narrate(full=asked.full)
    # Whoever ends the demo ends its servers and workers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        folder, broker = asked.folder.resolve(), BROKERS[asked.broker]
        report = run_demo(folder, asked.seed, asked.messages, broker, asked.stores)
    except BackstopError as broken:
        print(broken, file=sys.stderr)
        return broken.exit_code
    print(page(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    run_main(main)
