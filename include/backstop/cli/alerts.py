"""`backstop alerts`: the alerts that were written, sending what waits, and trying the channels."""

from __future__ import annotations

from typing import Annotated

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import LARGEST

app = typer.Typer(help="Alerts: list, deliver, test.", no_args_is_help=True)


@app.command("list")
def list_them(
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="Only alerts that no channel took.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LARGEST)] = 50,
    as_json: out.Json = False,
) -> None:
    """List alerts, the newest first, and which channel got each."""
    from backstop.alerts.list_alerts import list_alerts

    with context.control(context.load_settings(), context.connections()) as conn:
        alerts = list_alerts(conn, undelivered=undelivered, limit=limit)
    if as_json:
        out.document(alerts)
    elif not alerts:
        out.line("Nothing waits." if undelivered else "No alert yet.")
    else:
        out.table(
            ["alert", "at", "severity", "title", "delivered", "channels"],
            [
                [
                    a.alert_id,
                    a.created_at,
                    a.severity,
                    a.title,
                    a.delivered_at or a.ended,
                    ", ".join(f"{name}: {state}" for name, state in sorted(a.channels.items())),
                ]
                for a in alerts
            ],
        )


@app.command("deliver")
def deliver_now(as_json: out.Json = False) -> None:
    """Send waiting alerts, as the DAG deliver_alerts does. Ends with 3 when alerts wait and no channel takes them."""
    from backstop.alerts.run_once import run_once

    with out.progress("sending alerts"):
        counts = run_once(context.load_settings(), context.connections())
    if as_json:
        out.document({"counts": counts})
    else:
        out.line(f"alerts: {counts}")


@app.command("test")
def test_channels(
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="Only this channel; may be repeated.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Send one test message to each channel. Ends with 3 when one did not take it."""
    from backstop.alerts.check import send_test
    from backstop.model.errors import ConfigurationError

    settings, known = context.load_settings(), context.connections()
    channels = settings.channels()
    if unknown := sorted(set(channel or ()) - set(channels)) or not channels:
        raise ConfigurationError(
            f"There is no channel {', '.join(unknown)}."
            if isinstance(unknown, list)
            else "backstop.yaml names no channel.",
            unaffected="Nothing was sent.",
            next_step=f"Name one of: {', '.join(channels)}."
            if channels
            else "Write one under `alerts.channels` in backstop.yaml (docs/how-to/alerts.md).",
        )
    became: dict[str, str | None] = {}
    for name, error in send_test(settings, known, channel or list(channels)):
        became[name] = error
        if not as_json:
            out.line(
                f"{'ok ' if error is None else 'BAD'} {name}: {error or 'took it'}",
                None if error is None else "red",
            )
    if as_json:
        out.document(became)
    if any(became.values()):
        raise typer.Exit(3)
