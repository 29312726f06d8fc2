"""Dead letters: what they died of, one by one, and the contents for who may change them."""

from typing import Annotated, Any

from fastapi import HTTPException

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
from backstop.reports.console import filter_text, read_one, read_page
from backstop.reports.filters import NONE

# No postponed annotations: FastAPI reads them.


def list_causes(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Cause]:
    """What undecided dead letters died of, the most frequent first. Filters: topic, group, category."""
    page = read_page(visited.conn, "causes", visited.sight, filter, after, limit)
    items = [
        m.Cause(
            **row,
            rows=m.Rows(
                list="/dead-letters",
                filter=filter_text(
                    cause=row["cause"] or NONE, category=row["category"] or NONE, state="undecided"
                ),
            ),
        )
        for row in page.rows
    ]
    return m.Page[m.Cause](items=items, next=page.next)


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


def show_dead_letter(visited: Visiting, dead_letter_id: Annotated[int, Id]) -> m.DeadLetter:
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
    return m.DeadLetter(**row, actions=actions)


def check_edit(
    visited: Visiting, dead_letter_id: Annotated[int, Id], said: m.NewContent
) -> m.CheckedContent:
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
    return m.CheckedContent(
        findings=[
            m.ContentFinding(severity=one.severity, where=one.where, what=one.what)
            for one in checked.findings
        ],
        compared_with=list(checked.compared_with),
    )


def read_content(
    visited: Visiting, dead_letter_id: Annotated[int, Id], said: m.WhyRead
) -> m.Content:
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
    return m.Content(
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
