"""Asks the heartbeat's URL, within a limit that holds whatever the other side does.

The URL is a secret (whoever has it can silence the alarm): no error text carries it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from backstop.config.connections import Connections
from backstop.config.settings import HeartbeatSettings, Settings

TRIES = 2
URL, FAIL_URL = "backstop_heartbeat", "backstop_heartbeat_fail"
"""Connections that are used without a word in backstop.yaml: whoever makes them wants the heartbeat."""


def with_heartbeat(settings: Settings, connections: Connections) -> Settings:
    """The settings with the heartbeat that is in force: the one written there, else one by the connections of these names, if the
    first is there."""
    if settings.heartbeat is not None:
        return settings
    known = connections.known((URL, FAIL_URL))
    if URL not in known:
        return settings
    fail_url = FAIL_URL if FAIL_URL in known else None
    return settings.model_copy(update={"heartbeat": HeartbeatSettings(url=URL, fail_url=fail_url)})


class _NoRedirects(HTTPRedirectHandler):
    """A redirect could lead anywhere; the answer itself is then the error."""

    def redirect_request(self, *_: object) -> None:
        return None


def beat(url: str, body: str, timeout: timedelta) -> str | None:
    """POSTs `body` as text; null when it was taken (2xx), else what came of the last try, without the URL.

    Takes at most TRIES x timeout, also when the other side answers one byte at a time.
    """
    trouble: str | None = "it was not tried"
    for _ in range(TRIES):
        trouble = _within(url, body, timeout)
        if trouble is None:
            return None
    return trouble


def _within(url: str, body: str, timeout: timedelta) -> str | None:
    seconds = timeout.total_seconds()
    ended: list[str | None] = []
    # The library's own limit is for each read, so a slow server could hold it forever.
    thread = threading.Thread(
        target=lambda: ended.append(_ask(url, body, seconds)), daemon=True, name="heartbeat-url"
    )
    thread.start()
    thread.join(seconds)
    return ended[0] if ended else f"no answer within {seconds:g} s"


def _ask(url: str, body: str, seconds: float) -> str | None:
    try:
        request = Request(
            url,
            data=body.encode(),
            headers={"Content-Type": "text/plain; charset=utf-8"},
            method="POST",
        )
        if request.type not in ("http", "https"):
            return "it is not an http(s) URL"
        with build_opener(_NoRedirects).open(request, timeout=seconds):
            return None
    except HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:
        return type(getattr(error, "reason", error)).__name__
