"""The duty deliver_alerts: one look at the outbox as a run of its own, which fails when nobody can be told."""

from __future__ import annotations

from typing import Any

from backstop.alerts.deliver import deliver
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import AlertsUndelivered, ConfigurationError
from backstop.named_sql import load
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.run import close_run, keep_alive, open_run

_SQL = load("backstop.alerts", "alerts.sql")
DUTY = "deliver_alerts"


def run_once(settings: Settings, connections: Connections) -> Counts:
    """Delivers what waits. Safe to run twice; a second one at the same moment is refused (RunRefused).

    Raises AlertsUndelivered, after all that could be sent was sent, when alerts wait that somebody should be told of and no
    channel takes them; also when there is no channel at all, unless `alerts.none_wanted` says that this is meant.
    """
    conn = connect(settings, connections)
    try:
        run = open_run(conn, DUTY, "*", settings)
        try:
            with keep_alive(lambda: connect(settings, connections), run):
                counts = deliver(settings, connections, conn)
                missed = undelivered(settings, connections, conn)
        except BaseException as error:
            conn.rollback()
            close_run(conn, run, "failed", Counts(), error=str(error))
            raise
        with conn, conn.cursor() as cursor:
            cursor.execute(_SQL["forget_messages"])
            cursor.execute(_SQL["forget_runs"])
        close_run(conn, run, "failed" if missed else "done", counts, error=missed.what if missed else None)
    finally:
        conn.close()
    if missed:
        raise missed
    return counts


def undelivered(settings: Settings, connections: Connections, conn: Any) -> AlertsUndelivered | None:
    """What to raise when nobody was told of what waits; null when all is well, or may still be."""
    channels = settings.channels()
    unknown = [name for name, channel in channels.items() if not _is_known(connections, channel.url)]
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["untold"], {"unknown": unknown})
        waiting = {severity: (number, stuck) for severity, number, stuck in cursor.fetchall()}
        cursor.execute(_SQL["troubles"])
        troubles = cursor.fetchall()
    kept = "Every alert stays in the outbox (`backstop alerts list --undelivered`) and is tried again."
    grave = sum(number for severity, (number, _) in waiting.items() if severity != "info")
    if not channels:
        if not grave or settings.alerts.none_wanted:
            return None
        return AlertsUndelivered(
            f"{grave} alerts wait, and no channel is configured: nobody gets them.", kept=kept,
            next_step="Write one under `alerts.channels` in backstop.yaml (docs/how-to/alerts.md), or"
                      " `alerts: {none_wanted: true}` if you want no alerts.",
        )  # fmt: skip
    stuck = sum(stuck for _, stuck in waiting.values())
    if not stuck:
        return None
    why = [f"{name}: {error} since {since:%Y-%m-%d %H:%M} UTC" for name, _, since, error in troubles]
    why += [f"{name}: its URL is not known here" for name in unknown]
    return AlertsUndelivered(
        f"{stuck} alerts wait, and no channel takes them ({'; '.join(why)}).", kept=kept,
        next_step="See whether these services are up and their connections still valid: backstop alerts test",
    )  # fmt: skip


def _is_known(connections: Connections, reference: str) -> bool:
    try:
        connections.url(reference)
    except ConfigurationError:
        return False
    return True
