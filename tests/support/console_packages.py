"""What ui/package-lock.json names, installed beside the console's sources: once for all tests, by whichever comes first."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

UI = Path(__file__).resolve().parents[2] / "ui"


def node_modules() -> Path:
    """The folder of the packages; asserts that there is an npm where they are not installed yet."""
    folder = UI / "node_modules"
    wanted = json.loads((UI / "package.json").read_text())
    names = {**wanted.get("dependencies", {}), **wanted.get("devDependencies", {})}
    with (UI / "package-lock.json").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not all((folder / name).is_dir() for name in names):
            npm = shutil.which("npm")
            assert npm, "the console's packages come with npm: apt-get install npm"
            subprocess.run(
                [npm, "ci", "--no-audit", "--no-fund", "--silent"], cwd=UI, check=True, timeout=500
            )
    return folder
