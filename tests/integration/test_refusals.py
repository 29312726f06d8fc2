"""What the command line refuses: a choice that would be passed over, a name or number that nothing has."""

from __future__ import annotations

import pytest

from backstop.cli.app import run_app
from control_world import World, servers, world  # noqa: F401  fixtures
from triage_world import dead


def test_a_stored_plan_takes_no_other_choice(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        dead(world, name)
    assert run_app(["replay", "--topic", "orders", "--verdict", "DEAD_LETTERED", "--by", "ann", "--why", "outage"]) == 0
    [(number, planned)] = world.control("SELECT run_id, count(*) FROM incident_delivery GROUP BY run_id")
    assert planned == 2
    for option in (["--limit", "1"], ["--group", "x"], ["--why", "y"], ["--topic", "orders"], ["--rate", "1"], ["--cause", "1"]):
        capsys.readouterr()
        assert run_app(["replay", "--plan", str(number), "--full", *option]) == 2, option
        assert f"--plan takes no {option[0]}" in capsys.readouterr().err
    assert world.control("SELECT count(*) FROM resend_request") == [(0,)]
