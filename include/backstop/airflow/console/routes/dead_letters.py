"""Dead letters: what they died of, one by one, and the contents for who may change them."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Id,
    Limit,
    Routes,
    Visiting,
    page_of,
    readable,
    reading_stores,
)
from backstop.airflow.console.visit import NOT_FOUND, Visit, require, writing
from backstop.reports.console import LISTS, filter_text, read_one, read_page
from backstop.reports.filters import NONE, read_filter

# No postponed annotations: FastAPI and Pydantic read them.


class Cause(m.Answer):
    """What undecided dead letters died of."""

    cause: int | None
    category: str | None
    template: str | None
    fingerprint: str | None
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    dead_letters: int
    day_ago: int | None = Field(
        description="how many waited 24 hours ago, to the hour; null: nobody counted then"
    )
    rule: str | None = Field(description="the rule that named the category of one that waits")
    places: int
    rows: m.Rows


class DeadLetter(m.DeadLetterRow):
    """One dead letter; its headers and content are read by themselves."""

    broker_id: str
    queue_id: int | None
    queue_offset: int | None
    queue_epoch: str | None
    tag: str | None
    template: str | None
    classified_at: datetime | None
    shard: str | None
    send: int | None
    look_at: datetime | None
    closed_at: datetime | None
    emptied_at: datetime | None
    actions: list[m.Action]


class Content(m.Answer):
    """What a dead letter holds. Reading it is in the log of decisions."""

    dead_letter: int
    headers: str
    text: str | None = Field(description="null: it is no text, or was purged")
    base64: str | None
    cause: str
    error: str
    content_bytes: int


class ContentFinding(m.Answer):
    """Something about a new content. An error breaks JSON or the topic's schema; a warning is unlike other contents."""

    severity: str
    where: str = Field(description="a JSON path; empty: the whole content")
    what: str


class CheckedContent(m.Answer):
    """What a new content was compared with, and what was found."""

    findings: list[ContentFinding]
    compared_with: list[str]


class NewContent(BaseModel):
    """A content that is to replace the message's."""

    model_config = ConfigDict(extra="forbid")
    content: str = Field(max_length=4_000_000)


def list_causes(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Cause]:
    """What undecided dead letters died of, the most frequent first. Filters: topic, group, category."""
    listing = LISTS["causes"]
    wanted = read_filter(filter, listing.filters, listing.choices)
    page = read_page(visited.conn, "causes", visited.sight, filter, after, limit)
    items = [
        Cause(
            **row,
            rows=m.Rows(
                list="/dead-letters",
                filter=filter_text(
                    topic=wanted["topic"],
                    group=wanted["group"],
                    cause=row["cause"] or NONE,
                    category=row["category"] or NONE,
                    state="undecided",
                ),
            ),
        )
        for row in page.rows
    ]
    return m.Page[Cause](items=items, next=page.next)


def list_dead_letters(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.DeadLetterRow]:
    """Dead letters, the newest first. Filters: topic, group, state, category, cause, case, id, since."""
    return page_of(visited, "dead_letters", m.DeadLetterRow, filter, after, limit)


def _require_dead_letter(visited: Visit, dead_letter_id: int) -> dict[str, Any]:
    row = read_one(visited.conn, "dead_letter", visited.sight, dead_letter_id=dead_letter_id)
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def show_dead_letter(visited: Visiting, dead_letter_id: Annotated[int, Id]) -> DeadLetter:
    """One dead letter, without its headers and content."""
    row = _require_dead_letter(visited, dead_letter_id)
    actions = [visited.read_contents(row["topic"], dead_letter_id)]
    if row["topic"] in visited.settings.topics:
        actions.append(
            visited.plan_replay(
                row["topic"], group=row["group"], causes=[row["cause"]] if row["cause"] else None
            )
        )
    if row["topic"] is not None and row["message_id"] is not None:
        actions.append(visited.check_edit(row["topic"], dead_letter_id))
    return DeadLetter(**row, actions=actions)


def check_edit(
    visited: Visiting, dead_letter_id: Annotated[int, Id], said: NewContent
) -> CheckedContent:
    """Compares a new content with the topic's JSON Schema, or with other contents of the topic, before it is sent. For who may
    change contents; that you compared is logged first."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.check_content import check_new_content

    row = _require_dead_letter(visited, dead_letter_id)
    require(visited.why_not_read(row["topic"]))
    if row["topic"] is None or row["message_id"] is None:
        raise HTTPException(422, "This dead letter names no message: it has no content to change.")
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"topic": row["topic"], "id": row["message_id"]}
            append(cursor, who, "compare contents", f"dead letter {dead_letter_id}", "", details)
    with reading_stores(visited) as sources:
        checked = check_new_content(
            sources, row["topic"], row["message_id"], said.content.encode(errors="surrogatepass")
        )
    return CheckedContent(
        findings=[
            ContentFinding(severity=one.severity, where=one.where, what=one.what)
            for one in checked.findings
        ],
        compared_with=list(checked.compared_with),
    )


def read_content(visited: Visiting, dead_letter_id: Annotated[int, Id], said: m.WhyRead) -> Content:
    """Headers, content and what the consumer said, for who may change contents of the topic. That you read it is logged first."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.letters import show_letter

    row = _require_dead_letter(visited, dead_letter_id)
    require(visited.why_not_read(row["topic"]))
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"topic": row["topic"], "id": row["message_id"]}
            append(cursor, who, "read contents", f"dead letter {dead_letter_id}", said.why, details)
        letter = show_letter(room.control, dead_letter_id)
    text, encoded = readable(letter["content"])
    return Content(
        dead_letter=dead_letter_id,
        headers=letter["headers"].decode(errors="replace"),
        text=text,
        cause=letter["cause_text"] or "",
        base64=encoded,
        error=letter["error"] or "",
        content_bytes=letter["content_bytes"],
    )


ROUTES: Routes = (
    ("GET", "/causes", list_causes),
    ("GET", "/dead-letters", list_dead_letters),
    ("GET", "/dead-letters/{dead_letter_id}", show_dead_letter),
    ("POST", "/dead-letters/{dead_letter_id}/content", read_content),
    ("POST", "/dead-letters/{dead_letter_id}/check", check_edit),
)
