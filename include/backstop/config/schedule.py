"""How often the duties run by themselves. Light: DAG files ask it when they are parsed, without loading all settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ON_DEMAND = True
DEFAULTS = {"safety_interval": "45m", "watch_interval": "15m"}
"""The defaults of `schedule` in backstop.yaml: with them an idle system makes 290 runs a day."""


def read_schedule(file: Path) -> Mapping[str, Any]:
    """The section `schedule` of a settings file, as it is written there; empty without one. Nothing else of the file is read."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    section = re.search(r"""^["']?schedule["']?\s*:.*(?:\n(?:[ \t#].*)?$)*""", text, re.MULTILINE)
    if section is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(section[0])["schedule"]
    except yaml.composer.ComposerError:  # it uses what another section names (`&name`, `*name`)
        found = yaml.safe_load(text)["schedule"]
    return found if isinstance(found, dict) else {}
