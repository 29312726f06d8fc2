"""The Spark job of resend, without Spark: what its workers report."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from spark_jobs import resend

from backstop.model.errors import PublishFailed
from backstop.model.records import Counts
from backstop.runs.run import Run

RUN = Run(1, "token", datetime.now(UTC), "resend", "*")


def test_what_the_other_workers_sent_is_counted_when_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = json.dumps(["PublishFailed", "refused", "nothing else", "look at it"])
    reports = [
        {"counts": "{}", "missed": "{}", "error": error},
        {"counts": '{"sent": 7}', "missed": '{"broker main": "away"}', "error": None},
    ]
    spark, worker = MagicMock(), SimpleNamespace(control=None, missed={})
    worker.miss = worker.missed.__setitem__
    spark.range.return_value.mapInPandas.return_value.collect.return_value = reports
    counted: list[Counts] = []
    for name, fake in {
        "open_worker": lambda *_: nullcontext(worker),
        "prepare": lambda _: Counts(),
        "now": lambda _: datetime.now(UTC),
        "find_due": lambda *_: {"main": 10},
        "add_counts": lambda _, __, counts: counted.append(counts),
    }.items():
        monkeypatch.setattr(resend, name, fake)
    settings: Any = MagicMock()
    settings.resend.batch_size, spark.sparkContext.defaultParallelism = 500, 2
    with pytest.raises(PublishFailed, match="refused"):
        resend.run(spark, settings, MagicMock(), RUN)
    assert counted == [{"sent": 7}]
    assert worker.missed == {"broker main": "away"}
