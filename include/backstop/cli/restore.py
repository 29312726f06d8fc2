"""`backstop restore`: what has to be done after a database came back from a backup; docs/runbooks tells when."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from backstop.cli import context, out
from backstop.config.instant import read_instant

log = logging.getLogger(__name__)
app = typer.Typer(
    help="After a database was restored from a backup: producer, consumer, control.",
    no_args_is_help=True,
)
Since = Annotated[
    str,
    typer.Option("--since", help="An instant before the backup was taken, as 2026-11-21T02:00Z."),
]
_NOT_FINISHED = "Not finished: sends of some messages are under way. Nothing goes out before it is; run this again once they have ended."


@app.command()
def producer(
    shard: Annotated[str, typer.Argument(help="The shard, by its name in backstop.yaml.")],
    since: Since,
    as_json: out.Json = False,
) -> None:
    """Raise send counts above every number that was handed out since, so that none is used twice; edit and withdraw again what was."""
    from backstop.restore.producer import UNFINISHED, restore_producer
    from backstop.spark.session import start_for_lakes

    settings, known = context.load_settings(), context.connections()
    # Withdrawals that were cut short are judged, which needs Spark; numbers are raised without it.
    try:
        start_for_lakes(settings)
    except Exception as error:  # noqa: BLE001 - whatever Spark says of itself: a lake that is needed is named as one that did not answer
        log.warning("Spark did not start: %s", error)
    with context.control(settings, known) as conn:
        counts = restore_producer(settings, known, conn, shard, read_instant("--since", since))
    if as_json:
        out.document({"counts": counts})
        return
    out.line(f"restore producer {shard}: {counts}")
    if any(counts.get(name) for name in UNFINISHED):
        out.line(_NOT_FINISHED)


@app.command()
def consumer(
    store: Annotated[
        str, typer.Argument(help="The consumer database, by its name in backstop.yaml.")
    ],
    since: Since,
    as_json: out.Json = False,
) -> None:
    """Judge again what was confirmed since: its logs and its work may be gone."""
    from backstop.restore.consumer import restore_consumer

    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        counts = restore_consumer(settings, known, conn, store, read_instant("--since", since))
    if as_json:
        out.document({"counts": counts})
        return
    out.line(f"restore consumer {store}: {counts}")
    if counts.get("not_held"):
        out.line(_NOT_FINISHED)


@app.command()
def control(as_json: out.Json = False) -> None:
    """Keep rules from resending what was received and not finished before now: its dead letter may be forgotten."""
    from backstop.restore.control import restore_control

    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        reached = restore_control(settings, conn)
    if as_json:
        out.document({"logs_until": reached})
    else:
        out.line(f"restore control: logs up to {reached.isoformat(timespec='seconds')} count.")
