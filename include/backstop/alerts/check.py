"""Says of each channel whether it could be used, and sends a test message; neither touches the outbox."""

from __future__ import annotations

from collections.abc import Iterator

from backstop.alerts.send import Sender, raw
from backstop.alerts.write import as_test
from backstop.brokers.protocol import Finding
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.config.transport import NOT_ENCRYPTED, open_to_others
from backstop.model.errors import ConfigurationError

_DO = "Correct the connection; the forms are in docs/how-to/alerts.md."


def check_channels(settings: Settings, connections: Connections) -> Iterator[Finding]:
    """Whether each channel's URL is known and can be read. Nothing is sent, and nobody is asked."""
    channels = settings.channels()
    if not channels and not settings.alerts.none_wanted:
        yield Finding(
            "alerts",
            True,
            "no channel: alerts are stored, nobody gets them, and deliver_alerts fails when there are any",
            "Write one under `alerts.channels`, or `alerts: {none_wanted: true}`.",
        )
    for name, channel in channels.items():
        error = _use(settings, connections, name, send=False)
        if (
            error is None
            and (why := open_to_others(raw(connections.url(channel.url))))
            and why.startswith(NOT_ENCRYPTED)
        ):
            yield Finding(
                f"channel {name}: transport",
                False,
                "others on the way could read its secret and the alerts",
                why,
            )
        says = (
            f"takes {channel.at_least} and above" if error is None else f"cannot be used: {error}"
        )
        yield Finding(f"channel {name}", error is None, says, _DO)


def send_test(
    settings: Settings, connections: Connections, names: list[str]
) -> Iterator[tuple[str, str | None]]:
    """Sends one test message to each of these channels; yields its name with null, or the kind of failure."""
    for name in names:
        yield name, _use(settings, connections, name, send=True)


def _use(settings: Settings, connections: Connections, name: str, *, send: bool) -> str | None:
    channel = settings.channels()[name]
    try:
        url = connections.url(channel.url)
    except ConfigurationError as error:
        return error.what
    with Sender(channel.kind, url, settings.alerts.timeout.total_seconds()) as sender:
        return sender.error or (sender.send(as_test(name)) if send else None)
