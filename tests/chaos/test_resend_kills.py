"""SIGKILL at each commit boundary of a resend; then the next run: each number published at most once, nothing
stuck.

The file is also the child that is killed: `python test_resend_kills.py <file with the system's addresses>
<boundary>`.
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
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backstop.model.private_file import write_private
from backstop.resend import run_once, send_claimed
from backstop.resend.run_once import now
from forked import run_forked
from maria_world import maria_producer, maria_server  # noqa: F401
from resend_in_mariadb import in_mariadb  # noqa: F401
from resend_world import TOPIC, World, ids, once, servers, world  # noqa: F401

# Both sides of every commit: the request's claim, the stub's claim, the publish, the settle, the close.
BOUNDARIES = [
    "claim_requests before",
    "claim_requests inside",
    "claim_requests after",
    "claim before",
    "claim after",
    "publish before",
    "publish after",
    "settle before",
    "settle after",
    "end_requests inside",
    "end_requests after",
]
OF_THE_STORE = [
    "claim before",
    "claim after",
    "publish after",
    "settle before",
    "settle after",
]
"""Both sides of every commit in the producer's database."""
MESSAGES, BATCH = 12, 5


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_kill_is_repaired_by_the_next_run(world: World, boundary: str, tmp_path: Path) -> None:
    _kill_and_go_on(world, boundary, tmp_path)


@pytest.mark.parametrize("boundary", OF_THE_STORE)
def test_a_kill_is_repaired_where_the_stubs_are_in_mariadb(
    in_mariadb: World, boundary: str, tmp_path: Path
) -> None:
    _kill_and_go_on(in_mariadb, boundary, tmp_path)


def _kill_and_go_on(world: World, boundary: str, tmp_path: Path) -> None:
    world.set("resend", to={"batch_size": BATCH})
    wanted = ids(MESSAGES)
    world.stubs(wanted)
    world.ask(wanted)
    addresses = tmp_path / "addresses.json"
    write_private(addresses, json.dumps({"urls": world.urls, "written": world.written}))

    child = run_forked(__file__, str(addresses), boundary)
    assert child.returncode == -signal.SIGKILL, child.stderr
    world.sql("control", "DELETE FROM duty_lease")  # its heartbeat has been silent for long enough
    at_the_kill = world.copies()

    # The next run, before any deadline: it does the rest, and leaves alone what may still be under way.
    world.resend()
    _check(world, wanted)
    # And one after the deadlines.
    world.expire_claims()
    world.resend()
    world.resend()

    _check(world, wanted)
    assert set(world.requests()) <= {"sent", "unknown"}, "nothing is stuck"
    assert sum(world.requests().values()) == MESSAGES
    assert set(at_the_kill) <= set(world.copies()), "nothing that was out is gone"
    unknown = world.attempts()["unknown"]
    assert unknown == (BATCH if boundary in NUMBER_TAKEN_BUT_NOT_SETTLED else 0)
    for i in wanted:
        found = world.stub(i)
        assert found["attempt_token"] is None and found["send_count"] == 1


NUMBER_TAKEN_BUT_NOT_SETTLED = {
    "claim after",
    "publish before",
    "publish after",
    "settle before",
}


def _check(world: World, wanted: list[str]) -> None:
    copies = world.copies()
    assert set(copies.values()) <= {1}, "a send number was published twice"
    for i in wanted:
        published = sum(number for (message_id, _), number in copies.items() if message_id == i)
        assert published <= world.stub(i)["send_count"]


class Protocol(RuleBasedStateMachine):
    """Two workers that stop anywhere, go on late or never, claims and attempts that run out under them, on
    the real SQL."""

    world: World
    STEPS = ("claim before", "claim after", "publish before", "settle before")

    @initialize()
    def begin(self) -> None:
        self.world.empty()
        self.world.stubs(["m"])
        self.world.ask(["m"])
        self.asked = 1

    @rule(
        stop=st.sampled_from(STEPS),
        happens=st.lists(st.sampled_from(["expire", "other run", "crash"]), max_size=3),
    )
    def a_worker_is_interrupted(self, stop: str, happens: list[str]) -> None:
        def meanwhile() -> None:
            for what in happens:
                if what == "expire":
                    self.world.expire_claims()
                elif what == "other run":
                    with self.world.run(TOPIC) as run:
                        run_once.run_once(self.world.settings, self.world.connections, run)
                else:
                    raise _Crash

        try:
            self.world.hooked_resend({stop: once(meanwhile)})
        except _Crash:
            return

    @rule()
    def time_passes(self) -> None:
        self.world.expire_claims()
        self.world.sql(
            "producer_a", "UPDATE message_stub SET next_check_at = now() - interval '1 second'"
        )

    @precondition(lambda self: self.asked < 4)
    @rule()
    def reconcile_asks_again(self) -> None:
        found = self.world.stub("m")
        if found["attempt_token"] is None:
            self.world.ask(["m"], number=found["send_count"] + 1)
            self.asked += 1

    @invariant()
    def published_at_most_once_and_never_more_than_handed_out(self) -> None:
        _check(self.world, ["m"])
        assert self.world.stub("m")["send_count"] <= self.asked

    def teardown(self) -> None:
        self.world.expire_claims()
        for _ in range(2):
            self.world.resend()
            self.world.expire_claims()
        _check(self.world, ["m"])
        assert "claimed" not in self.world.requests(), "nothing is stuck"
        assert self.world.stub("m")["attempt_token"] is None


class _Crash(BaseException):
    """The worker forgets everything where it stands."""


def test_any_interleaving_of_workers_crashes_and_deadlines_keeps_the_protocol(world: World) -> None:
    Protocol.world = world
    run_state_machine_as_test(
        Protocol,
        settings=settings(
            max_examples=12,
            stateful_step_count=6,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def child(addresses: Path, boundary: str) -> None:
    """One resend that kills itself at the boundary, of its first batch."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    known = json.loads(addresses.read_text())
    small = World(known["urls"])
    small.written = known["written"]
    step, _, side = boundary.partition(" ")
    if step in ("claim_requests", "end_requests"):
        module: Any = run_once if step == "claim_requests" else send_claimed
        plain: Callable[..., Any] = getattr(module, step)

        def wrapped(worker: Any, *rest: Any) -> Any:
            if side == "before":
                die()
            if side == "inside":
                worker.control = _DiesBeforeItsCommit(worker.control, die)
            answer = plain(worker, *rest)
            die()
            return answer

        setattr(module, step, wrapped)
    with small.run() as run, small.worker(run, {boundary: die}) as worker:
        run_once.drain_requests(worker, now(worker))


class _DiesBeforeItsCommit:
    """A connection whose next transaction does all its statements and is then cut off."""

    def __init__(self, inner: Any, die: Callable[[], None]) -> None:
        self._inner, self._die = inner, die

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *_: Any) -> None:
        self._die()

    def cursor(self, *arguments: Any) -> Any:
        return self._inner.cursor(*arguments)


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])
