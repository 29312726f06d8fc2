"""`backstop metrics`: the state of the duties for Prometheus, on the standard output or in a file of its textfile collector; or for an
OpenTelemetry collector."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import usage_error


def metrics(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="Write to this file (ending in .prom), whole or not at all.",
            dir_okay=False,
        ),
    ] = None,
    push: Annotated[
        bool,
        typer.Option("--push", help="Send to the OpenTelemetry collector (metrics.otlp)."),
    ] = False,
) -> None:
    """Print when each duty last succeeded and what waits, in Prometheus' text format; or send it to a collector."""
    from backstop.reports.metrics import render

    if push and to is not None:
        raise usage_error("--to and --push exclude one another.", "Choose one.")
    if to is not None and not to.parent.is_dir():
        raise usage_error(
            f"There is no folder {to.parent}.", "Make it first, or name another file."
        )
    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        if push:
            from backstop.reports.otlp import export

            out.line(f"{export(conn, settings, known)} metrics were sent.")
            return
        text, _ = render(conn, settings)
    if to is None:
        sys.stdout.write(text.decode())
        return
    # The collector reads whenever it likes: it must never find half a file.
    descriptor, partial = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, to)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
