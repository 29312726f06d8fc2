"""The proof of a window from end to end, for the command line and the tests; the DAG wires the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.reconcile.answer_proof import Answer
from backstop.reconcile.count_due import control_now
from backstop.reconcile.prove import Proof, counts_of, prove, window_of
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.run import DEAD_AFTER, Run, close_run, keep_alive, open_run
from backstop.runs.scope import name_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Audit = Callable[[Run, str], None]
"""Runs one suite of data checks over a run and raises AuditFailed when it does not hold."""


def open_proof(
    control: Any, settings: Settings, topic: str, start: datetime, end: datetime, dead_after: timedelta = DEAD_AFTER
) -> Run:
    """Opens the run of a proof; its scope is the window that can be proven now. ConfigurationError as `window_of`."""
    window = window_of(settings, topic, start, end, control_now(control))
    return open_run(
        control, "prove", name_of([topic], window.start, window.end), settings, dead_after=dead_after
    )


def run_proof(
    settings: Settings, connections: Connections, start_spark: Callable[[], SparkSession], audit: Audit,
    topic: str, start: datetime, end: datetime, *, folder: Path | None, formats: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> Proof:  # fmt: skip
    """Opens the run, proves, audits the proof before it is told, closes the run. Raises what went wrong, the run closed."""
    control = connect(settings, connections)
    try:
        run = open_proof(control, settings, topic, start, end)
        try:
            with keep_alive(lambda: connect(settings, connections), run):
                proof = prove(
                    start_spark(), settings, connections, control, run, folder=folder, formats=formats, say=say
                )
                audit(run, "proof")
        except BaseException as error:
            control.rollback()
            close_run(control, run, "failed", Counts(), error=str(error))
            raise
        incomplete = proof.answer is Answer.INCOMPLETE
        close_run(
            control, run, "incomplete" if incomplete else "done", counts_of(proof),
            error=proof.sentence if incomplete else None,
        )  # fmt: skip
        return proof
    finally:
        control.close()
