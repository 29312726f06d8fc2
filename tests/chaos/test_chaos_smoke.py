"""A short run under fire, with every kind of fault in it: everything comes out right, and the page says so."""

from __future__ import annotations

from pathlib import Path

from backstop_lab.chaos.page import page
from backstop_lab.chaos.run import run_chaos
from backstop_lab.chaos.schedule import KINDS, schedule

SEED, SECONDS, EVERY = 12, 24.0, 1.2


def test_a_short_storm_harms_no_message(tmp_path: Path) -> None:
    # Another start of Spark would cost more than all the rest.
    storm = [
        fault
        for fault in schedule(SEED, SECONDS, every=EVERY)
        if (fault.kind, fault.victim) != ("kill_process", "reconcile")
    ]
    report = run_chaos(tmp_path / "chaos", SEED, seconds=SECONDS, rate=20.0, faults=storm)
    assert report["problems"] == []
    assert report["ok"]
    assert sum(one["done"] for one in report["struck"].values()) >= len(KINDS) - 2
    for told in report["effects"].values():
        assert told["exactly_once"] == told["expected"] >= 200
    assert report["resends"]["attempts"] >= 1, "something was lost or refused, and sent again"
    assert "OK: every effect exactly once" in page(report)
    assert max(map(len, page(report).splitlines())) <= 80
