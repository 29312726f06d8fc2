"""The demo's last page, from the checker's findings: 80 columns of text, and the same as report.json."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backstop_lab.shop.workers import demo_broken

DEATHS = {
    "not_json": "content cut short, both groups",
    "field_missing": "a field is missing",
    "rule_refused": "refused by a wrong rule",
    "dependency_down": "a dependency was away",
    "suppressed_done": "called a duplicate, work done",
    "suppressed_undone": "called a duplicate, not done",
    "message_expired": "expired",
    "given_up_done": "given up by a client, work done",
    "given_up_undone": "given up by a client, not done",
}
CHECKER = Path(__file__).resolve().parents[1] / "checker"
WIDTH = 80
FAULTS = {
    "crash_before_send": "committed, died before the send",
    "crash_in_send": "died in the send, broker has it",
    "lost_in_broker": "lost in the broker after its ack",
    "cut_off": "the broker died in the send",
    "offset_moved": "a group's offset moved past it",
    "taken_out": "taken out of a group's queue",
    "files_removed": "removed by retention, unread",
    "consumer_killed": "kill -9 in the middle of the work",
    "lease_killed": "kill -9 while holding a lease",
    "worker_woken_late": "woke up late, was taken over",
    "leases_flushed": "leases in Redis flushed",
    "poisoned_key": "behind poison, until answered",
    "rolling_restart": "consumers restarted in turn",
    "slow_group": "a slow group's backlog",
    "refused": "refused by the broker for good",
    "broken_rows": "rows that break their contract",
    "store_away": "a consumer database away",
    "mass_loss": "logs deleted by hand",
    "not_sent_in_time": "(producer too slow, not injected)",
}


def run_checker(places: Path, ledger: Path) -> dict[str, Any]:
    """The findings of the checker, in a process of its own that cannot import Backstop (python -I)."""
    done = subprocess.run(
        [sys.executable, "-I", str(CHECKER), str(places), str(ledger)],
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


def machine() -> dict[str, Any]:
    """What the seconds were measured on; no name of a host."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def page(report: Mapping[str, Any]) -> str:
    """The report for a person."""
    parts = [
        heading(f"Backstop demo: {report['messages']} messages, seed {report['seed']}"),
        *differs(report["differs"]),
        faults(report["faults"]),
        dead_letters(report["dead_letters"]),
        effects(report["effects"]),
        verdicts(report["verdicts"], report["stubs"]),
        resends(report["resends"], report["requests"]),
        cases(report["cases"]),
        told(report["told"]),
        data_checks(report["data_checks"]),
        runs_and_seconds(report),
        problems(report),
    ]
    return "\n".join(parts)


def heading(text: str) -> str:
    return f"{'=' * WIDTH}\n{text}\n{'=' * WIDTH}"


def differs(report: Mapping[str, Sequence[str]]) -> list[str]:
    """What is otherwise than on the embedded broker and on PostgreSQL, by the server's name."""
    return [
        line
        for name, sentences in report.items()
        for line in ("", f"On {name}", *(folded for says in sentences for folded in fold(says)))
    ]


def faults(told: Mapping[str, Any]) -> str:
    lines = []
    for fault, says in FAULTS.items():
        if fault in told:
            one = told[fault]
            numbers = [one["injected"], one["found"], one["resent"], one["exactly_once"]]
            lines.append([says, *map(str, numbers), "yes" if one["ok"] else "NO"])
    return table(
        "Injected against found", ["fault", "injected", "found", "resent", "once", "right"], lines
    )  # "once": messages with each expected effect exactly once


def dead_letters(report: Mapping[str, Any]) -> str:
    lines = []
    for fault, says in DEATHS.items():
        if fault in report:
            one = report[fault]
            # What a broker hands to two workers while a queue changes hands may die twice: each letter is dealt with.
            numbers = [one["letters"], one["discarded"], one["replayed"], one["cases"]]
            lines.append(
                [
                    says,
                    *map(str, numbers),
                    "yes" if one["right"] == one["died"] <= one["letters"] else "NO",
                ]
            )
    return table(
        "Dead letters", ["died of", "drained", "discarded", "replayed", "cases", "right"], lines
    )


def effects(told: Mapping[str, Any]) -> str:
    names = ("expected", "exactly_once", "missing", "duplicated", "unexpected")
    lines = [[group, *(str(numbers[name]) for name in names)] for group, numbers in told.items()]
    return table("Effects", ["group", *(name.replace("_", " ") for name in names)], lines)


def verdicts(told: Mapping[str, Any], stubs: Mapping[str, int]) -> str:
    lines = [[verdict, str(count)] for verdict, count in told["final"].items()]
    lines.append(
        ["= deliveries", str(told["deliveries"]) + ("" if told["adds_up"] else "  DOES NOT ADD UP")]
    )
    every_run = ", ".join(f"{verdict} {count}" for verdict, count in told["all_runs"].items())
    standing = ", ".join(f"{count} {place}" for place, count in stubs.items())
    drawn = table("Where every delivery stands", ["verdict", "deliveries"], lines)
    return "\n".join(
        [drawn, *fold(f"Given by all runs: {every_run}."), *fold(f"Stubs: {standing}.")]
    )


def resends(told: Mapping[str, Any], requests: Mapping[str, int]) -> str:
    outcomes = (
        ", ".join(f"{count} {outcome}" for outcome, count in told["outcomes"].items()) or "none"
    )
    closed = ", ".join(f"{count} {state}" for state, count in requests.items()) or "none"
    return "\n".join(
        [
            "",
            "Resends",
            *fold(
                f"{told['attempts']} attempts for {told['messages']} messages ({outcomes}), at most "
                f"{told['most_for_one_message']} for one; needless: {told['needless']}. Requests: {closed}."
            ),
        ]
    )


def cases(told: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [one["kind"], one["topic"], one["consumer_group"], one["state"], str(one["members"])]
        for one in told
    ]
    return table("Cases for a person", ["kind", "topic", "group", "state", "messages"], lines)


def told(report: Mapping[str, Any]) -> str:
    answers = (
        ", ".join(f"{answer} {count}" for answer, count in report["answers"].items()) or "none"
    )
    messages = ", ".join(f"{count} by {way}" for way, count in report["messages"].items()) or "none"
    return "\n".join(
        [
            *fold(f"Answers given in Airflow: {answers}."),
            *fold(
                f"Alerts received: {messages}, {report['digests']} of them digests. {report['told']} of {report['cases']} cases"
                f" were announced, {report['over']} of them closed."
            ),
        ]
    )


def data_checks(told: Mapping[str, Any]) -> str:
    lines = [
        [suite, str(one["passed"]), str(one["failed"]), str(one["expectations"])]
        for suite, one in told.items()
    ]
    return table("Data checks", ["suite", "passed", "failed", "expectations"], lines)


def runs_and_seconds(report: Mapping[str, Any]) -> str:
    runs = ", ".join(f"{count} {name}" for name, count in report["runs"].items())
    seconds = ", ".join(f"{phase} {value:.0f}" for phase, value in report["seconds"].items())
    return "\n".join(["", *fold(f"Runs: {runs}."), *fold(f"Seconds: {seconds}.")])


def problems(report: Mapping[str, Any]) -> str:
    if report["ok"]:
        return "\nOK: what was lost was found and repaired once; nothing else was sent again."
    lines = ["", "NOT OK:"]
    for problem in report["problems"]:
        lines += fold(f"{problem['rule']}: {problem['count']}, as {'; '.join(problem['sample'])}")
    return "\n".join(lines)


def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Text left, numbers right."""
    rows = [list(columns), *map(list, lines)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    drawn = ["", title, "  " + "-" * min(WIDTH - 2, sum(widths) + 2 * len(widths) - 2)]
    for row in rows:
        cells = [
            cell.rjust(width) if cell.replace(".", "").isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        drawn.append(("  " + "  ".join(cells)).rstrip())
    if not lines:
        drawn.append("  none")
    return "\n".join(drawn)


def fold(text: str) -> list[str]:
    """Words into lines of at most WIDTH, indented by two."""
    lines, line = [], " "
    for word in words(text):
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = " "
        line += f" {word}"
    return [*lines, line]


def words(text: str) -> Iterable[str]:
    return text.split()
