"""A run whose Spark session is long in coming is alive: nobody takes it over meanwhile."""

from __future__ import annotations

import importlib
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from backstop.runs.run import keep_alive, open_run
from backstop.spark import job
from backstop_lab.shop.wait_for import wait_for
from control_world import World, servers, world  # noqa: F401


class Started(Exception):
    """The session is there at last."""


@pytest.mark.parametrize("duty", ["reconcile", "resend", "sweep", "prove", "classify"])
def test_a_run_beats_while_its_session_starts(
    duty: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(world.conn, duty, "*", world.settings)

    def beats() -> Any:
        return world.control("SELECT heartbeat_at FROM run WHERE run_id = %s", (run.run_id,))

    def starts_slowly(_: str) -> None:
        before = beats()
        wait_for("A heartbeat", lambda: beats() > before, 30, lambda: "none", every=0.05)
        raise Started

    monkeypatch.setattr(job, "load", lambda: world.settings)
    monkeypatch.setattr(job, "Connections", lambda: world.connections)
    monkeypatch.setattr(job, "keep_alive", partial(keep_alive, every=timedelta(seconds=0.1)))
    monkeypatch.setattr(job, "start_session", starts_slowly)
    with pytest.raises(Started):
        job.run_job(duty, importlib.import_module(f"spark_jobs.{duty}").run, run.run_id, run.token)
