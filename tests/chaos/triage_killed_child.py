"""Triage, or a person's answer, killed at a boundary: `triage_killed_child.py BOUNDARY [CASE ACTION]`."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.runs.run import open_run
from backstop.triage.decide import answer, apply, settle_replays


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(real: Any) -> Any:
    def both(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        die()

    return both


def second(real: Any) -> Any:
    calls: list[int] = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return die() if len(calls) > 1 else real(*arguments, **options)

    return call


PLACES: dict[str, tuple[Any, str, Any]] = {
    "in a batch's transaction": (apply, "leave_cases", die),
    "after a batch's commit": (apply, "add_counts", die),
    "in the second batch": (apply, "_apply", second(apply._apply)),
    "before the cases are told": (apply, "refresh_cases", die),
    "in the settling's transaction": (settle_replays, "end_of", die),
    "after the settling's commit": (settle_replays, "hold", second(settle_replays.hold)),
    "after the intention": (answer, "gather_evidence", die),
    "after the producer's commit": (answer, "_finish", die),
    "in the answer's transaction": (answer, "record", die_after(answer.record)),
    "after the answer's commit": (answer, "_finish", die_after(answer._finish)),
}

if __name__ == "__main__":
    module, name, instead = PLACES[sys.argv[1]]
    assert hasattr(module, name), name
    setattr(module, name, instead)
    settings, connections = load(None), Connections()
    control = connect(settings, connections)
    if len(sys.argv) > 2:
        decide(control, settings, connections, int(sys.argv[2]), sys.argv[3], "ann", "because", {})
    else:
        apply._BATCH = 2  # small, so that there are two
        run = open_run(control, "triage", "*", settings, dead_after=timedelta(0))
        settle_replays.settle_replays(settings, control, run)
        apply.decide_and_apply(settings, connections, control, run)
