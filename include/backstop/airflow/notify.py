"""Tells of a failed run of any duty: in one line of the log, and by the outbox's channels, like every other alert.

Each is told once since the duty's last success, and again in steps while it goes on failing (`alerts.escalate`). While the
control database does not answer, the channels are told once an hour at most, of all duties together, and once more when it is
back: what was told is kept in an Airflow variable meanwhile. What is told of a failed run holds names only (the duty, Airflow's
run, the tasks that failed, the next step), never an error's text, which may quote what a database said.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

log = logging.getLogger("backstop.notify")
WITHIN = timedelta(seconds=15)
"""Telling stands beside other work here, in a process that Airflow ends after 50 s: what is not begun by then is left to
deliver_alerts."""
AWAY = "backstop_control_away"
"""The variable: since when the control database does not answer, when that was told last, and what was not."""
TOLD_AGAIN = timedelta(hours=1)
_KEPT = 50
"""So many runs that people began are named when it is back."""


def tell_failure(context: dict[str, Any]) -> None:
    """Airflow calls it once for a DAG run that failed. A channel that does not answer is logged and fails
    nothing; deliver_alerts tries it again."""
    notice = notice_of(context)
    log.error("backstop: %s", notice["text"])
    from psycopg2 import Error as DatabaseError

    from backstop.model.errors import BackstopError

    title = f"The duty {notice['duty']} failed"
    try:
        with _control() as (settings, connections, conn):
            from backstop.watch.outbox import note_failure

            tell_back(conn)
            steps = settings.alerts.escalate.warning
            if note_failure(conn, notice["duty"], title, notice["text"], notice, steps):
                tell_unsaid(settings, connections, conn)
            return
    except (BackstopError, DatabaseError) as error:
        log.warning("backstop: the control database does not answer (%s)", type(error).__name__)
    try:
        _tell_away(title, notice)
    except BackstopError as error:
        log.error("backstop: no channel is known (%s)", type(error).__name__)


def note_well(context: dict[str, Any]) -> None:
    """Airflow calls it once for a run that went well, of a DAG without runs in Backstop: its next failure is told as a new one."""
    from psycopg2 import Error as DatabaseError

    from backstop.model.errors import BackstopError
    from backstop.watch.outbox import note_success

    try:
        with _control() as (_, _, conn):
            note_success(conn, notice_of(context)["duty"])
    except (BackstopError, DatabaseError) as error:
        log.warning("backstop: the control database does not answer (%s)", type(error).__name__)


def tell_back(conn: Any) -> None:
    """Stores that the control database answers again, where somebody was told, or should have been, that it does not."""
    if away := _recall():
        from airflow.sdk import Variable

        from backstop.watch.outbox import note_back

        note_back(
            conn, str(away["since"]), int(away["unsaid"]), [str(run) for run in away["of_people"]]
        )
        try:
            Variable.delete(AWAY)
        except Exception:
            log.exception(
                "backstop: the alert that the control database is back could not be stored; it is sent once all the same"
            )


def tell_unsaid(settings: Any, connections: Any, conn: Any) -> int:
    """Delivers what waits in the outbox; returns of how many alerts somebody was told now."""
    from backstop.alerts.deliver import deliver

    return int(deliver(settings, connections, conn, within=WITHIN).get("told", 0))


def _tell_away(title: str, notice: dict[str, str]) -> None:
    """The same when the outbox cannot be reached: to every channel that takes warnings, once an hour at most."""
    from airflow.sdk import Variable

    from backstop.watch.outbox import EACH_RUN

    now = datetime.now(UTC)
    away = _recall() or {
        "since": now.isoformat(timespec="seconds"),
        "told": None,
        "unsaid": 0,
        "of_people": [],
    }
    if away["told"] is None or now - datetime.fromisoformat(away["told"]) >= TOLD_AGAIN:
        away["told"] = now.isoformat() if _tell_unstored(title, notice) else away["told"]
    else:
        away["unsaid"] += 1
        if notice["duty"].partition("__")[0] in EACH_RUN:  # of each team, too
            away["of_people"] = [*away["of_people"], f"{notice['duty']} {notice['run']}"][-_KEPT:]
    try:
        Variable.set(AWAY, away, serialize_json=True)
    except Exception as error:  # noqa: BLE001 - whatever Airflow raises: the next failure is told as if it were the first
        log.warning(
            "backstop: Airflow could not store which alerts were sent (%s)", type(error).__name__
        )


def _recall() -> dict[str, Any] | None:
    """What was kept when the control database was last away; null: nothing, or nobody can tell: then rather twice than never."""
    from airflow.sdk import Variable

    try:
        away = Variable.get(AWAY, default=None, deserialize_json=True)
        if away is not None:
            datetime.fromisoformat(away["told"] or away["since"])
            kept = {"since": away["since"], "told": away["told"]}
            return {**kept, "unsaid": int(away["unsaid"]), "of_people": list(away["of_people"])}
    except Exception as error:  # noqa: BLE001 - whatever Airflow raises, or somebody wrote into the variable
        log.warning("backstop: earlier alerts are not known (%s)", type(error).__name__)
    return None


def _tell_unstored(title: str, notice: dict[str, str]) -> bool:
    """Whether a channel took it, or none is there to take it."""
    from backstop.alerts.deliver import send_unstored
    from backstop.alerts.write import as_failure
    from backstop.config.connections import Connections
    from backstop.config.load import load

    text = f"{notice['text']}. The control database does not answer: until it does, failed runs are reported at most once an hour"
    became = send_unstored(
        load(),
        Connections(),
        as_failure(notice["duty"], "warning", title, text, {**notice, "text": text}),
    )
    for name, error in became.items():
        if error is not None:
            log.error(
                "backstop: the notice could not be delivered by %s (%s); the run stays red",
                name,
                error,
            )
    return not became or None in became.values()


def notice_of(context: dict[str, Any]) -> dict[str, str]:
    """What is told, as plain fields; `text` is all of it in one line."""
    from backstop.watch.outbox import EACH_RUN

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
    goes_on = "the next run goes on"
    if duty.partition("__")[0] in EACH_RUN:  # of each team, too
        goes_on = "no later run makes up for it"
    return {
        "duty": duty,
        "run": run,
        "task": task,
        "next_step": step,
        "text": f"{duty} failed in run {run}{where}; nothing is lost, {goes_on}; next: {step}",
    }


class _control:
    """Settings, connections and the control database, as far as this process (the dag-processor) can reach them."""

    def __enter__(self) -> tuple[Any, Any, Any]:
        from backstop.config.connections import Connections
        from backstop.config.load import load
        from backstop.control.connection import connect

        settings, connections = load(), Connections()
        self._conn = connect(settings, connections, connect_timeout=5)
        return settings, connections, self._conn

    def __exit__(self, *_: object) -> None:
        self._conn.close()
