"""Each kind of fault, with the protection against it and without: only without it the checker finds something.

The protections are switched off by `weakened_child.py`, in the children's own processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backstop_lab.chaos.run import run_chaos
from backstop_lab.chaos.schedule import DUTIES, KINDS, Fault
from backstop_lab.chaos.servers import can_mount

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

WEAKENED = Path(__file__).with_name("weakened_child.py")
TRIES = 3
UNFINISHED = {"stub unaccounted for", "delivery without a verdict"}
"""What only Backstop's duties bring to an end; the rest holds without them."""


@dataclass(frozen=True)
class Case:
    """Faults, what is switched off, and what the checker says then. Without duties it costs no Spark."""

    faults: Sequence[Fault]
    switch: str
    rule: str
    slow: str = ""
    """What makes the fault hit in the middle of something, with the protection as without."""
    duties: bool = False
    repaired: bool = False
    """What was not sent is Backstop's to send: with the protection, its duties are there."""
    seconds: float = 20.0
    settle_seconds: float = 15.0


def kills(kind: str, victim: str, *at: float, seconds: float = 1.0, how: str = "") -> list[Fault]:
    return [Fault(instant, kind, victim, seconds, how) for instant in at]


CASES = {
    "kill_process": Case(
        kills("kill_process", "billing-1", 4, 7, 10, 13, 16)
        + kills("kill_process", "shipping-1", 5, 8, 11, 14, 17),
        "effect_before_the_log",
        "effect duplicated",
        slow="slow_handler",
    ),
    "freeze_process": Case(
        [
            *kills("freeze_process", "billing-1", 4, seconds=9),
            *kills("freeze_process", "shipping-1", 5, seconds=9),
            *kills("freeze_process", "billing-2", 15, seconds=9),
            *kills("freeze_process", "shipping-2", 16, seconds=9),
        ],
        "complete_without_fence",
        "effect duplicated",
        slow="slow_handler",
        seconds=26,
    ),
    "kill_holding": Case(
        kills("kill_holding", "billing-1", 4, 9, seconds=3)
        + kills("kill_holding", "shipping-1", 6, 11, seconds=3),
        "leases_never_end",
        "effect missing",
    ),
    "wake_late": Case(
        kills("wake_late", "billing-1", 4, seconds=14)
        + kills("wake_late", "shipping-2", 5, seconds=14),
        "complete_without_fence",
        "effect duplicated",
        slow="slow_handler",
    ),
    "flush_leases": Case(
        kills("flush_leases", "leases", 5, 9, 13, seconds=0),
        "the_database_believes_redis",
        "effect duplicated",
    ),
    "kill_server": Case(
        kills("kill_server", "billing", 6, 12, seconds=2),
        "acknowledge_at_receipt",
        "effect missing",
        slow="slow_handler",
    ),
    "kill_backend": Case(
        kills("kill_backend", "billing", 5, 8, 11, 14, seconds=0),
        "acknowledge_at_receipt",
        "effect missing",
        slow="slow_handler",
    ),
    "freeze_server": Case(
        kills("freeze_server", "broker", 6, 14, seconds=5),
        "store_whenever_it_comes",
        "copy stored after its time",
        repaired=True,
    ),
    "cut_link": Case(
        kills("cut_link", "producers to broker", 5, 8, 11, seconds=2, how="after the request"),
        "send_again_by_itself",
        "send number published twice",
    ),
    "fill_disk": Case(
        kills("fill_disk", "billing", 5, 12, seconds=4),
        "acknowledge_at_receipt",
        "effect missing",
        slow="slow_handler",
    ),
    # Against what the producers themselves cannot mend, the protection is Backstop.
    "stop_server": Case(
        kills("stop_server", "broker", 6, seconds=3, how="fast"),
        "",
        "effect missing",
        repaired=True,
    ),
    "lose_messages": Case(
        kills("lose_messages", "broker", 6, 10), "", "effect missing", repaired=True
    ),
    # A copy whose outcome nobody knows waits for a group that stands still; by the broker's clock its time is over. The producers
    # are new, or they would not get a copy past a broker whose clock has just jumped.
    "skew_clock": Case(
        [
            *kills("skew_clock", "broker", 4, seconds=50, how="25"),
            *kills("kill_process", "producer-shop_a", 5),
            *kills("kill_process", "producer-shop_b", 5),
            *kills("freeze_process", "shipping-1", 6.5, seconds=45),
            *kills("freeze_process", "shipping-2", 6.5, seconds=45),
            *kills(
                "cut_link",
                "producers to broker",
                7.5,
                10,
                12.5,
                seconds=2.4,
                how="after the request",
            ),
        ],
        "no_clock_is_looked_at",
        "resend needless after an unknown outcome",
        duties=True,
        seconds=56,
    ),
    "run_twice": Case(
        [
            *kills("stop_server", "broker", 8, 20, 32, seconds=2, how="fast"),
            *kills("run_twice", "resend", 20, seconds=50, how="side by side"),
        ],
        "claims_exclude_nobody",
        "send number published twice",
        slow="slow_publish",
        duties=True,
        seconds=70,
    ),
    # The freeze itself is in the child, because it must hit between the numbers taken and the copies out.
    "freeze of a resend": Case(
        kills("stop_server", "broker", 8, 20, seconds=2, how="fast"),
        "publish_after_the_claim",
        "copy stored after its time",
        slow="frozen_before_publish",
        duties=True,
        seconds=75,
    ),
}


def run(case: Case, switch: str, folder: Path, *, duties: bool) -> dict[str, Any]:
    words = (sys.executable, str(WEAKENED), switch) if switch else (sys.executable, "-m")
    return run_chaos(
        folder,
        1,
        seconds=case.seconds,
        faults=sorted(case.faults, key=lambda fault: fault.at),
        command=lambda _: words,
        without=() if duties else DUTIES,
        settle_seconds=120.0 if duties else case.settle_seconds,
        warm=case.duties,
    )


def rules(report: dict[str, Any]) -> set[str]:
    return {problem["rule"] for problem in report["problems"]}


def skip_without_small_disks(name: str, folder: Path) -> None:
    if name == "fill_disk" and not can_mount(folder):
        if os.environ.get("CI"):
            pytest.fail("small disks need root")
        pytest.skip("small disks need root")


def test_there_is_a_case_for_every_kind() -> None:
    assert set(KINDS) <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_without_its_protection_the_checker_finds_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    skip_without_small_disks(name, tmp_path)
    # A fault hits a worker at its work, or two duties at the same number by chance.
    for attempt in range(TRIES):
        found = run(case, case.switch, tmp_path / f"run-{attempt}", duties=case.duties)
        if case.rule in rules(found):
            return
    pytest.fail(f"{case.rule!r} was not found in {TRIES} runs; the last: {found['problems']}")


@pytest.mark.parametrize("name", CASES)
def test_with_it_the_same_faults_do_no_harm(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    skip_without_small_disks(name, tmp_path)
    duties = case.duties or case.repaired
    found = run(case, case.slow, tmp_path / "run", duties=duties)
    assert all(one["done"] >= 1 for one in found["struck"].values()), found["struck"]
    assert rules(found) <= (set() if duties else UNFINISHED), found["problems"]
