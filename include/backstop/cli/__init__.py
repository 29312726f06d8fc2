"""`backstop` on the command line: one file a group of commands, nothing heavy imported before a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point: runs one command and exits with its code."""
    try:
        from backstop.cli.app import run_app
    except ModuleNotFoundError as missing:
        from backstop.cli.extras import extra_of, install

        if extra_of(missing.name) != "platform":
            raise
        if sys.argv[1:2] in (["migrate"], ["topics"]):
            from backstop.cli.set_up import run_without_platform

            sys.exit(run_without_platform(sys.argv[1:]))
        print(
            "backstop: The command line is not installed, but for `backstop migrate` and `backstop topics`.\n"
            f"  unaffected: Nothing was started.\n  next: {install('platform')}",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run_app(sys.argv[1:]))
