"""The suites as data: what a step's rows must be, in Great Expectations' own words, and in SQL what crosses tables.

`<suite>.yaml` names sets of rows and the expectations over each: `type` and `kwargs` as Great Expectations documents them.
`<suite>.sql` has the rest: each query starts with a line `-- name: <name>: <what must hold>` and returns the ids of what breaks
it. A suite has one of the files, or both. A team adds expectations of its own over the same rows, by a file of the same form
(docs/how-to/data-checks.md).

Every query reads `FROM {batch} AS run`, one row (run_id, stage, started_at, as_of, repair_topics, clock_skew) that is the run
being checked; it says JOIN, because that is how Great Expectations knows that the query names {batch} itself. Ids are all that a
check shows: results are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from backstop.model.errors import ConfigurationError
from backstop.sql.named import load_queries

SUITES = (
    "stub_contract",
    "log_contract",
    "verdicts",
    "requests",
    "attempts",
    "proof",
    "leases_before",
    "leases_after",
    "dead_letters_drained",
    "causes",
    "dead_letters_decided",
    "audit",
)
OF_A_STAGE = ("stub_contract", "log_contract", "verdicts", "causes")
"""Suites that decide whether what a run staged is promoted."""
ALL_RUNS = "run"
"""The rows of checks in SQL: the run itself."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of rows that expectations look at. `ids`: the columns by which a row is shown."""

    name: str
    sql: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation by Great Expectations' name of it, over the rows of that name in its suite."""

    name: str
    must_hold: str
    rows: str
    type: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sql(self) -> str | None:
        """The query that returns a row of ids for each breach; null: Great Expectations makes it."""
        found = self.kwargs.get("unexpected_rows_query")
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class Suite:
    """The checks of one step, and the sets of rows that they look at."""

    rows: Mapping[str, Rows]
    checks: tuple[Check, ...]


def checks_of(suite: str) -> tuple[Check, ...]:
    """The checks of one of SUITES, in the order of its files. Unknown names raise KeyError."""
    return suite_of(suite).checks


@cache
def suite_of(suite: str) -> Suite:
    """One of SUITES. Unknown names raise KeyError."""
    if suite not in SUITES:
        raise KeyError(f"{suite} is none of {', '.join(SUITES)}")
    rows: dict[str, Rows] = {}
    checks: list[Check] = []
    folder = files(__name__)
    if (text := folder.joinpath(f"{suite}.yaml")).is_file():
        document = _read_yaml(text.read_text(encoding="utf-8"))
        rows = {
            name: Rows(name, " ".join(its["sql"].split()), tuple(its["ids"]))
            for name, its in document["rows"].items()
        }
        checks += _checks(document["expectations"], rows)
    if folder.joinpath(f"{suite}.sql").is_file():
        for query in load_queries(__name__, f"{suite}.sql"):
            asked = {"unexpected_rows_query": query.sql}
            checks.append(
                Check(query.name, query.sentence, ALL_RUNS, "unexpected_rows_expectation", asked)
            )
    return Suite(rows, tuple(checks))


def with_own(suite: str, folder: Path | None) -> Suite:
    """The suite with what `folder`/<suite>.yaml adds to it. Raises ConfigurationError when the folder or the file is not as
    documented: what a team wants checked and nobody reads would pass in silence."""
    ours = suite_of(suite)
    if folder is None:
        return ours
    require_folder(folder)
    path = folder / f"{suite}.yaml"
    if not os.path.lexists(path):
        return ours
    try:
        document = _read_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or set(document) != {"expectations"}:
            raise ValueError("it must have the one key `expectations`")
        added = _checks(document["expectations"], ours.rows)
        for check in added:
            _refuse_sql(check)
        names = [check.name for check in (*ours.checks, *added)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the name {', '.join(twice)} is there twice")
    except (OSError, ValueError) as error:
        raise _unusable(f"The expectations in {path} cannot be used: {error}") from error
    return Suite(ours.rows, (*ours.checks, *added))


def require_folder(folder: Path) -> None:
    """Raises ConfigurationError unless there is such a folder, each of whose files belongs to a suite."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise _unusable(
            f"The folder of expectations {folder} cannot be read: {error.strerror}"
        ) from error
    known = {f"{suite}.yaml" for suite in SUITES}
    odd = [
        name
        for name in names
        # Hidden ones are a mount's own links.
        if name.endswith((".yaml", ".yml", ".json")) and name[0] != "." and name not in known
    ]
    if odd:
        raise _unusable(f"In {folder} no data check reads {', '.join(odd)}: files are <suite>.yaml")


def _unusable(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what.rstrip('.')}.",
        unaffected="The step that they belong to was not passed; nothing was promoted by it.",
        next_step="Correct it as docs/how-to/data-checks.md describes, or take it away; then run the duty again.",
    )


def _refuse_sql(check: Check) -> None:
    """A query of a team's own could show payloads, and nobody would see what it costs."""
    if queries := [name for name in check.kwargs if str(name).endswith("query")]:
        raise ValueError(
            f"{check.name}: {queries[0]}: no SQL of your own: name rows, a type and its arguments"
        )


def _read_yaml(text: str) -> Any:
    import yaml

    from backstop.config.once_loader import load_once

    try:
        return load_once(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _checks(entries: Any, rows: Mapping[str, Rows]) -> Sequence[Check]:
    if not isinstance(entries, list):
        raise ValueError("`expectations` must be a list")
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != {
            "name",
            "description",
            "rows",
            "type",
            "kwargs",
        }:
            raise ValueError(
                "each expectation has name, description, rows, type and kwargs, and nothing else"
            )
        if not isinstance(entry["rows"], str) or entry["rows"] not in rows:
            raise ValueError(
                f"{entry['name']}: there are no rows {entry['rows']!r}, but {', '.join(rows) or 'none'}"
            )
        if not str(entry["type"]).startswith("expect_"):
            raise ValueError(
                f"{entry['name']}: `type` begins with expect_, in lower case, as expect_column_values_to_be_in_set"
            )
        if not isinstance(entry["kwargs"], dict):
            raise ValueError(f"{entry['name']}: `kwargs` are the expectation's arguments by name")
        name, must_hold, of, kind = (
            str(entry[key]) for key in ("name", "description", "rows", "type")
        )
        found.append(Check(name, must_hold, of, kind, entry["kwargs"]))
    return found
