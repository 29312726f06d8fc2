"""docker-compose.yaml as Compose would read it: variables filled in, anchors merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::\?(?P<why>[^}]*))?\}")


class Missing(Exception):
    """A variable without a value, as Compose would refuse it."""


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """The value with every ${NAME:?why} replaced, and $$ as one dollar sign. Raises Missing, as `docker compose` would."""
    if isinstance(value, dict):
        return {name: filled(one, variables) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, variables) for one in value]
    return (
        _VARIABLE.sub(lambda found: _one(found, variables), value)
        if isinstance(value, str)
        else value
    )


def _one(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found[0] == "$$":
        return "$"
    if not variables.get(found["name"]):
        raise Missing(f"{found['name']}: {found['why']}")
    return variables[found["name"]]


def as_written() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return content


def read_env(path: Path) -> dict[str, str]:
    """A file of NAME=value lines."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines())
