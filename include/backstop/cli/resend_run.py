"""Opens, keeps alive and closes a resend run around the duty's own loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.cli import context
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import BackstopError
from backstop.records import Counts
from backstop.resend.work import run_once
from backstop.runs.control import connect
from backstop.runs.run import close_run, keep_alive, open_run


def run_resend(
    settings: Settings, known: Connections, topics: Sequence[str] | None, dry_run: bool, limit: int | None
) -> dict[str, Any]:
    """Runs it to its end and returns the counts; what went wrong is raised after the run was closed with it."""
    scope = ",".join(sorted(topics)) if topics else "*"
    with context.control(settings, known) as conn:
        run = open_run(conn, "resend", scope, settings, dry_run=dry_run)
        try:
            with keep_alive(lambda: connect(settings, known), run):
                counts = run_once(settings, known, run, dry_run=dry_run, limit=limit)
        except BackstopError as error:
            conn.rollback()
            close_run(conn, run, "incomplete" if error.exit_code == 3 else "failed", Counts(), error=str(error))
            raise
        except BaseException as error:
            conn.rollback()
            close_run(conn, run, "failed", Counts(), error=f"{type(error).__name__}")
            raise
        close_run(conn, run, "done", counts)
    return {"run_id": run.run_id, "dry_run": dry_run, "counts": counts, "would_send": []}
