"""A portable text is planned once in a process, and each execution reads its own rows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context

import pyarrow as pa
import pytest

from backstop.verdicts import evaluate, frames
from backstop.verdicts.evaluate import Engine

TEXT = "SELECT count(*) AS rows, coalesce(sum(r.size), 0)::bigint AS sizes FROM tiny r WHERE r.size > 1"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One relation, one sum; returns the texts that were planned."""
    planned: list[str] = []

    def text(name: str) -> str:
        planned.append(name)
        return TEXT

    monkeypatch.setattr(evaluate, "RELATIONS", {"tiny": {"tiny": {"size": "bigint"}}})
    monkeypatch.setattr(evaluate, "_idle", {})
    monkeypatch.setattr(frames, "portable_sql", text)
    return planned


def answer(numbers: range) -> tuple[int, int]:
    with closing(Engine()) as engine:
        found = engine.run("tiny", {"tiny": pa.table({"size": pa.array(numbers, pa.int64())})})
        ((rows, sizes),) = [tuple(row.values()) for row in found.to_pylist()]
    return rows, sizes


def right(numbers: range) -> tuple[int, int]:
    kept = [number for number in numbers if number > 1]
    return len(kept), sum(kept)


def test_each_execution_reads_the_rows_that_it_was_given(tiny: list[str]) -> None:
    for numbers in (range(5), range(0), range(300_000), range(3), range(0), range(7)):
        assert answer(numbers) == right(numbers)
    assert tiny == ["tiny"], "planned once"


def test_a_refused_table_leaves_nothing_behind(tiny: list[str]) -> None:
    assert answer(range(9)) == right(range(9))
    with closing(Engine()) as engine, pytest.raises(KeyError):
        engine.run("tiny", {"tiny": pa.table({"length": pa.array([1])})})
    assert answer(range(4)) == right(range(4))
    (prepared,) = [one for texts in evaluate._idle.values() for one in texts]
    assert all(rows.table.num_rows == 0 for rows in prepared._relations.values())


def test_threads_at_once_have_plans_of_their_own() -> None:
    asked = [range(number) for number in range(200)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, asked)) == [right(numbers) for numbers in asked]


def test_a_fork_makes_its_own(tiny: list[str]) -> None:
    assert answer(range(5)) == right(range(5))
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(answer, (range(11),)) == right(range(11))
    assert answer(range(6)) == right(range(6))
    assert {process for process, _ in evaluate._idle} == {os.getpid()}
