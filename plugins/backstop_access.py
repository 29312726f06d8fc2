"""Who may see our pages: whoever may see Airflow's own site. The one module that knows how Airflow decides
that.

Airflow mounts a plugin's application without any check of its own, and these helpers are importable but not
promised. So when they are not there, everybody is refused: never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import HTTPException


def reader() -> Callable[..., Any]:
    """A FastAPI dependency that lets logged-in readers of the site pass, and answers 401 or 403 to all
    others."""
    try:
        from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
        from airflow.api_fastapi.core_api.security import requires_access_view

        return requires_access_view(AccessView.WEBSITE)
    except Exception:  # noqa: BLE001 - whatever is wrong with the helpers, the door stays shut
        return refuse


def refuse() -> None:
    """Nobody passes."""
    raise HTTPException(403, "This Airflow's way of checking access is not known to Backstop: its pages stay closed.")
