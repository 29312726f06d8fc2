"""Takes away the Data Docs of runs whose checks are not kept any more."""

from __future__ import annotations

import logging
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from backstop.model.records import Counts
from backstop.sql.named import load

_SQL = load("backstop.retention", "queries.sql")
log = logging.getLogger(__name__)


def purge_reports(control: Any, folder: Path, before: datetime, *, dry_run: bool = False) -> Counts:
    """Folders of `folder` that are named after a run, are older than `before` and of which no check is kept."""
    counts = Counts()
    if not folder.is_dir():
        return counts
    old = {
        int(entry.name): entry
        for entry in folder.iterdir()
        if entry.name.isdigit()
        and entry.is_dir()
        and not entry.is_symlink()
        and entry.stat().st_mtime < before.timestamp()
    }
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["checked_runs"], {"run_ids": list(old)})
        kept = {row[0] for row in cursor.fetchall()}
    for run_id in sorted(set(old) - kept):
        try:
            if not dry_run:
                shutil.rmtree(old[run_id])
        except OSError as error:
            # Nothing depends on it, and it holds up no other report.
            why = error.strerror or type(error).__name__
            log.error("backstop: the report %s stays: %s", old[run_id], why)
            counts.add("reports_left")
            continue
        counts.add("reports")
    return counts
