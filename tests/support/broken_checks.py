"""What the data checks of one step find, by name, as they are run for a duty."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2

from backstop.checks.run import run_suite
from backstop.model.errors import AuditFailed


def broken_checks(
    suite: str, control_url: str, run_id: int, docs: Path, stage: int | None = None, **given: Any
) -> dict[str, int]:
    """The checks that do not hold, and how often; as the run keeps it."""
    with suppress(AuditFailed):
        run_suite(suite, control_url, run_id, stage, docs, **given)
    with closing(psycopg2.connect(control_url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT failed FROM data_check WHERE run_id = %s AND suite = %s", (run_id, suite)
        )
        ((failed,),) = cursor.fetchall()
    return {one["name"]: one["count"] for one in failed}
