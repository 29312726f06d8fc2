"""Lets a shard commit only while the run is ours: one that was taken over must not confirm what its successor has taken back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg2

from backstop.control.connection import limit_statements
from backstop.evidence.sources import reason
from backstop.model.errors import StoreUnavailable
from backstop.runs.run import DEAD_AFTER, Run, hold
from backstop.sql.named import load

_SQL = load("backstop.reconcile", "queries.sql")
_LIMIT = timedelta(seconds=30)
"""Rows of a shard are locked while the control database is asked."""


class Fence:
    """Over a connection of its own to the control database, for one thread.

    A process that falls silent after `hold` loses the lease's row after DEAD_AFTER. A PostgreSQL shard undoes a silent
    transaction sooner (STATEMENT_TIMEOUT), so that nothing is committed there once another run may take over.
    """

    def __init__(self, control: Any, run: Run) -> None:
        self._control, self._run = control, run
        limit_statements(control, _LIMIT)

    def hold(self) -> None:
        """Until `release` nobody takes the run over; to be called at the end of a shard's transaction.

        Raises RunLost when the run is not ours any more, StoreUnavailable when the control database does not answer.
        """
        try:
            with self._control.cursor() as cursor:
                cursor.execute(_SQL["limit_silence"], {"limit": DEAD_AFTER})
                hold(cursor, self._run)
        except psycopg2.Error as error:
            raise StoreUnavailable(
                f"The control database did not say whether run {self._run.run_id} is still ours: {reason(error)}.",
                unaffected="Nothing of these stubs was changed; they stay staged.",
                next_step="Bring the control database back; the next run finishes the promotion.",
            ) from error

    def release(self) -> None:
        """The shard's transaction is over."""
        if not self._control.closed:
            try:
                self._control.rollback()
            except psycopg2.Error:
                self._control.close()  # the server gave the row free
