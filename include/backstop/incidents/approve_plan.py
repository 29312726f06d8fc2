"""Keeps what somebody is asked to say yes to, and what they said: a yes is to these deliveries, in this mode, to nothing else.

Plan and answer are kept here by the tasks that made and received them; what they hand to one another in Airflow can be written
by whoever may start a run there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backstop.incidents.plan import digest_of
from backstop.sql.named import load

_SQL = load("backstop.incidents", "queries.sql")


def planned_in(control: Any, dag_run_id: str) -> tuple[int | None, int]:
    """The newest plan that a run in Airflow made, and how many it made: more than one where it was cleared."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["planned_in"], {"planned_in": dag_run_id})
        incident_id, number = cur.fetchone()
    return incident_id, int(number)


def yes_to(control: Any, incident_id: int, mode: str) -> str:
    """The answer that lets a plan run. It names what is sent, so that a yes to another plan or mode is none to this one."""
    return f"replay plan {incident_id} ({mode}, {digest_of(control, incident_id)})"


def show(control: Any, incident_id: int, yes: str) -> None:
    """The form is about to be written; an earlier answer is none to it."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["shown"], {"run_id": incident_id, "shown": json.dumps({"yes": yes})})


def receive(control: Any, incident_id: int, given: Mapping[str, Any]) -> None:
    """Keeps the answer to the form that was written last."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["given"], {"run_id": incident_id, "given": json.dumps(given)})


def given(control: Any, incident_id: int) -> Mapping[str, Any] | None:
    """What was answered; null: nobody was asked, or nobody has answered."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["read_given"], {"run_id": incident_id})
        row = cur.fetchone()
    return None if row is None else row[0]
