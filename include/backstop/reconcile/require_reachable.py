"""Ends a run red when it could not read everything; light, because every run's last step asks it."""

from __future__ import annotations

from typing import Any

from backstop.model.errors import StoreUnavailable
from backstop.runs.run import Run
from backstop.sql.named import load

_SQL = load("backstop.reconcile", "queries.sql")


def require_all_reachable(control: Any, run: Run) -> None:
    """Raises StoreUnavailable when this run could not judge everything: it ends red, what it judged stays valid."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["incomplete_reads"], {"run_id": run.run_id})
        missed = [f"{subject} ({detail})" for subject, detail in cursor.fetchall()]
    if missed:
        raise StoreUnavailable(
            f"Run {run.run_id} could not read everything: {'; '.join(missed)}.",
            unaffected="What depends on it is UNKNOWN or unread, nothing of it is resent, and the rest was judged.",
            next_step="Bring it back; the next run judges what is still due.",
        )
