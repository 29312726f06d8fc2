"""The Java of the programs that we start: the one that set-up found fit."""

from __future__ import annotations

import os
from pathlib import Path

from backstop_lab.servers.child import LocalServerError


def java() -> Path:
    """The program. LocalServerError outside `make`, which says where Java is."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        raise LocalServerError(
            "JAVA_HOME is not set.",
            unaffected="Nothing was started.",
            next_step="Run it by `make` (see `make help`), or with JAVA_HOME=$(cat .local/java_home).",
        )
    return Path(home) / "bin" / "java"
