"""The table of commands, and what becomes of an error: three parts on stderr, an honest exit code, never a secret."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from backstop.cli import (
    alerts,
    cases,
    check,
    context,
    dead_letters,
    erase,
    metrics,
    migrate,
    pause,
    prove,
    replay,
    restore,
    run,
    runs,
    schema,
    where,
)
from backstop.cli.out import printable
from backstop.errors import BackstopError

app = typer.Typer(
    name="backstop",
    help="Did each consumer group do its work for every message? Finds what was lost, explains it, sends it again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("migrate")(migrate.migrate)
app.command("check")(check.check)
app.command("schema")(schema.schema)
app.add_typer(run.app, name="run")
app.command("where")(where.where)
app.command("prove")(prove.prove)
app.command("metrics")(metrics.metrics)
app.add_typer(cases.app, name="cases")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(alerts.app, name="alerts")
app.command("pause")(pause.pause)
app.command("resume")(pause.resume)
app.command("erase")(erase.erase)
app.add_typer(runs.app, name="runs")
app.add_typer(restore.app, name="restore")
app.command("replay")(replay.replay)


@app.callback()
def options(
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings; default: $BACKSTOP_CONFIG or ./backstop.yaml.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options that stand before the command."""
    context.chosen = context.Chosen(config, debug)


def run_app(arguments: list[str]) -> int:
    """Runs one command; returns its exit code: 0 good, 1 a bad finding, 2 wrong use, 3 something is away, 7 not finished, 130
    stopped."""
    context.chosen = context.Chosen()
    try:
        app(arguments, prog_name="backstop")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        print("backstop: stopped; what was committed stays, and doing it again is safe.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough (`| head`). Without this Python complains once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BackstopError as error:
        _say(error.what, error.kept, error.next_step)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last resort: a person reads a sentence, not a traceback
        _say(
            f"Something unexpected: {type(error).__name__}: {error}",
            "What was committed stays valid; every command may be run again.",
            "Run it again with `backstop --debug ...` and report what it shows.",
        )
        return 1
    return 0


def _say(what: str, kept: str, next_step: str) -> None:
    hide = context.hide_secrets
    if context.chosen.debug:
        print(hide(traceback.format_exc()), file=sys.stderr)
    print(hide(f"backstop: {printable(what, lines=True)}\n  kept: {kept}\n  next: {next_step}"), file=sys.stderr)
