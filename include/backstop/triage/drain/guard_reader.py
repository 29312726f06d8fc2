"""Guards a reader of dead letters: an error in one queue, or in one broker's settings, stops that one alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from backstop.model.errors import BrokerUnavailable, ConfigurationError, Unavailable

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Unreadable(BrokerUnavailable):
    """The broker answered, and the answer could not be read; only this queue is affected."""


def guard_reader(call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """The call's result. Raises Unavailable, also for wrong settings of the broker, and Unreadable for any other error.

    Unreadable has the error's type and place, never its text, which may quote a dead letter.
    """
    try:
        return call(*args, **kwargs)
    except Unavailable:
        raise
    except ConfigurationError as error:  # of this broker alone
        raise BrokerUnavailable(
            error.what, unaffected=error.unaffected, next_step=error.next_step
        ) from error
    except Exception as error:
        raise Unreadable(
            f"Its dead letters cannot be read: {kind_and_place(error)}.",
            unaffected="They stay with their broker.",
            next_step="Check the queue's first messages with the broker's own tools, and report what they are.",
        ) from error


def kind_and_place(error: Exception) -> str:
    """What may be shown of an error whose text may quote a dead letter."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(at.filename).name}, line {at.lineno}"
