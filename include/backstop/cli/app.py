"""The table of commands, and what becomes of an error: three parts on stderr, an honest exit code, never a secret."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from backstop.cli import context
from backstop.cli.extras import extra_of, install
from backstop.cli.out import printable
from backstop.model.errors import BackstopError
from backstop.model.mask_secrets import drop_details

COMMANDS = {
    "migrate": ("migrate", "Bring databases to the schema of this version."),
    "check": ("check", "Check settings, connections, clocks, privileges, durability."),
    "topics": ("topics", "Create topics and groups at the broker."),
    "schema": ("schema", "Print the JSON schema of backstop.yaml, for editors."),
    "run": ("run", "Run a duty without Airflow: reconcile, resend, sweep, ..."),
    "where": ("where", "Show the whole history of a message, and what is next."),
    "prove": ("prove", "Show what was lost in a window, with an export as proof."),
    "metrics": ("metrics", "Print the state of the duties for Prometheus."),
    "cases": ("cases", "Decisions for a person: list, show, decide, note."),
    "dead-letters": ("dead_letters", "Dead letters: list, show, causes, export."),
    "alerts": ("alerts", "Alerts: list, deliver, test."),
    "pause": ("pause", "Stop resending a topic, or everything."),
    "resume": ("pause", "Resume resending."),
    "erase": ("erase", "Empty the contents of messages, on request."),
    "runs": ("runs", "Runs of the duties: list, show."),
    "restore": ("restore", "After a database was restored from a backup."),
    "replay": ("replay", "Plan a replay of a window, show it, ask for it."),
}
"""Name -> its module, and what `backstop --help` says of it: only the module of the command that was asked for is imported."""
_MAY_NOT = "42501"
"""PostgreSQL's code for a privilege that the login has not."""


def make_app(wanted: str | None) -> typer.Typer:
    """The program with this command whole, and of the others their names; `wanted` None: all of them whole."""
    app = typer.Typer(
        name="backstop",
        help="Did each consumer group do its work for every message? Finds what was lost, explains it, sends it again.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: importing rich costs more CPU time than the rest of `--help`
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for name, (module, sentence) in COMMANDS.items():
        if wanted is not None and name != wanted:
            app.command(name, help=sentence)(_only_named)
            continue
        loaded = import_module(f"backstop.cli.{module}")
        if hasattr(loaded, "app"):
            app.add_typer(loaded.app, name=name)
        else:
            app.command(name)(getattr(loaded, name))
    return app


def _only_named() -> None:
    raise AssertionError("a command that was asked for is whole")


def command_of(arguments: Sequence[str]) -> str | None:
    """The command among them; None where there is none."""
    left = iter(arguments)
    for argument in left:
        if argument == "--config":
            next(left, None)
        elif not argument.startswith("-"):
            return argument
    return None


def options(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="The settings; default: $BACKSTOP_CONFIG or ./backstop.yaml."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options that stand before the command."""
    context.chosen = context.Chosen(config, debug)


def run_app(arguments: list[str]) -> int:
    """Runs one command; returns its exit code: 0 good, 1 a bad finding, 2 wrong use, 3 something is away, 7 not finished, 130
    stopped."""
    context.chosen = context.Chosen()
    if odd := next((one for one in arguments if not _is_text(one)), None):
        _say(
            f"An argument is not UTF-8: {odd!r}.",
            "Nothing was read or changed.",
            "Give it in UTF-8. An id that is no text stands for no message.",
        )
        return 2
    try:
        command = command_of(arguments)
        # A shell that completes asks for every command and option.
        whole = "_BACKSTOP_COMPLETE" in os.environ
        make_app(None if whole else command or "")(arguments, prog_name="backstop")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        print(
            "backstop: stopped; what was committed stays, and doing it again is safe.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough (`| head`). Without this Python complains once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BackstopError as error:
        _say(error.what, error.unaffected, error.next_step)
        return error.exit_code
    except ModuleNotFoundError as missing:
        if not (extra := extra_of(missing.name)):
            return _say_unexpected(missing)
        _say(
            f"{missing.name} is not installed.",
            "What was committed stays valid.",
            f"{install(extra)}, then run it again.",
        )
        return 2
    except Exception as error:  # noqa: BLE001  the last resort: a person reads a sentence, not a traceback
        return _say_unexpected(error)
    return 0


def _is_text(argument: str) -> bool:
    """Python keeps bytes that are no UTF-8 as characters that no database takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


def _say_unexpected(error: Exception) -> int:
    if getattr(error, "pgcode", None) == _MAY_NOT:
        _say(
            f"This login may not do that: {drop_details(error)}.",
            "What was committed stays valid.",
            "Use a login that may: docs/how-to/command-line.md names what people's logins do. After an upgrade run"
            " `backstop migrate --grants`.",
        )
        return 2
    if isinstance(error, OSError) and error.filename is not None:
        _say(
            f"{error.filename} cannot be used: {error.strerror}.",
            "What was committed stays valid.",
            "Name a file or folder that is there and that you may use, then run it again.",
        )
        return 2
    _say(
        f"Something unexpected: {type(error).__name__}: {drop_details(error)}",
        "What was committed stays valid; every command may be run again.",
        "Run it again with `backstop --debug ...` and report what it shows.",
    )
    return 1


def _say(what: str, unaffected: str, next_step: str) -> None:
    hide = context.hide_secrets
    if context.chosen.debug:
        import traceback

        if (error := sys.exc_info()[1]) is not None:
            drop_details(error)
        print(hide(traceback.format_exc()), file=sys.stderr)
    # Part by part: a password that is a word of ours must not eat the labels.
    text = f"backstop: {hide(printable(what, lines=True))}\n  unaffected: {hide(unaffected)}\n  next: {hide(next_step)}"
    print(text, file=sys.stderr)
