"""How often the duties run by themselves. Light: DAG files ask it when they are parsed, without loading all settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ON_DEMAND = True
DEFAULTS = {"safety_interval": "45m", "watch_interval": "15m"}
"""The defaults of `schedule` in backstop.yaml: with them an idle system makes 290 runs a day."""
WINDOW = "01:00-05:00"
"""The default of `retention.window`."""
WINDOW_FORM = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"


def read_schedule(file: Path) -> Mapping[str, Any]:
    """The section `schedule` of a settings file, as it is written there; empty without one. Nothing else of the file is read."""
    return read_section(file, "schedule")


def read_section(file: Path, name: str) -> Mapping[str, Any]:
    """The same for the section of another name."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    section = re.search(rf"""^["']?{name}["']?\s*:.*(?:\n(?:[ \t#].*)?$)*""", text, re.MULTILINE)
    if section is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(section[0])[name]
    except yaml.YAMLError:  # it uses what another section names (`&name`, `*name`), or ends with a bracket on a line of its own
        found = yaml.safe_load(text)[name]
    return found if isinstance(found, dict) else {}
