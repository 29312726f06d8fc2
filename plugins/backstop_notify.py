"""The one notifier: a failed run of any duty, and what the watch found, in one line of the log and at the webhook of
settings.notify if there is one.

Each is told once: a duty that goes on failing is told again after its next success only. What is told of a failed run
holds names only (the duty, Airflow's run, the tasks that failed, the next step), never an error's text, which may quote
what a database said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError

log = logging.getLogger("backstop.notify")
SECONDS = 10


def tell_failure(context: dict[str, Any]) -> None:
    """Airflow calls it once for a DAG run that failed. A webhook that does not answer is logged and fails
    nothing; the watch tries it again."""
    notice = notice_of(context)
    log.error("backstop: %s", notice["text"])
    from psycopg2 import Error as DatabaseError

    from backstop.errors import BackstopError

    try:
        with _control() as (settings, connections, conn):
            from backstop.health.outbox import note_failure, said

            unsaid = note_failure(conn, notice["duty"], f"The duty {notice['duty']} failed", notice["text"])
            url = webhook(settings, connections)
            if url and unsaid and _deliver(url, notice):
                said(conn, unsaid)
            return
    except (BackstopError, DatabaseError) as error:
        # Without the control database nobody knows what was told before: rather twice than never.
        log.warning("backstop: what was told before is not known (%s)", type(error).__name__)
    url = webhook_alone()
    if url:
        _deliver(url, notice)


def tell_unsaid(settings: Any, connections: Any, conn: Any) -> int:
    """Posts the watch's alerts, and notices that could not be delivered before; returns how many were taken.

    One that the webhook refuses does not hold back those after it; the next look tries it again."""
    from backstop.health.outbox import said, unsaid

    url = webhook(settings, connections)
    taken = 0
    for alert in unsaid(conn) if url else ():
        text = f"{alert.title}. {alert.body}"
        log.warning("backstop: %s", text)
        notice = {"duty": "watch", "severity": alert.severity, "title": alert.title, "key": alert.key, "text": text}
        try:
            post(str(url), notice)
        except OSError as error:
            _say_undelivered(error)
            if isinstance(error, HTTPError):
                continue  # this one was refused
            break  # nobody is there; each further one would wait for its time-out
        said(conn, alert)
        taken += 1
    return taken


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


def webhook(settings: Any, connections: Any) -> str | None:
    """The URL that settings.notify names, or null when it names none or the connection is not known."""
    from backstop.errors import BackstopError

    reference = getattr(settings.notify, "url", None)
    try:
        return connections.url(reference) if reference else None
    except BackstopError as error:
        log.error("backstop: no webhook is known (%s)", type(error).__name__)
        return None


def webhook_alone() -> str | None:
    """The same without a control database. Settings that cannot be read are logged: the line above is out."""
    from backstop.config.connections import Connections
    from backstop.config.load import load
    from backstop.errors import BackstopError

    try:
        return webhook(load(), Connections())
    except BackstopError as error:
        log.error("backstop: no webhook is known (%s)", type(error).__name__)
        return None


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


def _deliver(url: str, notice: Mapping[str, str]) -> bool:
    try:
        post(url, notice)
    except OSError as error:
        _say_undelivered(error)
        return False
    return True


def _say_undelivered(error: OSError) -> None:
    # The reason may quote the URL, which is a secret of its own: only its kind is told.
    log.error("backstop: the notice could not be delivered (%s); the run stays red", type(error).__name__)


def post(url: str, notice: Mapping[str, str]) -> None:
    """POST the notice as JSON. Raises OSError when it was not taken."""
    from urllib.request import Request, urlopen

    body = json.dumps(dict(notice)).encode()
    with urlopen(Request(url, data=body, headers={"Content-Type": "application/json"}), timeout=SECONDS):
        log.info("backstop: the notice was delivered")
