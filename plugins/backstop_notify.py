"""Tell of a failed run in one line of the log, and at the webhook of settings.notify if there is one.

A notice holds names only: the duty, Airflow's run, the tasks that failed and the next step. Never an error's
text, which may quote what a database said.
"""

from __future__ import annotations

import json
import logging
from typing import Any

log = logging.getLogger("backstop.notify")
SECONDS = 10


def tell_failure(context: dict[str, Any]) -> None:
    """Airflow calls it once for a DAG run that failed. A webhook that does not answer is logged and fails
    nothing."""
    notice = notice_of(context)
    log.error("backstop: %s", notice["text"])
    url = webhook()
    if url:
        try:
            post(url, notice)
        except OSError as error:
            # The reason may quote the URL, which is a secret of its own: only its kind is told.
            log.error("backstop: the notice could not be delivered (%s); the run stays red", type(error).__name__)


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


def webhook() -> str | None:
    """The URL that settings.notify names, or null. Settings that cannot be read are logged: the line above is
    out."""
    from backstop.config.connections import Connections
    from backstop.config.load import load
    from backstop.errors import BackstopError

    try:
        settings = load()
        reference = getattr(settings.notify, "url", None)
        return Connections().url(reference) if reference else None
    except BackstopError as error:
        log.error("backstop: no webhook is known (%s)", type(error).__name__)
        return None


def post(url: str, notice: dict[str, str]) -> None:
    """POST the notice as JSON. Raises OSError when it was not taken."""
    from urllib.request import Request, urlopen

    body = json.dumps(notice).encode()
    with urlopen(Request(url, data=body, headers={"Content-Type": "application/json"}), timeout=SECONDS):
        log.info("backstop: the notice was delivered")
