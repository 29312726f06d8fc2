"""One run up to its promotion, killed at a boundary: `judge_killed_child.py CASE.json`, from test_judge_kills.py."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.reconcile import gather, judge, revisit
from backstop.runs.run import find
from backstop.spark.session import start_session
from backstop.stores.protocol import Scope


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
settings, connections = (
    Settings.model_validate(case["settings"]),
    Connections(resolver=case["urls"].get),
)
control = connect(settings, connections)
run = find(control, case["run_id"], case["token"])
if case["boundary"] == "a late stub is confirmed, and its case is open":
    revisit.close_satisfied = die
    revisit.revisit_cases(settings, connections, control, run)
elif case["boundary"] == "what was seen of the broker is stored":
    gather.choose_scans = die
elif case["boundary"] == "parts are staged, and not counted":
    judge.prove_mapped_logs = die
judge.judge(start_session("killed", "local[2]"), settings, connections, control, run, Scope())
