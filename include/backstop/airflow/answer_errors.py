"""How our applications answer when they cannot do what was asked: one rule for the console's API and for the plain pages."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from backstop.model.errors import BackstopError, ConfigurationError, DecisionRefused, Unavailable

# No postponed annotations: FastAPI reads those of a handler.

Respond = Callable[[int, str, str, str], Response]
"""Status, what happened, what is unaffected, what to do next -> the answer, in the application's own form."""
NOTHING_CHANGED = "Nothing was changed."
_OURS = (
    (ConfigurationError, 422),
    (DecisionRefused, 409),
    (Unavailable, 503),
    (BackstopError, 503),
)
_BUSY = (
    "The control database is too busy to answer this.",
    NOTHING_CHANGED,
    "Narrow the filter, or use the command line.",
)
_READS_ONLY = (
    "The login that Airflow's server has in the control database only reads.",
    NOTHING_CHANGED,
    "Use the command line, or give the server the duties' login (docs/how-to/console.md).",
)
_GONE = (
    "The control database went away.",
    "What was being stored is stored whole, or not at all.",
    "Bring it back, and look before you ask for a change again; what is stored there is still valid.",
)


def answer_errors(app: FastAPI, respond: Respond) -> None:
    """An error of ours says its three parts itself. The text of a driver's error is not shown, because it may quote a row."""
    from psycopg2 import InterfaceError, OperationalError
    from psycopg2.errors import InsufficientPrivilege, QueryCanceled

    for ours, status in _OURS:
        app.exception_handler(ours)(_answering(respond, status))
    app.exception_handler(QueryCanceled)(_answering(respond, 503, _BUSY))
    app.exception_handler(InsufficientPrivilege)(_answering(respond, 403, _READS_ONLY))
    # The latter is what psycopg2 raises in place of the former when it rolls a dead session back.
    for gone in (OperationalError, InterfaceError):
        app.exception_handler(gone)(_answering(respond, 503, _GONE))


def _answering(
    respond: Respond, status: int, parts: tuple[str, str, str] | None = None
) -> Callable[[Request, Any], Response]:
    def answer(_: Request, error: Any) -> Response:
        return respond(status, *(parts or (error.what, error.unaffected, error.next_step)))

    return answer
