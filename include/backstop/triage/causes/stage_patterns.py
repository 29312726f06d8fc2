"""Lets what was staged meet the patterns that were kept, and finds new ones over all causes: one text alone cannot tell a name.

A kept pattern is asked first, so that a text's cause does not move once it has one. Letters of causes that a new pattern takes
in move with it, but for those in a case: somebody may be deciding about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from backstop.model.records import Category
from backstop.runs.run import Run
from backstop.sql.named import load
from backstop.triage.causes.find_patterns import Patterns, find_patterns, is_pattern

_SQL = load("backstop.triage.causes", "classify.sql")
CANDIDATES = 20_000
"""Templates that are compared with one another: the commonest staged ones, and those causes that were seen last which could
make a pattern with them."""


class Found(NamedTuple):
    patterns: int
    """New ones."""
    moved: int
    """Letters of older causes that were staged for a new pattern."""


def stage_patterns(
    cursor: Any, run: Run, stage: int, version: str, name: Callable[[str, Category], str]
) -> Found:
    """In the caller's transaction. `name` gives the fingerprint of a template and a category."""
    cursor.execute(
        _SQL["staged_templates"], {"run_id": run.run_id, "stage": stage, "limit": CANDIDATES}
    )
    staged = cursor.fetchall()
    if not staged:
        return Found(0, 0)
    cursor.execute(
        _SQL["kept_patterns"], {"blanks": sorted({template.count(" ") for template, _ in staged})}
    )
    kept = Patterns(template for (template,) in cursor.fetchall())
    matched = {
        (template, said): pattern for template, said in staged if (pattern := kept.match(template))
    }
    shapes = sorted(
        {
            (said, template.count(" "))
            for template, said in staged
            if (template, said) not in matched
        }
    )
    cursor.execute(
        _SQL["plain_causes"],
        {
            "categories": [said for said, _ in shapes],
            "blanks": [blanks for _, blanks in shapes],
            "limit": CANDIDATES,
        },
    )
    candidates: dict[str, str] = {
        template: said for template, said in cursor.fetchall() if not is_pattern(template)
    }
    candidates |= {template: said for template, said in staged if (template, said) not in matched}
    found = find_patterns(candidates)
    wanted = matched | {
        (template, said): found[template]
        for template, said in staged
        if candidates.get(template) == said and template in found
    }
    _write(cursor, _SQL["restage"], run, stage, version, wanted, name)
    moved = _write(
        cursor,
        _SQL["move_letters"],
        run,
        stage,
        version,
        {(template, candidates[template]): pattern for template, pattern in found.items()},
        name,
    )
    return Found(len(set(found.values())), moved)


def _write(
    cursor: Any,
    statement: str,
    run: Run,
    stage: int,
    version: str,
    wanted: dict[tuple[str, str], str],
    name: Callable[[str, Category], str],
) -> int:
    if not wanted:
        return 0
    rows = [
        (template, said, pattern, name(pattern, Category(said)))
        for (template, said), pattern in sorted(wanted.items())
    ]
    templates, said, patterns, names = (list(column) for column in zip(*rows, strict=True))
    cursor.execute(
        statement,
        {
            "run_id": run.run_id,
            "stage": stage,
            "version": version,
            "templates": templates,
            "said": said,
            "patterns": patterns,
            "names": names,
        },
    )
    return int(cursor.rowcount)
