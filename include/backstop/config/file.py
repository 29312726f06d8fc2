"""Which file holds the settings. Light: DAG files ask it."""

from __future__ import annotations

import os
from pathlib import Path


def settings_file(path: Path | str | None = None) -> Path:
    """The file at `path`, $BACKSTOP_CONFIG or ./backstop.yaml."""
    return Path(path or os.environ.get("BACKSTOP_CONFIG") or "backstop.yaml")
