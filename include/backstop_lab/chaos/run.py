"""One run under fire from start to end: traffic, the schedule, rest, the independent checker, one page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from backstop_lab.chaos.page import count_struck
from backstop_lab.chaos.schedule import DUTIES, KINDS, Fault, schedule
from backstop_lab.chaos.servers import clear_leftovers
from backstop_lab.chaos.settle import heal, settle
from backstop_lab.chaos.stage import STANDBY, Command, Stage, plain
from backstop_lab.chaos.story import tell
from backstop_lab.chaos.strike import strike
from backstop_lab.demo.accounting import machine
from backstop_lab.shop.databases import change
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import DemoBroken, demo_broken

CHECKER = Path(__file__).with_name("checker.py")
SETTLE_SECONDS = 240.0
WARM_SECONDS = 180.0
AT_ONCE = 8
"""Faults under way at the same time, at most."""


def run_chaos(
    folder: Path,
    seed: int,
    *,
    seconds: float = 75.0,
    rate: float = 30.0,
    kinds: Collection[str] = tuple(KINDS),
    every: float = 3.0,
    faults: Sequence[Fault] | None = None,
    command: Command = plain,
    settle_seconds: float = SETTLE_SECONDS,
    without: Collection[str] = (),
    warm: bool = False,
) -> dict[str, Any]:
    """In `folder`, which is emptied first; the report, also in report.json. `faults` replaces the schedule of the seed.

    `without`: processes that are not started. `warm`: the schedule begins when reconcile has judged its first stubs, which takes
    Spark many times as long as its later runs. The folder is kept; with a failure also what was on the small disks.
    """
    began = monotonic()
    clear_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planned = list(schedule(seed, seconds, kinds, every) if faults is None else faults)
    said: dict[str, float] = {}
    report: dict[str, Any] = {"ok": False}
    stage = Stage(folder, seed, rate, command)
    try:
        with timed(said, "start"):
            stage.start(without=without)
        with timed(said, "traffic"):
            fire(stage, planned, seconds, warm)
        try:
            with timed(said, "rest"):
                settle(stage, settle_seconds)
        except DemoBroken as stuck:
            report["stuck"] = stuck.what
        with timed(said, "check"):
            stage.record.write("check")
            report |= run_checker(stage)
        report |= facts(stage, planned)
        if "stuck" in report:
            report["ok"] = False
            report["problems"].insert(0, {"rule": "stuck", "count": 1, "sample": [report["stuck"]]})
        if not report["ok"]:
            (folder / "stories.txt").write_text(
                "\n\n".join(stories(stage, report)), encoding="utf-8"
            )
    finally:
        stage.stop(keep=not report["ok"])
    said["all"] = monotonic() - began
    report |= {
        "seed": seed,
        "seconds": {name: round(value, 1) for name, value in said.items()},
        "traffic_seconds": seconds,
        "rate": rate,
        "machine": machine(),
        "folder": str(folder),
    }
    (folder / "report.json").write_text(
        json.dumps(report, ensure_ascii=False, indent=2), encoding="utf-8"
    )
    return report


@contextmanager
def timed(said: dict[str, float], phase: str) -> Iterator[None]:
    began = monotonic()
    yield
    said[phase] = monotonic() - began


def fire(stage: Stage, planned: Sequence[Fault], seconds: float, warm: bool) -> None:
    """Each fault at its time, all of them healed at the end, and no new message after it."""
    over = threading.Event()
    stage.record.begin()
    stage.start_producers()
    if warm:
        wait_for("The first judgement", lambda: has_judged(stage), WARM_SECONDS)
        stage.record.begin()
    pool = ThreadPoolExecutor(AT_ONCE)
    struck: list[Future[None]] = []
    try:
        for fault in planned:
            over.wait(max(0.0, fault.at - stage.record.now))
            struck.append(pool.submit(strike, stage, fault, over))
        over.wait(max(0.0, seconds - stage.record.now))
    finally:
        over.set()
        pool.shutdown(wait=True)
        heal(stage)
    stage.stop_producers()
    for one in struck:
        one.result()


def has_judged(stage: Stage) -> bool:
    return any(line.get("counts", {}).get("stubs_read") for line in duty_lines(stage, "reconcile"))


def run_checker(stage: Stage) -> dict[str, Any]:
    """The findings of the checker, in a process of its own that cannot import Backstop (python -I)."""
    done = subprocess.run(
        [sys.executable, "-I", str(CHECKER), str(stage.write_places()), str(stage.ledger.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise demo_broken(
            f"The checker itself failed:\n{done.stderr}", "Fix it, then run it again by hand."
        )
    findings: dict[str, Any] = json.loads(done.stdout)
    return findings


def facts(stage: Stage, planned: Sequence[Fault]) -> dict[str, Any]:
    """What was done to the system, and what its processes went through."""
    events = stage.record.events()
    said = [line for duty in (*DUTIES, STANDBY) for line in duty_lines(stage, duty)]
    return {
        "struck": count_struck(planned, events),
        "ended": dict(
            Counter(
                f"{event['process']} ({event['code']})"
                for event in events
                if event["what"] == "process ended"
            )
        ),
        "runs": {
            f"{duty} {state}": number
            for duty, state, number in change(
                stage.urls["control"],
                "SELECT duty, state, count(*) FROM run GROUP BY 1, 2 ORDER BY 1, 2",
                (),
            )
        },
        "unexpected": dict(
            Counter(line["ended"] for line in said if line["ended"].startswith("unexpected"))
        ),
    }


def duty_lines(stage: Stage, duty: str) -> Iterator[dict[str, Any]]:
    """What a duty's process said of its runs; a line that a kill cut short is left out."""
    log = stage.folder / "processes" / f"{duty}.log"
    for line in (
        log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ()
    ):
        if line.startswith('{"run"') and line.endswith("}"):
            yield json.loads(line)


def stories(stage: Stage, report: dict[str, Any]) -> Iterator[str]:
    """Of the first few messages that something is wrong with."""
    told: set[tuple[str, str]] = set()
    for problem in report["problems"]:
        yield f"{problem['rule']}: {problem['count']}"
        for sample in problem["sample"][:3]:
            words = sample.split(" ")
            for topic in stage.settings.topics:
                if topic in words[:-1]:
                    key = (topic, words[words.index(topic) + 1])
                    if key not in told:
                        told.add(key)
                        yield tell(stage, *key)
