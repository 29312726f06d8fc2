"""A soak's verdict: what grows is called growing, what is flat is called flat, and the start does not count."""

from __future__ import annotations

import os
from typing import Any

from backstop_lab.chaos.soak import figures, judge, memory_of

MEBI = 1 << 20


def samples(size: Any, name: str = "resend") -> list[dict[str, Any]]:
    """Two hours, one a minute."""
    return [
        {"at": 60.0 * n, "memory": {name: int(size(n))}, "tables": {"control.run": n * MEBI}}
        for n in range(120)
    ]


def runs(seconds: Any) -> dict[str, list[dict[str, Any]]]:
    lines = [
        {"run": "first", "ended": "done", "counts": {"due": 5}, "seconds": seconds(n)}
        for n in range(400)
    ]
    return {"reconcile": lines}


def test_flat_memory_and_flat_run_time_are_flat() -> None:
    told = judge(samples(lambda n: (300 + n % 7) * MEBI), runs(lambda n: 2.0 + 0.1 * (n % 3)))
    assert told["flat"] and told["growing"] == told["slower"] == []


def test_a_leak_is_growing() -> None:
    told = judge(samples(lambda n: (100 + n) * MEBI), runs(lambda n: 2.0))
    assert not told["flat"] and told["growing"] == ["resend"]
    assert 59 * MEBI < told["memory"]["resend"]["per_hour"] < 61 * MEBI


def test_what_grows_only_at_the_start_is_flat() -> None:
    assert judge(samples(lambda n: min(100 + 10 * n, 350) * MEBI), runs(lambda n: 2.0))["flat"]


def test_a_server_that_fills_its_caches_is_shown_and_not_judged() -> None:
    told = judge(samples(lambda n: (100 + 5 * n) * MEBI, "server broker"), runs(lambda n: 2.0))
    assert told["flat"] and not told["memory"]["server broker"]["flat"]


def test_runs_that_get_slower_are_not_flat() -> None:
    told = judge(samples(lambda n: 300 * MEBI), runs(lambda n: 2.0 + n / 200))
    assert told["slower"] == ["reconcile"] and not told["flat"]


def test_runs_with_nothing_to_do_say_nothing() -> None:
    idle = [{"run": "first", "ended": "done", "counts": {"due": 0}, "seconds": 9.0}]
    told = judge(
        samples(lambda n: 300 * MEBI), {"reconcile": runs(lambda n: 2.0)["reconcile"] + idle * 500}
    )
    assert told["flat"] and told["run_times"]["reconcile"]["runs"] == 400


def test_the_memory_of_a_process_is_what_it_holds() -> None:
    before = memory_of(os.getpid())
    held = bytearray(64 * MEBI)
    held[::4096] = b"x" * len(held[::4096])
    assert memory_of(os.getpid()) - before > 48 * MEBI
    assert memory_of(None) == 0


def test_the_figures_are_a_page_of_markdown() -> None:
    told = judge(samples(lambda n: 300 * MEBI), runs(lambda n: 2.0))
    page = figures(
        {
            **told,
            "minutes": 120.0,
            "rate": 40.0,
            "messages": 288000,
            "machine": {"cores": 2},
            "problems": [],
            "resends": {"lost_in_broker": 9, "attempts": 9},
        }
    )
    assert "Measured: 120.0 minutes at 40 messages a second, 288000 messages, 2 cores." in page
    assert "| resend | 300 MiB | +0.0 MiB | yes |" in page
    assert "| reconcile | 400 | 2.00 s | 2.00 s | yes |" in page
