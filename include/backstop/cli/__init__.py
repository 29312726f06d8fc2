"""`backstop` on the command line: one file a group of commands, nothing heavy imported before a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point: runs one command and exits with its code."""
    try:
        from backstop.cli.app import run_app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "click"):
            raise
        print(
            'The command line is not installed.\n  kept: Nothing was started.\n  next: pip install "backstop-mq[platform]"',
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run_app(sys.argv[1:]))
