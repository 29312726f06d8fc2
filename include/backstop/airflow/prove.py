"""What the tasks of the DAG `prove` do."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import task

from backstop.airflow import steps
from backstop.airflow.control_room import Room, control_room

log = logging.getLogger(__name__)


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the window that can be proven now, and its run."""
    return open_proof(params["topic"], params["from"], params["to"])


def open_proof(topic: str, start: str, end: str) -> steps.Opened:
    """Opens the run of a window. ConfigurationError for one that cannot be proven, and for what is no instant."""
    from backstop.config.instant import read_instant
    from backstop.reconcile.run_proof import scope_now

    def scope(room: Room) -> str:
        since, before = read_instant("from", start), read_instant("to", end)
        return scope_now(room.control, room.settings, topic, since, before)

    opened = steps.open_duty("prove", scope=scope)
    assert opened is not None, "there is always something to prove"
    return opened


@task(retries=2)
def publish(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Signs the export, and lets people see the proof: its check has passed."""
    from backstop.reconcile.proof_folder import proof_folder
    from backstop.reconcile.run_proof import ProveInput

    folder = proof_folder(int(opened["run_id"]))
    return steps.do(opened, "publish", ProveInput(None, folder), ti=ti)


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: logs the sentence of a published proof; done, incomplete or failed."""
    from backstop.reports.runs import proof_of

    with control_room() as room:
        proof = proof_of(room.control, int(opened["run_id"]))
    log.info(
        "backstop: %s",
        proof[1] if proof else "No proof is published: a task before this one failed.",
    )
    return steps.close(opened, steps.ended(context))
