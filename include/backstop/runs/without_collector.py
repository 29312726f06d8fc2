"""Turns the collector of cycles off while a duty works on a batch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Leaves cycles of garbage until the end of a batch. The records of a batch are none: the collector would walk through tens of
    thousands of them again and again, which took a fifth of a worker's Python CPU, and free nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
