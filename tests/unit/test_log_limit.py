"""A fault that lasts is logged once in some minutes."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from backstop.model import log_limit
from backstop.model.log_limit import LimitedLog


def test_a_fault_is_logged_once_in_some_minutes_with_how_often_it_was_met(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(log_limit, "time", SimpleNamespace(monotonic=lambda: now))
    limited = LimitedLog(logging.getLogger("test"))
    for number in range(100):
        limited.warning(f"Queue {number} cannot be read.")
    limited.warning("The broker is away.")
    now = log_limit.AGAIN_SECONDS
    limited.warning("Queue 7 cannot be read.")
    assert [record.getMessage() for record in caplog.records] == [
        "Queue 0 cannot be read.",
        "The broker is away.",
        "Queue 7 cannot be read. (99 times more since it was logged last)",
    ]
