"""The command line that every Spark job shares: arguments without secrets, one line of counts, an honest exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from backstop.config.connections import take_secrets_file
from backstop.errors import BackstopError
from backstop.records import Counts
from backstop.runs.watch_parent import watch_parent


def main_of(job: Callable[[argparse.Namespace], Counts]) -> None:
    """Runs `job` with --run-id and --token; a BackstopError ends the process with its exit code and its three parts.

    The process ends itself when its parent dies: an orchestrator's kill does not always reach a Spark driver.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-id", type=int, required=True)
    parser.add_argument("--token", required=True, help="the run's fencing token; it opens no door by itself")
    arguments = parser.parse_args()
    watch_parent()
    try:
        take_secrets_file()
        counts = job(arguments)
    except BackstopError as error:
        print(f"backstop: {error.what}\n  unaffected: {error.kept}\n  next: {error.next_step}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    print(f"backstop: {counts}", flush=True)
