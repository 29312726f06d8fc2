"""`make chaos SEED=1`, or `make chaos SEEDS=20` for many: ends with 0 when every run came out right."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backstop.model.errors import BackstopError
from backstop_lab.chaos.page import page
from backstop_lab.chaos.run import run_chaos
from backstop_lab.chaos.schedule import KINDS, schedule
from backstop_lab.platform import PROJECT
from backstop_lab.run_main import run_main

FOLDER = PROJECT / "build" / "chaos"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m backstop_lab.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seeds", type=int, default=1, help="so many, one after the other, from SEED on"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=75.0,
        help="of traffic and faults; rest and check come after it",
    )
    parser.add_argument(
        "--rate", type=float, default=30.0, help="messages a second, of both shards together"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--turn", type=Path, help="a file to lock for each run, where a machine is shared"
    )
    asked = parser.parse_args(arguments)
    # Whoever ends the run ends its servers and processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong: list[int] = []
    for seed in range(asked.seed, asked.seed + asked.seeds):
        folder = asked.folder.resolve() / f"seed-{seed}"
        with turn(asked.turn):
            if not one(folder, seed, asked):
                wrong.append(seed)
    if asked.seeds > 1:
        print(
            f"{asked.seeds - len(wrong)} of {asked.seeds} seeds came out right; not: {wrong or 'none'}."
        )
    return 1 if wrong else 0


def one(folder: Path, seed: int, asked: Any) -> bool:
    """The schedule, the run, its page; whether everything came out right."""
    print(f"Seed {seed}. Seconds are since the start of the traffic.", flush=True)
    for fault in schedule(seed, asked.seconds, asked.kinds):
        print(f"  {fault}")
    sys.stdout.flush()
    try:
        report = run_chaos(folder, seed, seconds=asked.seconds, rate=asked.rate, kinds=asked.kinds)
    except BackstopError as broken:
        print(broken, file=sys.stderr, flush=True)
        return False
    print(page(report), flush=True)
    if not report["ok"]:
        print((folder / "stories.txt").read_text(encoding="utf-8"), flush=True)
    return bool(report["ok"])


@contextmanager
def turn(file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    run_main(main)
