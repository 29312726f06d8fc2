"""Cases: what each answer does, who may give it, and where Airflow takes it."""

from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Any

from fastapi import HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Id,
    Limit,
    Routes,
    Visiting,
    asking_stores,
    page_of,
    part,
    readable,
    reading_stores,
)
from backstop.airflow.console.visit import NOT_FOUND, Visit, require, writing
from backstop.airflow.control_room import READING
from backstop.airflow.decide_case import dag_for
from backstop.airflow.links import base_url
from backstop.decisions.actions import ACTIONS, actions_for, actions_now
from backstop.decisions.propose import named_in, said_beside
from backstop.reports.console import LISTS, read_one, read_rows
from backstop.reports.filters import read_filter

# No postponed annotations: FastAPI and Pydantic read them.


class CaseRow(m.Answer):
    """A case in the list."""

    case: int
    kind: str
    topic: str
    group: str
    severity: str
    state: str
    summary: str
    opened_at: datetime
    last_seen_at: datetime
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    closed_at: datetime | None
    reopened: int


class CaseAction(m.Answer):
    """An answer that the case takes."""

    name: str
    does: str
    allowed: bool
    why_not: str | None


class Note(m.Answer):
    """What somebody wrote about a case."""

    number: int
    written_at: datetime
    written_by: str
    note: str


class Question(m.Answer):
    """When people were asked about a case, and what they answered."""

    number: int
    dag_run: str
    asked_at: datetime
    shown_at: datetime | None
    answered_by: str | None
    answer: str | None
    ended_at: datetime | None
    how: str | None
    said: str | None


class Case(CaseRow):
    """One case."""

    evidence: dict[str, Any]
    run: int | None
    why: str | None
    members: int = Field(description="10001: more than that")
    open_members: int
    dead_letters: int
    proposal: int | None
    proposed: str | None
    proposed_by: str | None
    proposed_why: str | None
    proposed_at: datetime | None
    proposed_with: dict[str, str] = Field(
        description="what else was said beside the action and is applied with it, such as `more`"
    )
    proposed_messages: list[str] = Field(
        description="the messages that were named; with `proposed_dead_letters` empty, too: every open delivery as it was then"
    )
    proposed_dead_letters: list[str] = Field(description="the numbers of those that were named")
    proposed_content_bytes: int | None = Field(
        description="of the new content; null: it proposes none"
    )
    proposed_content_sha256: str | None
    asked_at: datetime | None
    actions: list[CaseAction]
    form: m.Form | None = Field(description="null: nobody is asked at the moment")
    notes: list[Note]
    questions: list[Question]


class ContentBefore(m.Answer):
    """A content that the proposal would replace, as it is now."""

    dead_letter: int | None = Field(description="null: it is the head of a parked key")
    message_id: str | None
    text: str | None = Field(description="null: it is no text, or was purged")
    base64: str | None


class ProposedContent(m.Answer):
    """The new content of a proposal, and what it would replace. Reading them is in the log of decisions."""

    text: str | None = Field(description="null: it is no text")
    base64: str | None
    before: list[ContentBefore] = Field(description="20 at most")


class Preview(m.Answer):
    """What an answer to a case would do at this moment."""

    about_case: bool = Field(description="the answer reads no delivery: the counts say nothing")
    read: int = Field(description="deliveries, or dead letters, that were read again")
    open: int = Field(description="those of the case that are open; dead letters up to 10,001")
    fits: int
    done: int = Field(description="done already: the answer only settles them")
    left_out: list[str] = Field(description="why others would be left out; 20 at most")


class Member(m.Answer):
    """A delivery of a case."""

    topic: str
    message_id: str
    group: str
    shard: str
    added_at: datetime
    settled_at: datetime | None


class NewNote(BaseModel):
    """What to write about a case."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]*$")


def list_cases(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[CaseRow]:
    """Cases, the newest first. Filters: topic, group, kind, state, severity, waits (for `me`: open ones that you may decide)."""
    mine: list[dict[str, Any]] = []
    if read_filter(filter, LISTS["cases"].filters, LISTS["cases"].choices)["waits"] is not None:
        mine = waiting_for(visited, read_rows(visited.conn, "open_cases", visited.sight))
    return page_of(
        visited,
        "cases",
        CaseRow,
        filter,
        after,
        limit,
        my_topics=[row["topic"] for row in mine],
        my_kinds=[row["kind"] for row in mine],
    )


def waiting_for(visited: Visit, open_cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the open cases, as they were counted, those that the visitor may decide."""
    return [
        row
        for row in open_cases
        if any(
            visited.why_not_decide(action, row["topic"]) is None
            for action in actions_for(row["kind"])
        )
    ]


def _require_case(visited: Visit, case_id: int) -> dict[str, Any]:
    row = read_one(visited.conn, "case", visited.sight, case_id=case_id)
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def show_case(visited: Visiting, case_id: Annotated[int, Id]) -> Case:
    """One case: its evidence, what each answer does, whether you may give it, and where Airflow takes it."""
    row = _require_case(visited, case_id)
    dag_run, answered = row.pop("dag_run"), row.pop("answered")
    proposed = row["proposal"] is not None
    said = row.pop("options") or {}
    now = actions_now(row["kind"], row["state"], row["decision"])
    names = ("approve", "reject") if proposed else now
    actions = [
        CaseAction(name=name, does=ACTIONS[name], allowed=why is None, why_not=why)
        for name in names
        for why in [
            visited.why_not_decide(row["proposed"] if proposed else name, row["topic"])
            or _why_not_second(visited, name, row["proposed_by"])
        ]
    ]
    form = None
    if dag_run is not None and row["asked_at"] is not None and not answered:
        dag = dag_for(visited.settings, row["topic"])
        form = m.Form(
            href=f"/api/v2/dags/{part(dag)}/dagRuns/{part(dag_run)}/taskInstances/ask/-1/hitlDetails",
            page=f"{base_url()}/dags/{part(dag)}/runs/{part(dag_run)}/tasks/ask/required_actions",
            options=list(names),
            fields=_fields(row["kind"], tuple(names)),
        )
    notes = [
        Note(**one) for one in read_rows(visited.conn, "notes", visited.sight, case_id=case_id)
    ]
    questions = [
        Question(**one)
        for one in read_rows(visited.conn, "questions", visited.sight, case_id=case_id)
    ]
    return Case(
        **row,
        proposed_with=said_beside(said),
        proposed_messages=list(named_in(said, "message_ids")),
        proposed_dead_letters=list(named_in(said, "letters")),
        actions=actions,
        form=form,
        notes=notes,
        questions=questions,
    )


def _why_not_second(visited: Visit, name: str, proposed_by: str | None) -> str | None:
    """A proposal is approved by somebody else than who proposed it, as decisions.propose.approving has it."""
    if name != "approve" or proposed_by is None:
        return None
    if not visited.settings.people.is_same(visited.visitor.name, proposed_by):
        return None
    return "You proposed it: somebody else approves it."


def _fields(kind: str, names: tuple[str, ...]) -> list[str]:
    from backstop.airflow.decide_case import fields_of

    return list(fields_of(kind, names)) if names else []


def read_proposed_content(
    visited: Visiting,
    case_id: Annotated[int, Id],
    proposal_id: Annotated[int, Id],
    said: m.WhyRead,
) -> ProposedContent:
    """The new content of the proposal that waits, and what it would replace, for who may approve it. That you read them is logged
    first."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.decisions.list_cases import show
    from backstop.decisions.propose import proposed
    from backstop.reports.proposed_edit import contents_before

    row = _require_case(visited, case_id)
    require(visited.why_not_decide(row["proposed"] or "edit", row["topic"]))
    gone = HTTPException(404, "No new content of this proposal waits: read the case again.")
    if row["proposal"] != proposal_id or row["proposed_content_bytes"] is None:
        raise gone
    parked = row["kind"] == "key_parked"
    with asking_stores() if parked else nullcontext(), writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"topic": row["topic"], "proposal": proposal_id}
            append(cursor, who, "read contents", f"case {case_id}", said.why, details)
        waits, (case, _) = proposed(room.control, case_id), show(room.control, case_id, members=0)
        if waits is None or waits.proposal_id != proposal_id or waits.content is None:
            raise gone
        before = contents_before(
            room.control, room.settings, room.connections, case, waits, 20, READING
        )
    text, encoded = readable(waits.content)
    return ProposedContent(text=text, base64=encoded, before=[_as_it_is_now(one) for one in before])


def _as_it_is_now(one: Any) -> ContentBefore:
    text, encoded = readable(one.content)
    return ContentBefore(
        dead_letter=one.dead_letter, message_id=one.message_id, text=text, base64=encoded
    )


def list_members(
    visited: Visiting, case_id: Annotated[int, Id], after: After = None, limit: Limit = 50
) -> m.Page[Member]:
    """A case's deliveries."""
    _require_case(visited, case_id)
    return page_of(visited, "members", Member, "", after, limit, case_id=case_id)


def preview_answer(
    visited: Visiting, case_id: Annotated[int, Id], action: Annotated[str, Query(max_length=40)]
) -> Preview:
    """What an answer would do at this moment: the present state of the case's first 1,000 deliveries is read again, as when the
    answer is applied, and nothing is changed. For who may answer so."""
    from backstop.decisions.decide import preview

    row = _require_case(visited, case_id)
    require(visited.why_not_decide(action, row["topic"]))
    # What a dead letter died of may quote a content: the login that only reads does not see it.
    reading = writing() if row["kind"] == "dead_letters" else nullcontext(visited.room)
    with reading_stores(visited) as sources, reading as room:
        found = preview(room.control, sources, case_id, action)
    if found is None:
        return Preview(about_case=True, read=0, open=0, fits=0, done=0, left_out=[])
    return Preview(
        about_case=False,
        read=found.read,
        open=found.open,
        fits=found.fits,
        done=found.done,
        left_out=list(found.left_out),
    )


def add_note(visited: Visiting, case_id: Annotated[int, Id], said: NewNote) -> m.Changed:
    """Writes a note to a case, in your name. For who may answer cases of its topic."""
    from backstop.decisions.note import add_note as write_note

    row = _require_case(visited, case_id)
    dag = dag_for(visited.settings, row["topic"])
    require(
        None if visited.may_answer(dag) else f"Airflow does not let you answer what {dag} asks."
    )
    with writing() as room:
        write_note(room.control, case_id, visited.visitor.name, said.note)
    return m.Changed(changed=True)


ROUTES: Routes = (
    ("GET", "/cases", list_cases),
    ("GET", "/cases/{case_id}", show_case),
    ("GET", "/cases/{case_id}/members", list_members),
    ("GET", "/cases/{case_id}/preview", preview_answer),
    ("POST", "/cases/{case_id}/proposals/{proposal_id}/content", read_proposed_content),
    ("POST", "/cases/{case_id}/notes", add_note),
)
