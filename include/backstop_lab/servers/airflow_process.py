"""Run one of Airflow's commands, and end as soon as it has ended.

An api-server that has finished takes seconds of a core more: Python frees each of its objects, and only then ends the process,
which frees them all.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn


def become_airflow(arguments: Sequence[str]) -> NoReturn:
    """`airflow` with these arguments, to the end of this process."""
    sys.argv = ["airflow", *arguments]
    code = 1
    try:
        runpy.run_module("airflow", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            code = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - told here: nobody is left above
        traceback.print_exc()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    become_airflow(sys.argv[1:])
