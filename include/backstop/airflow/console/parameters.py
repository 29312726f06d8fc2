"""What the routes of the API are asked with, and the few ways in which all of them read."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, HTTPException, Query, Request

from backstop.airflow.access import visitor_of
from backstop.airflow.console import models as m
from backstop.airflow.console.visit import Visit, visit
from backstop.airflow.control_room import reading_sources
from backstop.airflow.links import PREFIX
from backstop.evidence.sources import Sources
from backstop.model.records import ID_BYTES, TOPIC_BYTES
from backstop.reports.console import LONGEST_PLACE, MOST, read_page
from backstop.reports.filters import LONGEST

# No postponed annotations: FastAPI reads them.
API = f"{PREFIX}/api/v1"
STORIES = BoundedSemaphore(2)
"""Each asks every store and broker, in a thread of Airflow's own server."""
LARGEST = 2**63 - 1
NO_NUL = r"^[^\x00]*$"

Id = Annotated[int, Query(ge=1, le=LARGEST)]
Filter = Annotated[
    str, Query(max_length=LONGEST, description='as `topic:orders state:open "id:two words"`')
]
After = Annotated[
    str | None, Query(max_length=LONGEST_PLACE, description="`next` of the page before")
]
Limit = Annotated[int, Query(ge=1, le=MOST)]
TopicName = Annotated[str, Query(min_length=1, max_length=TOPIC_BYTES, pattern=NO_NUL)]
OneTopic = Annotated[str | None, Query(min_length=1, max_length=TOPIC_BYTES, pattern=NO_NUL)]
MessageId = Annotated[str, Query(min_length=1, max_length=ID_BYTES, pattern=NO_NUL)]
Routes = tuple[tuple[str, str, Callable[..., Any]], ...]
"""Method, path and function of each route of a page."""


def visiting(request: Request) -> Iterator[Visit]:
    """The visit of a request, and how the errors of its body are answered."""
    with visit(visitor_of(request)) as made:
        yield made


Visiting = Annotated[Visit, Depends(visiting)]


def page_of(
    visited: Visit, name: str, kind: Any, text: str, after: str | None, limit: int, **values: Any
) -> Any:
    """One page of a list, within what the visitor may see."""
    page = read_page(visited.conn, name, visited.sight, text, after, limit, **values)
    return m.Page[kind](items=[kind(**row) for row in page.rows], next=page.next)


@contextmanager
def asking_stores() -> Iterator[None]:
    """For what asks every store and broker: two at a time, and 503 for whoever waits longer than 5 seconds."""
    if not STORIES.acquire(timeout=5):
        raise HTTPException(503, "Others are looking for their messages at this moment: try again.")
    try:
        yield
    finally:
        STORIES.release()


@contextmanager
def reading_stores(visited: Visit) -> Iterator[Sources]:
    """The same with the stores and brokers that the server keeps open."""
    with asking_stores(), reading_sources(visited.room) as sources:
        yield sources


def part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def readable(content: bytes | None) -> tuple[str | None, str | None]:
    """(as text, else as base64); both null where it was purged."""
    if content is None:
        return None, None
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(content).decode()
