"""What Backstop adds to Airflow's UI: buttons on tasks, and read-only pages of runs. Light: every process
loads plugins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from backstop.airflow.links import PREFIX, DataDocsLink, RunLink


async def pages(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The application, made at its first request: FastAPI and our settings are needed by the api-server
    alone."""
    global _app
    if _app is None:
        from backstop.airflow.pages import make_app

        _app = make_app()
    await _app(scope, receive, send)


async def metrics(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The same for scrapers, who have a token and no session."""
    global _metrics
    if _metrics is None:
        from backstop.airflow.metrics import make_app

        _metrics = make_app()
    await _metrics(scope, receive, send)


async def console(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The JSON API of the console, likewise."""
    global _console
    if _console is None:
        from backstop.airflow.console.app import make_app

        _console = make_app()
    await _console(scope, receive, send)


_app: Any = None
_console: Any = None
_metrics: Any = None


BUNDLE = Path(__file__).parent / "console" / "static" / "console.js"
"""The console, built from `ui/`; `make ui` builds it again."""


def bundle_url() -> str:
    """Its address, which changes with its content. Relative: Airflow may be served below a path."""
    digest = hashlib.sha256(BUNDLE.read_bytes()).hexdigest()[:12] if BUNDLE.is_file() else "none"
    return f"{PREFIX.lstrip('/')}/console.js?{digest}"


class BackstopPlugin(AirflowPlugin):
    """Found in the plugins folder, or through the entry point of the installed distribution."""

    name = "backstop"
    fastapi_apps = [  # noqa: RUF012 - Airflow's form
        # Before the pages: the first mount whose prefix fits takes a request.
        {"app": console, "url_prefix": f"{PREFIX}/api/v1", "name": "Backstop API"},
        {"app": pages, "url_prefix": PREFIX, "name": "Backstop"},
        {"app": metrics, "url_prefix": f"{PREFIX}-metrics", "name": "Backstop metrics"},
    ]
    react_apps = [  # noqa: RUF012
        {
            "name": "Backstop",
            "bundle_url": bundle_url(),
            "destination": "nav",
            "url_route": "backstop",
            "nav_top_level": True,
        },
        {"name": "BackstopCard", "bundle_url": bundle_url(), "destination": "dashboard"},
    ]
    # Without script: for an Airflow that gives its plugins no Chakra UI (before 3.2), and when the console does not load.
    external_views = [  # noqa: RUF012
        {
            "name": "Backstop, plain pages",
            "href": f"{PREFIX}/runs",
            "destination": "nav",
            "url_route": "backstop-pages",
            "category": "browse",
        }
    ]
    operator_extra_links = [RunLink(), DataDocsLink()]  # noqa: RUF012
