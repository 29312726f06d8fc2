"""One page about a run under fire: what was done to the system, what it went through, and whether everything came out right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from backstop_lab.demo.accounting import fold, heading, table


def page(report: Mapping[str, Any]) -> str:
    """The report for a person, 80 columns wide."""
    parts = [
        heading(
            f"Backstop under fire: seed {report['seed']}, {report['traffic_seconds']:.0f} s, {report['messages']} messages"
        ),
        struck(report["struck"]),
        effects(report["effects"]),
        "\n".join(["", *fold(sentence(report))]),
        went_through(report),
        problems(report),
    ]
    return "\n".join(part for part in parts if part)


def struck(told: Mapping[str, Any]) -> str:
    lines = [
        [kind, str(one["planned"]), str(one["done"]), ", ".join(one["victims"])[:38]]
        for kind, one in told.items()
    ]
    return table("What went wrong", ["fault", "planned", "done", "victims"], lines)


def effects(told: Mapping[str, Any]) -> str:
    names = ("expected", "exactly_once", "missing", "duplicated", "unexpected")
    lines = [[group, *(str(numbers[name]) for name in names)] for group, numbers in told.items()]
    return table("Effects", ["group", *(name.replace("_", " ") for name in names)], lines)


def sentence(report: Mapping[str, Any]) -> str:
    resends, copies = report["resends"], report["copies"]
    firsts = listed(resends["first_sends"])
    again = listed(resends["outcomes"])
    leases = report["leases"]
    return (
        f"First sends: {firsts}. Lost in the broker: {resends['lost_in_broker']}. Sent again: {again}. "
        f"Copies in the broker: {copies['copies']}, the latest stored {copies['latest_seconds']} s after its attempt began. "
        f"Killed while holding a lease: {leases['killed_holding']}. Stood still in their work: {leases['stood_still']}, and woke "
        f"up in vain: {leases['woken_in_vain']}. Delivered again after a flush: {leases['again_after_a_flush']}. Messages of "
        f"which the database stopped a copy: {leases['stopped_by_the_database']}."
    )


def went_through(report: Mapping[str, Any]) -> str:
    ends = listed(report["ended"])
    runs = listed(report["runs"])
    untidy = listed(report["unexpected"])
    return "\n".join(
        [
            "",
            *fold(f"Processes that ended: {ends}."),
            *fold(f"Runs: {runs}."),
            *fold(f"Errors of duties that are not ours: {untidy}."),
            *fold(
                f"Seconds: {', '.join(f'{name} {value:.0f}' for name, value in report['seconds'].items())}."
            ),
        ]
    )


def problems(report: Mapping[str, Any]) -> str:
    if report["ok"]:
        return "\nOK: every effect exactly once, nothing lost, nothing sent that was not owed."
    lines = [
        "",
        f"NOT OK. Again: make chaos SEED={report['seed']}; all of it is in {report['folder']}",
    ]
    for problem in report["problems"]:
        lines += fold(f"{problem['rule']}: {problem['count']}, as {'; '.join(problem['sample'])}")
    return "\n".join(lines)


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"


def count_struck(schedule: Sequence[Any], events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each kind: how often it was planned, how often it really hit somebody, and whom."""
    planned = Counter(fault.kind for fault in schedule)
    done = Counter(event["what"] for event in events if event.get("done"))
    return {
        kind: {
            "planned": planned[kind],
            "done": done[kind],
            "victims": sorted(
                {event["victim"] for event in events if event["what"] == kind and event.get("done")}
            ),
        }
        for kind in sorted(planned)
    }
