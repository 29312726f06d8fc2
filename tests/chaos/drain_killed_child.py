"""Drains and is killed at an arrow: `drain_killed_child.py CASE.json`, from test_drain_kills.py and test_rocketmq_letters.py."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backstop.brokers.protocol import DeadLetter, DeadLetterReader
from backstop.brokers.redis_streams.drain import RedisDeadLetters
from backstop.brokers.rocketmq.dead_letters.drain import RocketMQLetters
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.runs.run import find
from backstop.triage.drain import drain as subject
from backstop.triage.drain import store_page

case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
boundary, pages = case["boundary"], iter(range(1, 1000))
Reader: Any = RocketMQLetters if case.get("reader") == "rocketmq" else RedisDeadLetters
copy, store, acknowledge, finish = (
    store_page._copy,
    subject.store_page,
    Reader.acknowledge,
    subject._finish,
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_the_third_page() -> None:
    """Two pages are through; the third is where it happens."""
    if next(pages) == 3:
        die()


def dies_inside_the_transaction(*arguments: Any) -> int:
    stored = copy(*arguments)
    at_the_third_page()
    return stored


def dies_after_the_commit(*arguments: Any) -> Any:
    page = store(*arguments)
    at_the_third_page()
    return page


def dies_half_way_through_an_acknowledgement(
    reader: DeadLetterReader, letters: Sequence[DeadLetter]
) -> None:
    acknowledge(reader, letters[: len(letters) // 2])
    at_the_third_page()
    acknowledge(reader, letters[len(letters) // 2 :])


def dies_after_the_acknowledgement(reader: DeadLetterReader, letters: Sequence[DeadLetter]) -> None:
    acknowledge(reader, letters)
    at_the_third_page()


def dies_before_the_mark(*arguments: Any) -> None:
    if arguments[-1]:
        die()
    finish(*arguments)


if boundary == "inside the transaction":
    store_page._copy = dies_inside_the_transaction
elif boundary == "after the commit":
    subject.store_page = dies_after_the_commit
elif boundary == "half way through an acknowledgement":
    Reader.acknowledge = dies_half_way_through_an_acknowledgement
elif boundary == "after the acknowledgement":
    Reader.acknowledge = dies_after_the_acknowledgement
elif boundary == "before the mark":
    subject._finish = dies_before_the_mark
settings, connections = (
    Settings.model_validate(case["settings"]),
    Connections(resolver=case["urls"].get),
)
control = connect(settings, connections)
run = find(control, case["run_id"], case["token"])
subject.drain_all(settings, connections, control, run, bounds=subject.Bounds(page=20))
