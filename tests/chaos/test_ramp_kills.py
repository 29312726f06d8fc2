"""SIGKILL around each commit of a ramp: the next run goes on, no step is released twice, none is lost.

The file is also the child that is killed: `python test_ramp_kills.py <file with the system's addresses> <moment>`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstop.model.private_file import write_private
from backstop.resend import ramp, run_once
from forked import run_forked
from resend_world import TOPIC, World, ids, servers, world  # noqa: F401

CANARY, MESSAGES = 4, 20
MOMENTS = [
    "begin inside",
    "begin after",
    "step inside",
    "step after",
    "stop inside",
    "stop after",
    "close inside",
    "close after",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_a_batch_that_the_next_run_advances(
    world: World, moment: str, tmp_path: Path
) -> None:
    world.set("policy", "canary", to=CANARY)
    wanted = ids(CANARY + 1 if moment.startswith("close") else MESSAGES)
    world.stubs(wanted)
    world.ask(wanted, ramped=True)
    what = moment.split()[0]
    if what != "begin":
        world.resend()
        confirm(world, wanted[:CANARY])
    if what == "stop":
        world.sql(
            "control",
            "UPDATE resend_request SET state = 'refused' WHERE message_id = %s",
            [wanted[0]],
        )
    if what == "close":
        world.resend()
        confirm(world, wanted[CANARY:])
    before = out(world)

    addresses = tmp_path / "addresses.json"
    write_private(addresses, json.dumps({"urls": world.urls, "written": world.written}))
    child = run_forked(__file__, str(addresses), moment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    world.sql("control", "DELETE FROM duty_lease")  # its heartbeat has been silent for long enough
    assert out(world) == before, "it was killed before anything went out"

    world.resend()
    ((step, released, state, cases),) = world.sql(
        "control",
        "SELECT step, released, state, (SELECT count(*) FROM case_file) FROM resend_batch",
    )
    match what:
        case "begin":
            assert (step, released, out(world)) == (1, CANARY, wanted[:CANARY])
        case "step":
            assert (step, released, out(world)) == (2, 3 * CANARY, wanted[: 3 * CANARY])
        case "stop":
            assert (step, state, cases, out(world)) == (1, "stopped", 1, wanted[:CANARY])
        case "close":
            assert (step, state, out(world)) == (2, "done", wanted)
    assert set(world.copies().values()) == {1}


def confirm(world: World, message_ids: list[str]) -> None:
    for message_id in message_ids:
        for group in ("billing", "shipping"):
            world.consume(message_id, group)


def out(world: World) -> list[str]:
    return sorted(message_id for message_id, _ in world.copies(TOPIC))


def child(addresses: Path, moment: str) -> None:
    """One resend that kills itself inside the transaction that moves the batch, all its statements done, or right after."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    known = json.loads(addresses.read_text())
    small = World(known["urls"])
    small.written = known["written"]
    step: Callable[..., Any] = ramp._begin if moment.startswith("begin") else ramp._advance

    def dying(worker: Any, *rest: Any) -> Any:
        if moment.endswith("inside"):
            worker.control = _DiesBeforeItsCommit(worker.control, die)
        step(worker, *rest)
        die()

    setattr(ramp, step.__name__, dying)
    with small.run() as run, small.worker(run) as worker:
        run_once.prepare(worker)


class _DiesBeforeItsCommit:
    """A connection that is cut off at the end of the transaction that changed a batch."""

    def __init__(self, inner: Any, die: Callable[[], None]) -> None:
        self._inner, self._die = inner, die

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *what: Any) -> None:
        with self._inner.cursor() as cursor:
            cursor.execute("SELECT txid_current_if_assigned()")
            if cursor.fetchone()[0] is not None:
                self._die()
        self._inner.__exit__(*what)

    def cursor(self, *arguments: Any) -> Any:
        return self._inner.cursor(*arguments)


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])
