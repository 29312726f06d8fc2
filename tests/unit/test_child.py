"""A process that was started is known to its owner, whenever a signal comes."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backstop_lab.servers import child
from backstop_lab.servers.child import Child, is_alive, run_to_end

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["subprocess.Popen[Any]"]]:
    """Processes that were started; Ctrl-C comes when each runs and nobody has it yet."""
    # A suite that runs in the background ignores Ctrl-C, and its processes with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found: list[subprocess.Popen[Any]] = []
    start = subprocess.Popen

    def interrupted(*arguments: Any, **values: Any) -> "subprocess.Popen[Any]":
        found.append(start(*arguments, **values))
        signal.raise_signal(signal.SIGINT)
        return found[-1]

    monkeypatch.setattr(child.subprocess, "Popen", interrupted)
    yield found
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_a_server_is_started_leaves_it_to_who_stops_it(
    tmp_path: Path, started: list["subprocess.Popen[Any]"]
) -> None:
    server = Child("A server", tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        server.start(SLEEPS)
    assert server.running
    server.stop()
    assert [one for one in started if is_alive(one.pid)] == []


def test_ctrl_c_while_a_program_is_started_ends_it(
    started: list["subprocess.Popen[Any]"],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_to_end(SLEEPS, env={}, seconds=60)
    assert started and [one for one in started if is_alive(one.pid)] == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
