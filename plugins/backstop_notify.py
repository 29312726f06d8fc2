"""Tells of a failed run of any duty: in one line of the log, and by the outbox's channels, like every other alert.

Each is told once: a duty that goes on failing is told again after its next success only. What is told of a failed run
holds names only (the duty, Airflow's run, the tasks that failed, the next step), never an error's text, which may quote
what a database said.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

log = logging.getLogger("backstop.notify")
WITHIN = timedelta(seconds=15)
"""Telling stands beside other work here, in a process that Airflow ends after 50 s: what is not begun by then is left to
deliver_alerts."""


def tell_failure(context: dict[str, Any]) -> None:
    """Airflow calls it once for a DAG run that failed. A channel that does not answer is logged and fails
    nothing; deliver_alerts tries it again."""
    notice = notice_of(context)
    log.error("backstop: %s", notice["text"])
    from psycopg2 import Error as DatabaseError

    from backstop.errors import BackstopError

    title = f"The duty {notice['duty']} failed"
    try:
        with _control() as (settings, connections, conn):
            from backstop.health.outbox import note_failure

            if note_failure(conn, notice["duty"], title, notice["text"], notice):
                tell_unsaid(settings, connections, conn)
            return
    except (BackstopError, DatabaseError) as error:
        # Without the control database nobody knows what was told before: rather twice than never.
        log.warning("backstop: what was told before is not known (%s)", type(error).__name__)
    try:
        _tell_unstored(title, notice)
    except BackstopError as error:
        log.error("backstop: no channel is known (%s)", type(error).__name__)


def tell_unsaid(settings: Any, connections: Any, conn: Any) -> int:
    """Delivers what waits in the outbox; returns of how many alerts somebody was told now."""
    from backstop.alerts.deliver import deliver

    return int(deliver(settings, connections, conn, within=WITHIN).get("told", 0))


def _tell_unstored(title: str, notice: dict[str, str]) -> None:
    """The same when the outbox cannot be reached: once to every channel that takes warnings."""
    from backstop.alerts.deliver import send_unstored
    from backstop.alerts.write import as_failure
    from backstop.config.connections import Connections
    from backstop.config.load import load

    message = as_failure(notice["duty"], "warning", title, notice["text"], notice)
    for name, error in send_unstored(load(), Connections(), message).items():
        if error is not None:
            log.error("backstop: the notice could not be delivered by %s (%s); the run stays red", name, error)


def notice_of(context: dict[str, Any]) -> dict[str, str]:
    """What is told, as plain fields; `text` is all of it in one line."""
    dag_run = context.get("dag_run")
    dag = context.get("dag")
    duty = str(getattr(dag, "dag_id", None) or getattr(dag_run, "dag_id", "") or "a duty")
    run = str(context.get("run_id") or getattr(dag_run, "run_id", "") or "?")
    last = context.get("ti") or context.get("task_instance")
    task = str(getattr(last, "task_id", "") or "")
    step = (
        f"open the run in Airflow, read the log of the first red task and the button 'What this run did', "
        f"then follow the runbook of the DAG {duty}"
    )
    where = f", task {task}" if task else ""
    return {
        "duty": duty, "run": run, "task": task, "next_step": step,
        "text": f"{duty} failed in run {run}{where}; nothing is lost, the next run goes on; next: {step}",
    }  # fmt: skip


class _control:
    """Settings, connections and the control database, as far as this process (the dag-processor) can reach them."""

    def __enter__(self) -> tuple[Any, Any, Any]:
        from backstop.config.connections import Connections
        from backstop.config.load import load
        from backstop.runs.control import connect

        settings, connections = load(), Connections()
        self._conn = connect(settings, connections, connect_timeout=5)
        return settings, connections, self._conn

    def __exit__(self, *_: object) -> None:
        self._conn.close()
