"""Airflow's home for these tests, chosen before anything imports it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from typing import Any

import pytest

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="backstop-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


_people = ExitStack()
_ready: list[Any] = []


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One start of Airflow for the tests of several files; it ends with the last of them. Each has its own topics and cases."""
    from live_people import live_people

    if not _ready:
        _ready.append(_people.enter_context(live_people(tmp_path_factory.mktemp("people"))))
    return _ready[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """An idle Airflow takes a third of a core from all that comes after it."""
    if _ready and "people" not in getattr(nextitem, "fixturenames", ()):
        _ready.clear()
        _people.close()


def pytest_sessionfinish() -> None:
    _people.close()
    shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)
