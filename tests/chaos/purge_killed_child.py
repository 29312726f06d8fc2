"""Runs retention and is killed at a boundary: `purge_killed_child.py CASE.json`, from test_purge_kills.py."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from psycopg2.extensions import cursor as Cursor

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.retention import purge_control, run_once
from backstop.stores.postgresql import purge as stores


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
boundary = case["boundary"]


def then_die(owner: Any, name: str) -> None:
    """The method does its work, commit included, and then nothing more happens."""
    inner = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        inner(*arguments, **options)
        die()

    setattr(owner, name, call)


class DiesInside(Cursor):
    """Dies between the floor and the delete of one transaction."""

    def execute(self, query: Any, values: Any = None) -> None:
        if query == stores._SQL["delete_logs"]:
            die()
        super().execute(query, values)


if boundary == "between the floor and the delete":
    run = stores.PostgresConnection.run

    def with_other_cursor(self: Any, work: Any) -> Any:
        opened = self._open()
        opened.cursor_factory = DiesInside
        return run(self, work)

    stores.PostgresConnection.run = with_other_cursor  # type: ignore[method-assign]
elif boundary == "after a step of logs":
    then_die(stores.PostgresLogPurge, "purge_logs")
elif boundary == "after a step of stubs":
    then_die(stores.PostgresStubPurge, "purge_stubs")
elif boundary == "before the requests":
    run_once.purge_history = die
elif boundary == "after a step of the control database":
    then_die(purge_control, "_steps")
else:
    raise SystemExit(f"no such boundary: {boundary}")
run_once.run_duty(
    Settings.model_validate(case["settings"]), Connections(resolver=case["urls"].get), now=True
)
