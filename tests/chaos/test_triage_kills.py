"""Triage and a person's answer, killed at each arrow or done twice at once: every letter is decided once, and nothing is lost."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.model.records import Counts
from backstop.runs.run import close_run, open_run
from backstop.triage.decide import apply
from backstop.triage.decide.apply import decide_and_apply
from control_world import World, servers, world  # noqa: F401
from forked import run_forked
from triage_world import cases, dead, letter, letters, look_now, requests, resend, triage

CHILD = Path(__file__).with_name("triage_killed_child.py")
OF_TRIAGE = [
    "in a batch's transaction",
    "after a batch's commit",
    "in the second batch",
    "before the cases are told",
    "in the settling's transaction",
    "after the settling's commit",
]
OF_ANSWERS = [
    "after the intention",
    "after the producer's commit",
    "in the answer's transaction",
    "after the answer's commit",
]


def killed(*arguments: str) -> None:
    ended = run_forked(CHILD, *arguments)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("boundary", OF_TRIAGE)
def test_a_triage_that_is_killed_is_finished_by_the_next_one_and_decides_nothing_twice(
    world: World, boundary: str
) -> None:
    dead(world, "early")
    triage(world)
    resend(world)  # its letter is to be settled
    for number in range(2):
        dead(world, f"safe{number}")
        dead(world, f"poison{number}", "poison")
    world.stub("false", sends=1)
    world.log("false", "billing")
    letter(world, "false", "duplicate_suppressed")
    killed(boundary)
    triage(world)
    look_now(world)
    triage(world)
    assert {name: one["state"] for name, one in letters(world).items()} == {
        "early": "replayed",
        "safe0": "replaying",
        "safe1": "replaying",
        "poison0": "open",
        "poison1": "open",
        "false": "discarded",
    }
    assert [row[:2] for row in requests(world)] == [("early", 2), ("safe0", 2), ("safe1", 2)]
    assert cases(world) == [("orders", "billing", "1:poison", "warning", "open")]
    assert world.control("SELECT count(*) FROM case_member") == [(2,)]
    assert world.control("SELECT count(*) FROM alert") == [(1,)]
    assert world.control("SELECT summary FROM case_file")[0][0].startswith("2 dead letters")
    assert resend(world)["published"] == 2
    assert triage(world)["replayed"] == 2


@pytest.mark.parametrize("boundary", OF_ANSWERS)
def test_an_answer_that_is_killed_is_whole_or_can_be_given_again(
    world: World, boundary: str
) -> None:
    dead(world, "m", "transient")
    world.run("producer_a", "UPDATE message_stub SET send_count = 4")
    triage(world)
    ((case_id,),) = world.control("SELECT case_id FROM case_file")
    killed(boundary, str(case_id), "replay")
    whole = boundary == "after the answer's commit"
    assert (letters(world)["m"]["state"], len(requests(world))) == (
        ("replaying", 1) if whole else ("open", 0)
    )
    answer = decide(
        world.conn, world.settings, world.connections, case_id, "replay", "ann", "because", {}
    )
    assert answer.again is whole
    assert letters(world)["m"]["state"] == "replaying"
    assert [row[1] for row in requests(world)] == [5]
    assert world.stub_now("m")["max_sends"] == 5


def test_two_triage_runs_at_once_decide_each_letter_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        dead(world, f"safe{number}")
        dead(world, f"poison{number}", "poison")
    real, both = apply._apply, threading.Barrier(2)

    def together(*arguments: Any) -> Any:
        both.wait(60)  # both have looked at the same letters
        return real(*arguments)

    monkeypatch.setattr(apply, "_apply", together)
    done: list[Counts] = []

    def one_run(scope: str) -> None:
        conn = connect(world.settings, world.connections)
        try:
            run = open_run(conn, "triage", scope, world.settings)
            done.append(decide_and_apply(world.settings, world.connections, conn, run))
            close_run(conn, run, "done", Counts())
        finally:
            conn.close()

    runs = [threading.Thread(target=one_run, args=(scope,)) for scope in ("*", '["orders"]')]
    for one in runs:
        one.start()
    for one in runs:
        one.join(120)
    total = done[0] + done[1]
    assert (total["replaying"], total["escalated"], total["moved_on"], total["requests"]) == (
        20,
        20,
        40,
        20,
    )
    assert len(cases(world)) == 1
    assert world.control("SELECT count(*) FROM alert") == [(1,)]
