"""Runs the checker as a program of its own: isolated, it finds its own files and nothing of Backstop."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # At the end: a name of the standard library is never taken from here.
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    sys.exit(importlib.import_module("checker.check").main(sys.argv[1:]))
