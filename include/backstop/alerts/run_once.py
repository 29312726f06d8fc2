"""The duty deliver_alerts: send what waits in the outbox."""

from __future__ import annotations

from typing import Any

from backstop.alerts.deliver import deliver
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import AlertsUndelivered, ConfigurationError
from backstop.model.records import Counts
from backstop.runs.duty import Duty, Step, Work, walk_duty
from backstop.sql.named import load

_SQL = load("backstop.alerts", "alerts.sql")


def require_told(work: Work[None]) -> None:
    """Raises AlertsUndelivered when alerts wait that somebody should be told of and no channel takes them, or for a channel whose
    URL is not known here; also when there is no channel at all, unless `alerts.none_wanted` says that this is meant."""
    if missed := undelivered(work.settings, work.connections, work.control):
        raise missed


def forget(work: Work[None]) -> None:
    """Messages and runs of this duty that tell nobody anything any more."""
    with work.control, work.control.cursor() as cursor:
        cursor.execute(_SQL["forget_messages"])
        cursor.execute(_SQL["forget_runs"])


DELIVER_ALERTS = Duty(
    "deliver_alerts",
    steps=(
        Step("deliver", lambda work: deliver(work.settings, work.connections, work.control)),
        Step("require_told", require_told, goes_on="always"),
        Step("forget", forget),
    ),
    unaffected="Every alert stays in the outbox; one that was sent just now may be sent again.",
    next_step="Bring it back; the next run sends what waits.",
)


def run_once(settings: Settings, connections: Connections) -> Counts:
    """The whole duty in this process, as `walk_duty`; it fails while nobody can be told."""
    return walk_duty(DELIVER_ALERTS, settings, connections, None).counts


def undelivered(
    settings: Settings, connections: Connections, conn: Any
) -> AlertsUndelivered | None:
    """What to raise when nobody was told of what waits, or nothing can be sent to a channel; null when all is well, or may still
    be."""
    channels = settings.channels()
    unknown = [
        name for name, channel in channels.items() if not _is_known(connections, channel.url)
    ]
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["untold"], {"unknown": unknown})
        waiting = {severity: (number, stuck) for severity, number, stuck in cursor.fetchall()}
        cursor.execute(_SQL["missed"], {"channels": unknown})
        (missed,) = cursor.fetchone()
        cursor.execute(_SQL["troubles"], {"channels": list(channels)})
        troubles = cursor.fetchall()
    kept = (
        "Every alert stays in the outbox (`backstop alerts list --undelivered`) and is tried again."
    )
    grave = sum(number for severity, (number, _) in waiting.items() if severity != "info")
    if not channels:
        if not grave or settings.alerts.none_wanted:
            return None
        return AlertsUndelivered(
            f"{grave} alerts wait, and no channel is configured: nobody gets them.",
            unaffected=kept,
            next_step="Write one under `alerts.channels` in backstop.yaml (docs/how-to/alerts.md), or"
            " `alerts: {none_wanted: true}` if you want no alerts.",
        )
    stuck = sum(stuck for _, stuck in waiting.values())
    if not stuck and not missed:
        return None
    if not stuck:
        return AlertsUndelivered(
            f"{missed} alerts, which another channel took, wait for a channel whose URL is not known here ({', '.join(unknown)}).",
            unaffected="They stay in the outbox until `give_up_after` is over; the other channels get every alert.",
            next_step="Create the connection again, or remove the channel from backstop.yaml, then: backstop alerts test",
        )
    why = [
        f"{name}: {error} since {since:%Y-%m-%d %H:%M} UTC" for name, _, since, error in troubles
    ]
    why += [f"{name}: its URL is not known here" for name in unknown]
    return AlertsUndelivered(
        f"{stuck} alerts wait, and no channel takes them ({'; '.join(why)}).",
        unaffected=kept,
        next_step="See whether these services are up and their connections still valid: backstop alerts test",
    )


def _is_known(connections: Connections, reference: str) -> bool:
    try:
        connections.url(reference)
    except ConfigurationError:
        return False
    return True
