"""The application of the API: its routes, page by page, behind Airflow's login, and how errors are answered.

What acts on messages is asked for where Airflow knows who asks: cases are answered through Airflow's record of the answer, sends
and replays by a run of a DAG in the visitor's name. The API says how (`form`, `actions`), and whether the visitor may.
"""

from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from backstop.airflow.access import reader
from backstop.airflow.answer_errors import NOTHING_CHANGED, answer_errors
from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import API
from backstop.airflow.console.routes import (
    cases,
    dead_letters,
    deliveries,
    filters,
    flow,
    matching,
    me,
    messages,
    overview,
    proofs,
    replays,
    resends,
    runs,
    settings,
)
from backstop.airflow.console.visit import same_origin

HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
PAGES = (
    me,
    overview,
    deliveries,
    messages,
    cases,
    matching,  # before `dead_letters`, which takes any other name below its path for a number
    dead_letters,
    filters,
    flow,
    resends,
    replays,
    runs,
    proofs,
    settings,
)


def make_app() -> FastAPI:
    """The application that Airflow mounts; without a reader every path is refused."""
    app = FastAPI(
        title="Backstop",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(reader()), Depends(same_origin)],
        responses={status: {"model": m.Problem} for status in (401, 403, 404, 409, 415, 422, 503)},
    )
    for page in PAGES:
        for method, path, answer in page.ROUTES:
            app.add_api_route(path, answer, methods=[method])
    app.get("/openapi.json", include_in_schema=False)(lambda: JSONResponse(app.openapi()))
    answer_errors(app, _problem)
    app.exception_handler(RequestValidationError)(_answer_invalid)
    app.exception_handler(HTTPException)(_answer_refused)
    app.middleware("http")(_add_headers)
    return app


def _problem(
    status: int, what: str, unaffected: str = NOTHING_CHANGED, next_step: str = ""
) -> JSONResponse:
    problem = m.Problem(what=what, unaffected=unaffected, next_step=next_step)
    return JSONResponse(problem.model_dump(), status, headers=HEADERS)


def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    # Where, and not what: an input may be of any size.
    places = "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5]
    )
    return _problem(
        422, places[:1_000].encode(errors="replace").decode(), next_step=f"See {API}/openapi.json."
    )


def _answer_refused(_: Request, error: HTTPException) -> JSONResponse:
    return _problem(error.status_code, str(error.detail))


async def _add_headers(request: Request, call_next: Any) -> Any:
    answer = await call_next(request)
    for name, value in HEADERS.items():
        answer.headers[name] = value
    return answer
