"""Promotes what was staged and audited: causes, and the letters that have them, in bounded batches of one transaction each.

Every batch may be done twice, and by two at once: letters are held in the order of their ids and counted only where they
move, so that a cause's count is always the number of letters that have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from backstop.model.records import Counts, DeadLetterState
from backstop.runs.run import Run, add_counts, hold
from backstop.sql.named import load
from backstop.triage.causes.show_template import shown

_SQL = load("backstop.triage.causes", "classify.sql")
BATCH = 2_000
SHOWN_AT_ONCE = 5_000
EXAMPLES = 5
"""Ids that a cause keeps of its letters."""


class _Row(NamedTuple):
    """A staged letter, and what it is now."""

    letter: int
    fingerprint: str
    template: str
    rule_category: str
    category: str
    classified_by: str
    state: str
    old_cause: int | None
    old_category: str | None
    old_classified_by: str | None
    seen_at: datetime


def promote_causes(control: Any, run: Run) -> Counts:
    """Letters of the run's present stage that are still open; what moved, by name. Errors: RunLost."""
    counts, after = Counts(), 0
    while True:
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(
                _SQL["next_batch"], {"run_id": run.run_id, "after": after, "limit": BATCH}
            )
            rows = [_Row(*row) for row in cursor.fetchall()]
            done = _promote(cursor, [row for row in rows if row.state == DeadLetterState.OPEN])
        if not rows:
            break
        counts, after = counts + done, rows[-1].letter
    _show_older(control, run)
    add_counts(control, run, counts)
    return counts


def _show_older(control: Any, run: Run) -> None:
    """What is shown of causes that an earlier version wrote."""
    more = True
    while more:
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(_SQL["not_shown"], {"limit": SHOWN_AT_ONCE})
            found = cursor.fetchall()
            if found:
                cursor.execute(
                    _SQL["show"],
                    {
                        "causes": [cause for cause, _ in found],
                        "shown": [shown(template) for _, template in found],
                    },
                )
        more = len(found) == SHOWN_AT_ONCE


def _promote(cursor: Any, rows: Sequence[_Row]) -> Counts:
    if not rows:
        return Counts()
    causes = _keep_causes(cursor, rows)
    ids = {fingerprint: cause_id for cause_id, fingerprint, _ in causes}
    cursor.execute(
        _SQL["move"],
        {
            "letters": [row.letter for row in rows],
            "causes": [ids[row.fingerprint] for row in rows],
            "categories": [row.category for row in rows],
            "versions": [row.classified_by for row in rows],
        },
    )
    moved = [row for row in rows if row.old_cause != ids[row.fingerprint]]
    came = Counter(ids[row.fingerprint] for row in moved)
    went = Counter(row.old_cause for row in moved if row.old_cause is not None)
    counted = sorted(came.keys() | went.keys())
    cursor.execute(
        _SQL["count"],
        {
            "counted": counted,
            "came": [came[one] for one in counted],
            "went": [went[one] for one in counted],
            "letters": [row.letter for row in moved],
            "to_causes": [ids[row.fingerprint] for row in moved],
            "from_causes": [row.old_cause for row in moved],
            "examples": EXAMPLES,
        },
    )
    counts = Counts(
        {
            "letters_promoted": sum(1 for row in rows if row.old_cause is None),
            "letters_changed": sum(
                1
                for row in rows
                if row.old_cause is not None
                and (row.old_cause, row.old_category) != (ids[row.fingerprint], row.category)
            ),
            "causes_new": sum(1 for _, _, is_new in causes if is_new),
        }
    )
    return Counts({name: number for name, number in counts.items() if number})


def _keep_causes(cursor: Any, rows: Sequence[_Row]) -> list[tuple[int, str, bool]]:
    by_name: dict[str, list[_Row]] = {}
    for row in rows:
        by_name.setdefault(row.fingerprint, []).append(row)
    names = sorted(by_name)
    cursor.execute(
        _SQL["hold_causes"],
        {
            "fingerprints": names,
            "causes": sorted({row.old_cause for row in rows if row.old_cause is not None}),
        },
    )
    cursor.execute(
        _SQL["keep_causes"],
        {
            "fingerprints": names,
            "templates": [by_name[name][0].template for name in names],
            "shown": [shown(by_name[name][0].template) for name in names],
            "categories": [by_name[name][0].rule_category for name in names],
            "firsts": [min(row.seen_at for row in by_name[name]) for name in names],
            "lasts": [max(row.seen_at for row in by_name[name]) for name in names],
        },
    )
    return [(cause_id, fingerprint, is_new) for cause_id, fingerprint, is_new in cursor.fetchall()]
