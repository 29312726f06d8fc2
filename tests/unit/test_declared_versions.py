"""The ranges that pyproject.toml declares hold the versions that CI tries, and docs/compatibility.md says the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRIED = ("platform", "quality", "spark", "alerts", "airflow", "mysql", "mongodb", "otlp")
DECLARED = {
    one.name: one
    for text in (
        *PROJECT["dependencies"],
        *(line for extra in TRIED for line in PROJECT["optional-dependencies"][extra]),
    )
    if (one := Requirement(text)).name != PROJECT["name"]
}


def locked(path: str) -> dict[str, str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;]+)", text, re.MULTILINE))


OLDEST, NEWEST = locked("tests/versions/oldest.lock"), locked("requirements.lock")


@pytest.mark.parametrize("name", DECLARED)
def test_both_locks_are_within_the_declared_range(name: str) -> None:
    assert OLDEST[name] in DECLARED[name].specifier
    assert NEWEST[name] in DECLARED[name].specifier


def test_pyspark_and_its_client_have_one_range_and_one_version() -> None:
    assert DECLARED["pyspark"].specifier == DECLARED["pyspark-client"].specifier
    for lock in (OLDEST, NEWEST):
        assert lock["pyspark"] == lock["pyspark-client"]


def test_the_page_has_the_ranges_and_what_was_tried() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9-]+) \| `([^`]+)` \| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    assert {"apache-airflow", "pyspark", "great-expectations", "redis", "psycopg2-binary"} <= {
        name for name, *_ in rows
    }
    for name, written, oldest, newest in rows:
        assert DECLARED[name].specifier == Requirement(name + written).specifier, name
        assert (oldest, newest) == (OLDEST[name], NEWEST[name])


def test_each_listed_test_is_there() -> None:
    """pytest fails for one that is not, an hour later."""
    listed = (ROOT / "tests" / "versions" / "tests.txt").read_text(encoding="utf-8").splitlines()
    for line in (line for line in listed if line and not line.startswith("#")):
        path, _, name = line.partition("::")
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), line
        assert (ROOT / path).is_file(), line
