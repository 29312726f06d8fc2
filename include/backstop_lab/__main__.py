"""`make up`, `make down`, `make status`, `make shell`: what is done with the embedded platform."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from backstop.model.errors import BackstopError
from backstop_lab import supervise
from backstop_lab.platform import DEFAULT_ROOT
from backstop_lab.run_main import run_main


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m backstop_lab", description=__doc__)
    parser.add_argument("what", choices=sorted(supervise.ACTIONS))
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="where its data lies")
    parser.add_argument("--config", type=Path, default=None, help="the backstop.yaml that it reads")
    asked = parser.parse_args(arguments)
    try:
        return supervise.ACTIONS[asked.what](asked.root.resolve(), asked.config)
    except BackstopError as refused:
        print(refused, file=sys.stderr)
        return refused.exit_code


if __name__ == "__main__":
    run_main(main)
