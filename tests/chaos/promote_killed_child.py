"""Promotes one judged run and is killed at a boundary: `promote_killed_child.py CASE.json`, from test_promote_kills.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.reconcile import promote as subject
from backstop.runs.run import find
from backstop.sql.mysql import MysqlConnection
from backstop.stores.mariadb import stubs as maria_stubs
from backstop.stores.mariadb.change_stubs import promote
from backstop.stores.postgresql import stubs


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
settings, connections = (
    Settings.model_validate(case["settings"]),
    Connections(resolver=case["urls"].get),
)
control = connect(settings, connections)
run = find(control, case["run_id"], case["token"])
if case["boundary"] == "inside the control transaction":
    subject.close_satisfied = die  # its last statement but one
elif case["boundary"] == "after the control commit":
    subject._promote_shards = die
elif case["boundary"] == "between two commits of one shard":
    stubs._PROMOTED = maria_stubs._PROMOTED = 1  # one stub a commit
    promote_some, commits = stubs.PostgresStubs._promote, []

    def second_commit_dies(store: Any, given: Any, *rest: Any) -> Any:
        if store._connection.subject == "shard shop_b":
            commits.append(given)
            if len(commits) == 2:
                die()
        return promote_some(store, given, *rest)

    stubs.PostgresStubs._promote = second_commit_dies
    change, changes = MysqlConnection.change, []

    def second_change_dies(connection: Any, work: Any, **how: Any) -> Any:
        if connection.subject == "shard shop_b" and getattr(work, "func", None) is promote:
            changes.append(work)
            if len(changes) == 2:
                die()
        return change(connection, work, **how)

    MysqlConnection.change = second_change_dies
elif case["boundary"] == "after the last shard":
    promote_shards = subject._promote_shards

    def then_die(*given: Any) -> Any:
        promote_shards(*given)
        die()

    subject._promote_shards = then_die
else:
    promote_shard, first_is_done = subject._promote_shard, threading.Event()

    def second_shard_dies(control: Any, store: Any, name: str, *rest: Any) -> Any:
        if name == "shop_b":
            first_is_done.wait()
            die()
        moved = promote_shard(control, store, name, *rest)
        first_is_done.set()
        return moved

    subject._promote_shard = second_shard_dies
subject.promote(settings, connections, control, run)
