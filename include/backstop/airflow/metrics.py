"""GET /backstop-metrics/metrics for a scraper with the bearer token of settings.metrics. Without that setting, or with a
token that is too short, or when anything about it cannot be read, everybody is refused.

An application of its own, so that the readers' pages keep a door that only sessions open.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import Response

from backstop.airflow.control_room import control_room, url_from_airflow

log = logging.getLogger("backstop.metrics")
SHORTEST = 16
KEPT_SECONDS = 30.0
"""How long another token, or none, may take to be known."""


def make_app() -> FastAPI:
    """The application that Airflow mounts."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.get("/metrics")(show_metrics)
    return app


def show_metrics(
    authorization: Annotated[str | None, Header()] = None, accept: Annotated[str, Header()] = ""
) -> Response:
    """The metrics, in the format that the scraper asks for; 401 or 403 for everybody without the token."""
    kind, _, given = (authorization or "").partition(" ")
    expected = kept_token()
    if expected is None:
        raise HTTPException(403, "No token is set for metrics: they stay closed.")
    if kind.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode(), expected.encode()
    ):
        raise HTTPException(
            401, "The token is not the right one.", headers={"WWW-Authenticate": "Bearer"}
        )
    from backstop.reports.metrics import render

    with control_room() as room:
        text, content_type = render(room.control, room.settings, accept, import_errors())
    return Response(
        text, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"}
    )


class _Kept:
    """The token as it was last read, so that a request without it costs a comparison."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.until = 0.0
        self.token: str | None = None


_kept = _Kept()


def kept_token() -> str | None:
    """As `token` said within the last KEPT_SECONDS; whoever asks meanwhile waits for one reading."""
    with _kept.lock:
        if time.monotonic() >= _kept.until:
            _kept.token = token()
            _kept.until = time.monotonic() + KEPT_SECONDS
        return _kept.token


def token() -> str | None:
    """The password of the connection that settings.metrics names; null: nobody may pass."""
    from backstop.config.connections import Connections
    from backstop.config.load import load
    from backstop.model.errors import BackstopError

    try:
        settings = load()
        if settings.metrics is None or settings.metrics.token is None:
            return None
        password = urlsplit(
            Connections(resolver=url_from_airflow).url(settings.metrics.token)
        ).password
    except (BackstopError, ValueError) as error:
        log.error("backstop: no token for metrics is known (%s)", type(error).__name__)
        return None
    found = unquote(password or "")
    if len(found) < SHORTEST:
        log.error(
            "backstop: the token for metrics has fewer than %s characters: nobody may pass",
            SHORTEST,
        )
        return None
    return found


def import_errors() -> dict[str, tuple[str, float]]:
    """How many DAG files do not load, where this Airflow lets us ask; the callbacks of a DAG that does not load never come."""
    try:
        from airflow.models.errors import ParseImportError
        from airflow.utils.session import create_session
        from sqlalchemy import func, select

        with create_session() as session:
            number: Any = session.scalar(select(func.count()).select_from(ParseImportError))
    except Exception as error:  # noqa: BLE001 - Airflow promises none of this; without it a duty that never runs is overdue
        log.warning(
            "backstop: Airflow does not report its import errors (%s)", type(error).__name__
        )
        return {}
    return {
        "backstop_airflow_dag_import_errors": (
            "DAG files of this Airflow that do not load",
            float(number),
        )
    }
