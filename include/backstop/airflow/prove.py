"""What the tasks of the DAG `prove` do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import control_room, log_errors

if TYPE_CHECKING:
    from backstop.runs.run import EndState

log = logging.getLogger(__name__)


@task(retries=0)
@log_errors
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the window that can be proven now, and its run."""
    from datetime import datetime

    from backstop.reconcile.run_proof import open_proof

    start, end = (datetime.fromisoformat(params[name]) for name in ("from", "to"))
    with control_room() as room:
        run = open_proof(room.control, room.settings, params["topic"], start, end)
        return {"run_id": run.run_id, "token": run.token, "dry_run": False, "due": 1}


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: logs the sentence; done, incomplete or failed."""
    failed = steps.failed_tasks(context)
    return close_proof(opened, failed, away=steps.away(context, failed))


@log_errors
def close_proof(opened: steps.Opened, failed: list[str], *, away: bool = False) -> dict[str, Any]:
    """Tells the sentence and closes the run: done, incomplete (not everything could be read) or failed.

    Raises AirflowFailException for a run that is not done, so that it ends red at once.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.records import Counts
    from backstop.reports.runs import proof_of
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        proof = proof_of(room.control, run.run_id)
        answer, sentence, counts = proof or ("none", "There is no proof: a task before this one failed.", Counts())
        incomplete = answer == "incomplete" or (bool(failed) and away)
        state: EndState = "incomplete" if incomplete else "failed" if failed else "done"
        close_run(room.control, run, state, counts, error=sentence if state != "done" else None)
    log.info("backstop: %s", sentence)
    if state != "done":  # this task alone decides what Airflow calls the DAG run
        raise AirflowFailException(sentence)
    return {"run_id": run.run_id, "state": state, "answer": answer, "sentence": sentence}
