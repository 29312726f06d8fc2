"""Writes the summary of a case of dead letters: counts by reason, first and last death, a few ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.triage.decide.decide import REASONS

_SQL = load("backstop.triage.decide", "decide.sql")


def refresh_cases(control: Any, run: Run, cases: Iterable[int]) -> None:
    """Writes the summaries and evidence of these cases again, each in its own transaction. Raises RunLost."""
    for case_id in sorted(cases):
        with control, control.cursor() as cur:
            hold(cur, run)
            refresh_case(cur, case_id)


def refresh_case(cur: Any, case_id: int) -> None:
    """The same for one case, in the caller's transaction; a case without undecided dead letters keeps its last summary."""
    cur.execute(_SQL["count_case"], {"case_id": case_id})
    total, first, last, drained, drained_last, deliveries, reasons, categories, examples = (
        cur.fetchone()
    )
    if not total:
        return
    cur.execute(_SQL["case_cause"], {"case_id": case_id})
    topic, group = cur.fetchone()
    undecided = {reason: n for reason, n in reasons.items() if reason in REASONS}
    evidence = {
        "letters": total,
        "first_death": first or drained,
        "last_death": last or drained_last,
        "deliveries": deliveries,
        "reasons": reasons,
        "categories": categories,
        "examples": examples,
    }
    cur.execute(
        _SQL["refresh_case_summary"],
        {
            "case_id": case_id,
            "evidence": json.dumps(evidence, default=str),
            "summary": summary_of(topic, group, undecided) if undecided else None,
        },
    )


def summary_of(topic: str, group: str, reasons: Mapping[str, int]) -> str:
    """One sentence for a person: how many, of what, and why a machine does not decide them. No text of a message."""
    total = sum(reasons.values())
    letters = f"{total} dead letter{'s' if total != 1 else ''}"
    of = f"of {topic}" if topic else "of no known topic"
    to = "no known group" if group == "*" else group
    worst = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    if len(worst) == 1:
        return f"{letters} {of} to {to} {REASONS[worst[0][0]].says}"
    return f"{letters} {of} to {to}: " + "; ".join(
        f"{n} {REASONS[reason].says}" for reason, n in worst
    )
