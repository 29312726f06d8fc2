"""A run that is killed before its promotion leaves nothing that the next run builds on, and the next run is right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run, open_run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, build_template, settings_dict, system

CHILD = Path(__file__).with_name("judge_killed_child.py")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[System]:
    with (
        Postgres(tmp_path / "postgres") as postgres,
        Valkey(tmp_path / "valkey", appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey) as made:
            yield made


def no_audit(run: Run, suites: Sequence[str]) -> None:
    """The suites have tests of their own."""


def test_a_run_killed_before_its_promotion_changes_nothing_and_the_next_one_is_right(
    world: System, spark: Any, tmp_path: Path
) -> None:
    late = world.sent("late", max_sends=1)
    for group in ("billing", "shipping"):
        world.pass_over(group)
    run_once(world.settings, world.connections, lambda: spark, no_audit)
    assert statuses(world) == {"late": "exhausted"} and cases(world) == [("exhausted", "open")] * 2
    for group in ("billing", "shipping"):
        world.log(late, group)
    world.sent("done")
    for group in ("billing", "shipping"):
        world.consume(group)
    world.sent("lost")
    world.pass_over("billing")
    world.consume("shipping")

    killed(world, tmp_path, "what was seen of the broker is stored")
    assert world.rows("control", "SELECT count(*) > 0 FROM progress_history") == [(True,)]
    killed(world, tmp_path, "parts are staged, and not counted")
    staged = "SELECT message_id FROM staged_stub WHERE run_id = (SELECT max(run_id) FROM run)"
    assert {name for (name,) in world.rows("control", staged)} >= {"done", "lost"}
    untouched = {"late": "exhausted", "done": "pending", "lost": "pending"}
    assert statuses(world) == untouched
    assert requests(world) == []
    killed(world, tmp_path, "a late stub is confirmed, and its case is open")
    assert statuses(world) == {**untouched, "late": "confirmed"}
    assert cases(world) == [("exhausted", "open")] * 2

    run_once(world.settings, world.connections, lambda: spark, no_audit, dead_after=timedelta(0))
    assert statuses(world) == {**untouched, "late": "confirmed", "done": "confirmed"}
    assert requests(world) == [("lost", 2, ["billing"])]
    assert {state for kind, state in cases(world) if kind == "exhausted"} == {"closed"}


def killed(world: System, folder: Path, boundary: str) -> None:
    """A new run in a process of its own, up to the boundary. The one before it is dead, and given up."""
    with closing(world.control()) as control:
        run = open_run(control, "reconcile", "*", world.settings, dead_after=timedelta(0))
    case = folder / "case.json"
    case.write_text(
        json.dumps(
            {
                "settings": settings_dict(),
                "urls": world.urls,
                "run_id": run.run_id,
                "token": run.token,
                "boundary": boundary,
            }
        )
    )
    ended = subprocess.run(
        [sys.executable, str(CHILD), str(case)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def statuses(world: System) -> dict[str, str]:
    return {
        name: status
        for shard in ("shop_a", "shop_b")
        for name, status in world.rows(shard, "SELECT message_id, status FROM message_stub")
    }


def requests(world: System) -> list[tuple[Any, ...]]:
    return world.rows("control", "SELECT message_id, send_number, groups FROM resend_request")


def cases(world: System) -> list[tuple[Any, ...]]:
    return world.rows("control", "SELECT kind, state FROM case_file ORDER BY 1, 2")
