"""Airflow's home for these tests, chosen before anything imports it, and our plugins where Airflow would put
them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="backstop-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
sys.path.append(str(ROOT / "plugins"))
