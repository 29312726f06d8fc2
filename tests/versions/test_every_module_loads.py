"""Every module of the product can be imported with the versions that are installed: a name that a library no longer has, or
does not have yet, is found here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"
LOAD_ALL = """
import importlib, json, sys, traceback
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        failed[name] = traceback.format_exc()
print("FACTS" + json.dumps(failed))
"""


def test_every_module_of_the_product_can_be_imported(tmp_path: Path) -> None:
    modules = [
        ".".join(path.relative_to(INCLUDE).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((INCLUDE / "backstop").rglob("*.py"))
        if path.name != "__main__.py"
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, *modules],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            "PYTHONPATH": str(INCLUDE),
            "AIRFLOW_HOME": str(tmp_path),
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.rpartition("FACTS")[2]) == {}
