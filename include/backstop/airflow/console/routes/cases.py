"""Cases: what each answer does, who may give it, and where Airflow takes it."""

from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import HTTPException, Query

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
)
from backstop.airflow.console.visit import NOT_FOUND, Visit, require, writing
from backstop.airflow.decide_case import dag_for
from backstop.airflow.links import base_url
from backstop.decisions.actions import ACTIONS, actions_for
from backstop.reports.console import LISTS, read_one, read_rows
from backstop.reports.filters import read_filter

# No postponed annotations: FastAPI reads them.


def list_cases(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.CaseRow]:
    """Cases, the newest first. Filters: topic, group, kind, state, severity, waits (for `me`: open ones that you may decide)."""
    mine: list[dict[str, Any]] = []
    if read_filter(filter, LISTS["cases"].filters, LISTS["cases"].choices)["waits"] is not None:
        mine = waiting_for(visited, read_rows(visited.conn, "open_cases", visited.sight))
    return page_of(
        visited,
        "cases",
        m.CaseRow,
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


def show_case(visited: Visiting, case_id: Annotated[int, Id]) -> m.Case:
    """One case: its evidence, what each answer does, whether you may give it, and where Airflow takes it."""
    row = _require_case(visited, case_id)
    dag_run, proposed = row.pop("dag_run"), row["proposal"] is not None
    undecided = row["state"] == "open" or (row["state"] == "decided" and row["decision"] == "leave")
    names = ("approve", "reject") if proposed else actions_for(row["kind"]) if undecided else ()
    actions = [
        m.CaseAction(name=name, does=ACTIONS[name], allowed=why is None, why_not=why)
        for name in names
        for why in [visited.why_not_decide(row["proposed"] if proposed else name, row["topic"])]
    ]
    form = None
    if dag_run is not None and row["asked_at"] is not None:
        dag = dag_for(visited.settings, row["topic"])
        form = m.Form(
            href=f"/api/v2/dags/{part(dag)}/dagRuns/{part(dag_run)}/taskInstances/ask/-1/hitlDetails",
            page=f"{base_url()}/dags/{part(dag)}/runs/{part(dag_run)}/tasks/ask/required_actions",
            options=list(names),
            fields=_fields(row["kind"], tuple(names)),
        )
    notes = [
        m.Note(**one) for one in read_rows(visited.conn, "notes", visited.sight, case_id=case_id)
    ]
    questions = [
        m.Question(**one)
        for one in read_rows(visited.conn, "questions", visited.sight, case_id=case_id)
    ]
    return m.Case(**row, actions=actions, form=form, notes=notes, questions=questions)


def _fields(kind: str, names: tuple[str, ...]) -> list[str]:
    from backstop.airflow.decide_case import fields_of

    return list(fields_of(kind, names)) if names else []


def list_members(
    visited: Visiting, case_id: Annotated[int, Id], after: After = None, limit: Limit = 50
) -> m.Page[m.Member]:
    """A case's deliveries."""
    _require_case(visited, case_id)
    return page_of(visited, "members", m.Member, "", after, limit, case_id=case_id)


def preview_answer(
    visited: Visiting, case_id: Annotated[int, Id], action: Annotated[str, Query(max_length=40)]
) -> m.Preview:
    """What an answer would do at this moment: the present state of the case's first 1,000 deliveries is read again, as when the
    answer is applied, and nothing is changed. For who may answer so."""
    from backstop.decisions.decide import preview

    row = _require_case(visited, case_id)
    require(visited.why_not_decide(action, row["topic"]))
    # What a dead letter died of may quote a content: the login that only reads does not see it.
    reading = writing() if row["kind"] == "dead_letters" else nullcontext(visited.room)
    with asking_stores(), reading as room:
        found = preview(room.control, room.settings, room.connections, case_id, action)
    if found is None:
        return m.Preview(about_case=True, read=0, open=0, fits=0, done=0, left_out=[])
    return m.Preview(
        about_case=False,
        read=found.read,
        open=found.open,
        fits=found.fits,
        done=found.done,
        left_out=list(found.left_out),
    )


def add_note(visited: Visiting, case_id: Annotated[int, Id], said: m.NewNote) -> m.Changed:
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
    ("POST", "/cases/{case_id}/notes", add_note),
)
