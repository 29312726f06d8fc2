"""`make soak MINUTES=120`: the same system for a long time, a little loss all the while; is memory flat, and run time?

Samples go to samples.jsonl as they are taken, so that a soak that is cut short has told what it saw. Ends with the checker,
and with figures in Markdown that go into docs/soak.md as they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import linear_regression, median
from time import monotonic
from typing import Any

from backstop.model.errors import BackstopError
from backstop_lab.chaos.run import duty_lines, run_checker
from backstop_lab.chaos.schedule import Fault
from backstop_lab.chaos.servers import HOLDS, clear_leftovers
from backstop_lab.chaos.settle import heal, settle
from backstop_lab.chaos.stage import Stage
from backstop_lab.chaos.strike import strike
from backstop_lab.demo.accounting import machine
from backstop_lab.platform import PROJECT
from backstop_lab.run_main import run_main
from backstop_lab.servers.child import descendants
from backstop_lab.shop.databases import change

FOLDER = PROJECT / "build" / "soak"
LOSE_EVERY = 60.0
"""Seconds between two losses in the broker, so that there is always something to repair."""
WARM_UP = 0.25
"""Share of the time that is not looked at: caches fill, Spark's second compiler is off, its classes load."""
MEMORY_SLOPE = 0.10
"""A process may grow by this share of its median in an hour, or by LEAST_BYTES: what is measured, not what is wished."""
LEAST_BYTES = 12 << 20
RUN_TIME = 1.25
"""The median run of the last third may take so many times that of the first third after the warm-up."""
OURS = ("producer-", "billing-", "shipping-", "reconcile", "resend", "sweep")
SIZES = (
    "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind = 'r' AND n.nspname = 'public' AND pg_total_relation_size(c.oid) > 65536 ORDER BY 2 DESC"
)


def memory_of(pid: int | None) -> int:
    """Bytes of a process and of what it started: with Spark that is a Java machine and its workers."""
    return sum(share(one) for one in [pid, *descendants(pid)]) if pid else 0


def share(pid: int) -> int:
    """Its proportional share: what several processes hold together (PostgreSQL's buffers, forked workers) counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended between the listing and the reading
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) << 10


def sample(stage: Stage) -> dict[str, Any]:
    """One look: memory by process, size by table, what is open."""
    memory = {name: memory_of(kept.pid) for name, kept in stage.processes.items()}
    memory |= {
        f"server {name}": memory_of(server.program.pid) for name, server in stage.servers.items()
    }
    tables = {
        f"{database}.{name}": int(size)
        for server in HOLDS
        for database in HOLDS[server]
        for name, size in change(stage.urls[database], SIZES, ())
    }
    stubs = {
        status: sum(
            int(n)
            for shard in HOLDS["shops"]
            for found, n in counted(stage, shard)
            if found == status
        )
        for status in ("pending", "confirmed", "exhausted")
    }
    [(requests,)] = change(
        stage.urls["control"],
        "SELECT count(*) FROM resend_request WHERE state IN ('open', 'claimed')",
        (),
    )
    return {
        "at": round(stage.record.now, 1),
        "memory": memory,
        "tables": tables,
        "stubs": stubs,
        "requests_open": int(requests),
        "starts": {name: kept.starts for name, kept in stage.processes.items()},
    }


def counted(stage: Stage, shard: str) -> list[tuple[Any, ...]]:
    return change(stage.urls[shard], "SELECT status, count(*) FROM message_stub GROUP BY 1", ())


def run_soak(
    folder: Path, minutes: float, rate: float, every: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """In `folder`, which is emptied first; the report, also in report.json."""
    clear_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stage = Stage(folder, 1, rate)
    report: dict[str, Any] = {"ok": False}
    samples: list[dict[str, Any]] = []
    try:
        stage.start(every={"reconcile": every, "resend": 1.0})
        stage.record.begin()
        stage.start_producers()
        began, lost_at, over = monotonic(), monotonic(), threading.Event()
        with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
            while monotonic() - began < minutes * 60:
                over.wait(15.0)
                if monotonic() - lost_at >= LOSE_EVERY:
                    lost_at = monotonic()
                    strike(stage, Fault(stage.record.now, "lose_messages", "broker", 1.0), over)
                samples.append(sample(stage))
                file.write(json.dumps(samples[-1]) + "\n")
                file.flush()
                if len(samples) % 20 == 0:
                    say(
                        f"{stage.record.now / 60:.0f} min: {samples[-1]['stubs']}, requests {samples[-1]['requests_open']}"
                    )
        heal(stage)
        stage.stop_producers()
        report["settled_after"] = round(settle(stage, 600.0), 1)
        report |= run_checker(stage)
        runs = {duty: list(duty_lines(stage, duty)) for duty in ("reconcile", "resend")}
        report |= {
            "minutes": round((monotonic() - began) / 60, 1),
            "rate": rate,
            "machine": machine(),
        }
        report |= judge(samples, runs)
        report["ok"] = bool(report["ok"] and report["flat"])
    finally:
        stage.stop(keep=not report["ok"])
    (folder / "report.json").write_text(
        json.dumps(report, ensure_ascii=False, indent=2), encoding="utf-8"
    )
    (folder / "soak.md").write_text(figures(report), encoding="utf-8")
    return report


def judge(
    samples: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Slopes after the warm-up, against their bounds (pure)."""
    late = samples[int(len(samples) * WARM_UP) :]
    memory = {name: slope_of(name, late) for name in (late[-1]["memory"] if late else {})}
    times = {
        duty: run_times([line for line in lines if line["ended"] == "done"])
        for duty, lines in runs.items()
    }
    growing = [name for name, one in memory.items() if name.startswith(OURS) and not one["flat"]]
    slower = [duty for duty, one in times.items() if not one["flat"]]
    return {
        "memory": memory,
        "run_times": times,
        "growing": growing,
        "slower": slower,
        "flat": not growing and not slower,
        "tables": {
            name: {"first": late[0]["tables"].get(name, 0), "last": size}
            for name, size in late[-1]["tables"].items()
        }
        if late
        else {},
        "ended": {
            duty: ends([str(line["ended"]) for line in lines]) for duty, lines in runs.items()
        },
    }


def ends(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def slope_of(name: str, late: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    points = [(one["at"], one["memory"][name]) for one in late if one["memory"].get(name)]
    if len(points) < 3:
        return {"median": 0, "per_hour": 0, "flat": False}
    slope = linear_regression([at for at, _ in points], [size for _, size in points]).slope * 3600
    middle = median(size for _, size in points)
    return {
        "median": int(middle),
        "per_hour": int(slope),
        "flat": slope <= max(MEMORY_SLOPE * middle, LEAST_BYTES),
    }


def run_times(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of the runs that had something to do, in the first third after the warm-up and in the last one."""
    busy = [line for line in lines if line["counts"].get("due", line["counts"].get("claimed", 0))]
    late = busy[int(len(busy) * WARM_UP) :]
    third = max(1, len(late) // 3)
    if len(late) < 3:
        return {"runs": len(busy), "flat": False}
    first = median(float(line["seconds"]) for line in late[:third])
    last = median(float(line["seconds"]) for line in late[-third:])
    return {
        "runs": len(busy),
        "first": round(first, 3),
        "last": round(last, 3),
        "flat": last <= first * RUN_TIME,
    }


def figures(report: Mapping[str, Any]) -> str:
    """The tables of docs/soak.md."""
    mebi = 1 << 20
    lines = [
        f"Measured: {report['minutes']} minutes at {report['rate']:.0f} messages a second, {report['messages']} messages, "
        f"{report['machine']['cores']} cores. Everything came out right: {'yes' if not report['problems'] else 'NO'}. "
        f"Flat: {'yes' if report['flat'] else 'NO'}. Lost in the broker on purpose: {report['resends']['lost_in_broker']}, "
        f"sent again: {report['resends']['attempts']}.",
        "",
        "| process | memory (median) | growth an hour | flat |",
        "| --- | ---: | ---: | --- |",
        *(
            f"| {name} | {one['median'] / mebi:.0f} MiB | {one['per_hour'] / mebi:+.1f} MiB | {flat(one)} |"
            for name, one in sorted(report["memory"].items())
        ),
        "",
        "| duty | runs with work | median run, early | late | flat |",
        "| --- | ---: | ---: | ---: | --- |",
        *(
            f"| {duty} | {one['runs']} | {one.get('first', 0):.2f} s | {one.get('last', 0):.2f} s | {flat(one)} |"
            for duty, one in report["run_times"].items()
        ),
        "",
        "| table | after the warm-up | at the end |",
        "| --- | ---: | ---: |",
        *(
            f"| {name} | {one['first'] / mebi:.1f} MiB | {one['last'] / mebi:.1f} MiB |"
            for name, one in sorted(report["tables"].items(), key=lambda item: -item[1]["last"])[
                :16
            ]
        ),
    ]
    return "\n".join(lines) + "\n"


def flat(one: Mapping[str, Any]) -> str:
    return "yes" if one["flat"] else "no"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m backstop_lab.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=40.0, help="messages a second")
    parser.add_argument(
        "--every", type=float, default=10.0, help="seconds between two reconcile runs"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        report = run_soak(
            asked.folder.resolve(),
            asked.minutes,
            asked.rate,
            asked.every,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    except BackstopError as broken:
        print(broken, file=sys.stderr)
        return broken.exit_code
    print(figures(report))
    for problem in report["problems"]:
        print(f"{problem['rule']}: {problem['count']}, as {'; '.join(problem['sample'])}")
    for name in (*report["growing"], *report["slower"]):
        print(f"not flat: {name}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    run_main(main)
