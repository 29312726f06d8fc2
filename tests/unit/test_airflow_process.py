"""An Airflow process of ours ends when its command has: with its exit code, and with what it said; its scheduler is Airflow's own."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from typing import Any

import pytest

from backstop.airflow import scheduler
from backstop_lab.servers.airflow_process import become_airflow


class Ended(BaseException):
    pass


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit("it is wrong"), 1, "it is wrong\n"),
        (RuntimeError("it broke"), 1, "RuntimeError: it broke\n"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
    ],
)
def test_it_ends_as_its_command_did(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    raised: BaseException | None,
    code: int,
    said: str,
) -> None:
    asked: list[list[str]] = []

    def run(module: str, **_: Any) -> None:
        asked.append([module, *sys.argv])
        print("half a line", end="")
        if raised is not None:
            raise raised

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(runpy, "run_module", run)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    with pytest.raises(Ended) as ended:
        become_airflow(["db", "migrate"])
    assert ended.value.args == (code,)
    assert asked == [["airflow", "airflow", "db", "migrate"]]
    out, errors = capfd.readouterr()
    assert out == "half a line" and errors.endswith(said) and bool(errors) == bool(said)


def test_the_scheduler_imports_what_the_duties_need_and_is_airflows_with_the_same_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    monkeypatch.setattr(scheduler, "import_duties", lambda: done.append("imports"))
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: done.append((name, *sys.argv)))
    monkeypatch.setattr(sys, "argv", ["scheduler.py", "--skip-serve-logs"])
    scheduler.main()
    assert done == ["imports", ("airflow", "airflow", "scheduler", "--skip-serve-logs")]
