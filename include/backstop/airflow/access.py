"""Who may see our pages: whoever may see what they show in Airflow itself. The one module that knows how Airflow decides
that.

Airflow mounts a plugin's application without any check of its own, and these helpers are importable but not
promised. So when they are not there, everybody is refused: never the other way round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

# No postponed annotations here: FastAPI reads those of a function that is made in another one.


def nobody(_: str) -> bool:
    """Nobody may."""
    return False


@dataclass(frozen=True)
class Visitor:
    """Who asks for a page, as Airflow's auth manager knows them."""

    id: str
    name: str
    may_read: Callable[[str], bool]
    """Whether Airflow shows them the DAG of this id."""
    may_run: Callable[[str], bool] = nobody
    """Whether Airflow lets them start a run of it."""
    may_answer: Callable[[str], bool] = nobody
    """Whether Airflow lets them answer what its runs ask."""


def reader() -> Callable[..., Any]:
    """A FastAPI dependency that lets logged-in readers of the site pass, and answers 401 or 403 to all
    others. It leaves a Visitor with the request."""
    try:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import (
            AccessView,
            DagAccessEntity,
            DagDetails,
        )
        from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view

        may_see_site = requires_access_view(AccessView.WEBSITE)
    except Exception:  # noqa: BLE001 - whatever is wrong with the helpers, access is refused
        return refuse

    def let_pass(
        request: Request, user: GetUserDep, _: Annotated[None, Depends(may_see_site)]
    ) -> None:
        def may(method: Any, entity: Any, dag_id: str) -> bool:
            details = DagDetails(id=dag_id)
            return bool(
                get_auth_manager().is_authorized_dag(
                    method=method, access_entity=entity, details=details, user=user
                )
            )

        request.state.backstop_visitor = Visitor(
            str(user.get_id()),
            user.get_name(),
            lambda dag_id: may("GET", None, dag_id),
            lambda dag_id: may("POST", DagAccessEntity.RUN, dag_id),
            lambda dag_id: may("PUT", DagAccessEntity.HITL_DETAIL, dag_id),
        )

    return let_pass


def visitor_of(request: Request) -> Visitor:
    """Whom `reader` let pass."""
    return request.state.backstop_visitor


def refuse() -> None:
    """Nobody passes."""
    raise HTTPException(
        403,
        "This Airflow's way of checking access is not known to Backstop: its pages stay closed.",
    )
