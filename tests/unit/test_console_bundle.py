"""What is shipped of the console is what its sources give, and what they say is in one catalogue."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from console_packages import UI, node_modules

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "include" / "backstop" / "airflow" / "console" / "static" / "console.js"


@pytest.mark.skipif(
    shutil.which("npm") is None and "CI" not in os.environ,
    reason="building the console needs Node; users do not",
)
@pytest.mark.timeout(600)
def test_building_it_again_gives_the_same_file(tmp_path: Path) -> None:
    work = tmp_path / "ui"
    shutil.copytree(UI, work, ignore=shutil.ignore_patterns("node_modules"))
    (work / "node_modules").symlink_to(node_modules())
    subprocess.run(
        ["node", "build.mjs", str(tmp_path / "console.js")], cwd=work, check=True, timeout=500
    )
    assert (tmp_path / "console.js").read_bytes() == SHIPPED.read_bytes(), "run `make ui`"


def test_it_takes_react_and_chakra_from_its_host_and_is_small() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    for name in ("React", "ReactRouterDOM", "ChakraUI"):
        assert f"globalThis.{name}" in text
    assert len(text) < 300_000, "React or Chakra UI is inside"
    assert "dangerouslySetInnerHTML" not in text and "eval(" not in text


def test_the_pages_have_no_text_of_their_own() -> None:
    for path in (UI / "src").rglob("*.tsx"):
        text = path.read_text(encoding="utf-8")
        # Between tags stands an expression, or nothing but signs.
        for found in re.findall(r"(?<=[\w\"'}])>([^<>{}=;()]*[A-Za-z]{2}[^<>{}=;()]*)</", text):
            raise AssertionError(f"{path.name}: {found!r} belongs into texts.ts")


def test_the_lock_names_no_registry() -> None:
    lock = (UI / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock and "http" not in re.sub(r'"(?:url|funding)": "[^"]*"', "", lock)
    assert all(one.get("integrity") for name, one in json.loads(lock)["packages"].items() if name)
