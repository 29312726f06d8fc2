"""Promotes what was staged and audited: causes, and the letters that have them, in bounded batches of one transaction each.

Every batch may be done twice, and by two at once: letters are held in the order of their ids and counted only where they
move, so that a cause's count is always the number of letters that have it.
"""

from __future__ import annotations

from typing import Any

from backstop.model.records import Counts
from backstop.runs.run import Run, add_counts, hold
from backstop.sql.named import load
from backstop.triage.causes.show_template import shown

_SQL = load("backstop.triage.causes", "classify.sql")
BATCH = 5_000
SHOWN_AT_ONCE = 5_000
EXAMPLES = 5
"""Ids that a cause keeps of its letters."""


def promote_causes(control: Any, run: Run) -> Counts:
    """Letters of the run's present stage that are still open; what moved, by name. Errors: RunLost."""
    counts, after = Counts(), 0
    while True:
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(
                _SQL["hold_batch"], {"run_id": run.run_id, "after": after, "limit": BATCH}
            )
            cursor.execute(_SQL["held"])
            last, old_causes = cursor.fetchone()
            if last is None:
                break
            done = _promote_held(cursor, old_causes)
        counts, after = counts + done, last
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


def _promote_held(cursor: Any, old_causes: list[int]) -> Counts:
    """What the transaction holds in `held_letter`."""
    cursor.execute(_SQL["held_causes"])
    rows = cursor.fetchall()
    if not rows:
        return Counts()
    names, templates, categories, firsts, lasts = map(list, zip(*rows, strict=True))
    cursor.execute(_SQL["hold_causes"], {"fingerprints": names, "causes": old_causes})
    cursor.execute(
        _SQL["keep_causes"],
        {
            "fingerprints": names,
            "templates": templates,
            "shown": [shown(template) for template in templates],
            "categories": categories,
            "firsts": firsts,
            "lasts": lasts,
        },
    )
    causes = cursor.fetchall()
    ids = {
        "fingerprints": [fingerprint for _, fingerprint, _ in causes],
        "causes": [cause_id for cause_id, _, _ in causes],
    }
    cursor.execute(_SQL["move"], ids)
    cursor.execute(_SQL["count"], {**ids, "examples": EXAMPLES})
    promoted, changed = cursor.fetchone()
    counts = Counts(
        {
            "letters_promoted": promoted,
            "letters_changed": changed,
            "causes_new": sum(1 for _, _, is_new in causes if is_new),
        }
    )
    return Counts({name: number for name, number in counts.items() if number})
