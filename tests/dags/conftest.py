"""Airflow's home for these tests, chosen before anything imports it, and our plugins where Airflow would put
them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="backstop-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
sys.path.append(str(ROOT / "plugins"))


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One start of Airflow for all tests in which people answer."""
    from live_people import live_people

    with live_people(tmp_path_factory.mktemp("people")) as ready:
        yield ready
