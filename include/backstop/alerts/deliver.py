"""Sends what waits in the outbox to every channel that wants it: at least once, and once where nothing crashes.

    control: escalate, spare, route | claim a channel | send a message | control: what was told, by whom | ...

Crash points. Before a send: nothing was told; the claim ends by itself and the next deliverer sends. Between a send and its
commit: the next one sends it once more, as it does what a channel took without answering in time. After it: done. Two deliverers
at once: each channel is claimed by one of them, and whoever lost its claim by being too slow sends nothing more.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from backstop.alerts.due import AlertMessage, DueAlert
from backstop.alerts.plan import plan
from backstop.alerts.prepare import prepare
from backstop.alerts.send import ENDED, TOO_LONG, Sender
from backstop.alerts.write import write
from backstop.config.alerts import SEVERITIES, ChannelSettings
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.model.records import Counts
from backstop.sql.named import load

log = logging.getLogger("backstop.alerts")
_SQL = load("backstop.alerts", "alerts.sql")
_DIGEST_OF = 50_000
_IN_A_ROW = 3
"""After so many messages that a channel did not take, nobody is there; one refused message alone holds back no other."""
_TOLD_AFTER = 5
"""Messages in a row that a channel did not take before the others are told that it fails."""
_SPARE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """One channel that only we speak to, until the claim ends."""

    conn: Any
    channel: str
    settings: ChannelSettings
    token: str
    seconds: float

    def where(self) -> dict[str, Any]:
        return {"channel": self.channel, "token": self.token, "seconds": self.seconds}


def deliver(
    settings: Settings, connections: Connections, conn: Any, within: timedelta | None = None
) -> Counts:
    """One look at the outbox; commits. Begins no message later than `within` from now.

    Counts `told` (alerts that somebody was told of now), `messages`, `digests`, `failed` (messages not taken), `held` (by the
    hourly rate), `unknown` (channels whose URL is not known here), and what prepare counts. Never raises for a channel.
    """
    channels = settings.channels()
    deadline = None if within is None else time.monotonic() + within.total_seconds()
    counts = prepare(conn, settings.alerts, channels)
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["any_due"])
        due = [row[0] for row in cursor.fetchall() if row[0] in channels]
    for name in due:
        try:
            url = connections.url(channels[name].url)
        except ConfigurationError:
            log.error("backstop: the URL of the channel %s is not known here", name)
            counts.add("unknown")
            continue
        claim = _claim(settings, conn, name)
        if claim is None:
            continue  # somebody else is speaking to it
        try:
            counts += _serve(settings, claim, url, deadline)
        finally:
            with conn, conn.cursor() as cursor:
                cursor.execute(_SQL["release"], claim.where())
    return counts


def send_unstored(
    settings: Settings, connections: Connections, message: Mapping[str, Any]
) -> dict[str, str | None]:
    """Sends what could not be stored to every channel that takes its severity; by name null, or the kind of failure."""
    became: dict[str, str | None] = {}
    for name, channel in settings.channels().items():
        if SEVERITIES.index(message["severity"]) < SEVERITIES.index(channel.at_least):
            continue
        try:
            url = connections.url(channel.url)
        except ConfigurationError:
            became[name] = "its URL is not known here"
            continue
        with Sender(channel.kind, url, settings.alerts.timeout.total_seconds()) as sender:
            became[name] = sender.error or sender.send(message)
    return became


def _claim(settings: Settings, conn: Any, name: str) -> _Claim | None:
    seconds = 3 * settings.alerts.timeout.total_seconds() + _SPARE_SECONDS
    claim = _Claim(conn, name, settings.channels()[name], str(uuid.uuid4()), seconds)
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["claim"], claim.where())
        return claim if cursor.fetchone() else None


def _serve(settings: Settings, claim: _Claim, url: str, deadline: float | None) -> Counts:
    """Sends to one channel what it is to be sent now."""
    alerts, counts, in_a_row = settings.alerts, Counts(), 0
    with claim.conn, claim.conn.cursor() as cursor:
        cursor.execute(_SQL["due"], {"channel": claim.channel, "limit": _DIGEST_OF})
        waiting = [DueAlert(*row) for row in cursor.fetchall()]
        cursor.execute(_SQL["sent_lately"], {"channel": claim.channel})
        sent, newest = cursor.fetchone()
    messages = plan(
        waiting, sent, newest, digest_above=alerts.digest_above, an_hour=alerts.messages_an_hour
    )
    if waiting and not messages:
        log.info(
            "backstop: %s alerts wait until the channel %s may take more messages this hour",
            len(waiting),
            claim.channel,
        )
        counts.add("held", len(waiting))
    if not messages:
        return counts
    with Sender(claim.settings.kind, url, alerts.timeout.total_seconds()) as sender:
        not_taken = set[str]()
        for message in messages:
            if any(alert.closing and alert.thread in not_taken for alert in message.alerts):
                continue  # the end of a story goes with what was not taken of it, the next time
            if (deadline is not None and time.monotonic() >= deadline) or not _claim_on(claim):
                break
            error = sender.error or sender.send(write(message))
            counts += _told(claim, message) if error is None else _not_told(claim, message, error)
            if error is not None:
                not_taken |= {alert.thread for alert in message.alerts}
            in_a_row = 0 if error is None else in_a_row + 1
            if sender.error or error in (TOO_LONG, ENDED) or in_a_row == _IN_A_ROW:
                break  # nobody is there; each further one would wait for its time-out
    return counts


def _claim_on(claim: _Claim) -> bool:
    with claim.conn, claim.conn.cursor() as cursor:
        cursor.execute(_SQL["claim_on"], claim.where())
        return cursor.fetchone() is not None


def _told(claim: _Claim, message: AlertMessage) -> Counts:
    ids = [alert.alert_id for alert in message.alerts]
    with claim.conn, claim.conn.cursor() as cursor:
        cursor.execute(_SQL["one_at_a_time"])
        cursor.execute(_SQL["keep_message"], {"channel": claim.channel, "alerts": len(ids)})
        values = {"channel": claim.channel, "alerts": ids, "message_id": cursor.fetchone()[0]}
        cursor.execute(_SQL["delivered"], values)
        told = cursor.rowcount
        cursor.execute(_SQL["told"], values)
        cursor.execute(_SQL["works"], values)
        failures, since = cursor.fetchone()
        if failures:
            _say_over(cursor, claim.channel, since)
    log.info("backstop: the channel %s took %s alerts", claim.channel, len(ids))
    return Counts(told=told, messages=1, **({"digests": 1} if message.is_digest else {}))


def _not_told(claim: _Claim, message: AlertMessage, error: str) -> Counts:
    values = {
        "channel": claim.channel,
        "alerts": [alert.alert_id for alert in message.alerts],
        "error": error,
    }
    with claim.conn, claim.conn.cursor() as cursor:
        cursor.execute(_SQL["one_at_a_time"])
        cursor.execute(_SQL["not_told"], values)
        cursor.execute(_SQL["fails"], values)
        failures, since = cursor.fetchone()
        if failures == _TOLD_AFTER:
            _say_failing(cursor, claim.channel, since, error)
    log.error(
        "backstop: the channel %s did not take a message (%s); it is tried again",
        claim.channel,
        error,
    )
    return Counts(failed=1)


def _say_failing(cursor: Any, channel: str, since: int, error: str) -> None:
    """To the other channels, once for each time that it begins to fail."""
    cursor.execute(
        _SQL["alert"],
        {
            "dedup_key": f"channel/{channel}@{since}/failing",
            "severity": "warning",
            "facts": "{}",
            "title": f"The channel {channel} takes no alerts",
            "body": f"{_TOLD_AFTER} messages in a row were not taken since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC,"
            f" the last one: {error}. Readers of this channel alone miss alerts; Backstop keeps trying. Do: check that the"
            f" service is up and the connection still valid, then: backstop alerts test --channel {channel}",
        },
    )


def _say_over(cursor: Any, channel: str, since: int) -> None:
    key = f"channel/{channel}@{since}/failing"
    cursor.execute(_SQL["alert_exists"], {"dedup_key": key})
    if cursor.fetchone():
        cursor.execute(
            _SQL["alert"],
            {
                "dedup_key": f"channel/{channel}@{since}/over",
                "severity": "info",
                "facts": "{}",
                "title": f"The channel {channel} takes alerts again",
                "body": "What waited for it is being sent.",
            },
        )
