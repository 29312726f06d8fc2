"""Revisions are found by their number alone, and run as they stand."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files

import pytest

from backstop.schema.revisions import IN_MARIADB, ROLES, revisions


@pytest.mark.parametrize("role", [*ROLES, *IN_MARIADB.values()])
def test_no_two_revisions_have_one_number_and_none_is_left_out(role: str) -> None:
    named = [entry.name for entry in files("backstop.schema").joinpath(role).iterdir()]
    numbers = Counter(name[:4] for name in named if name[:4].isdigit())
    assert [number for number, times in numbers.items() if times > 1] == []
    # Whole scripts go to the driver as they are, which would take a percent sign for a parameter.
    assert [number for number, sql in revisions(role).items() if "%" in sql] == []
