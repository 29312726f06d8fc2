"""Asks a reader of dead letters, so that what one queue's letters do to it, or one broker's settings, stops that one alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from backstop.model.errors import BrokerUnavailable, ConfigurationError, Unavailable

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Unreadable(BrokerUnavailable):
    """The broker answered, and what it answered could not be read: of this queue alone."""


def ask_reader(call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """What the call answers. Raises Unavailable, also for settings of the broker that cannot be; of a failure that nobody
    foresaw Unreadable.

    That says the kind and the place, never the text of the failure, which may quote a letter.
    """
    try:
        return call(*args, **kwargs)
    except Unavailable:
        raise
    except ConfigurationError as error:  # of this broker alone
        raise BrokerUnavailable(error.what, kept=error.kept, next_step=error.next_step) from error
    except Exception as error:
        raise Unreadable(
            f"Its dead letters cannot be read: {kind_and_place(error)}.",
            kept="They stay with their broker.",
            next_step="Check the queue's first messages with the broker's own tools, and report what they are.",
        ) from error


def kind_and_place(error: Exception) -> str:
    """What may be said of a failure whose text may quote a letter."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(at.filename).name}, line {at.lineno}"
