"""Lists cases, and shows one with its members and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backstop.decisions.actions import actions_now
from backstop.decisions.propose import APPROVE, REJECT
from backstop.model.errors import DecisionRefused
from backstop.sql.named import load

_SQL = load("backstop.decisions", "queries.sql")
STATES = ("open", "decided", "closed")
"""Of a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """Something that a person must decide, or decided."""

    case_id: int
    kind: str
    topic: str
    consumer_group: str
    subject: str
    severity: str
    state: str
    summary: str
    evidence: Mapping[str, Any]
    opened_at: datetime
    opened_by_run: int | None
    last_seen_at: datetime
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    why: str | None
    closed_at: datetime | None
    reopened: int
    members: int
    open_members: int
    proposal_id: int | None
    """Of a decision that waits for a second person."""

    @property
    def actions(self) -> tuple[str, ...]:
        """What a person may decide of it now."""
        if self.proposal_id is not None:
            return (APPROVE, REJECT)
        return actions_now(self.kind, self.state, self.decision)


@dataclass(frozen=True, slots=True)
class CaseMember:
    """One delivery of a case, with the last verdict that a run stored of it."""

    shard: str
    topic: str
    message_id: str
    consumer_group: str
    settled_at: datetime | None
    verdict: str | None
    reason: str | None
    run_id: int | None


def list_cases(
    conn: Any,
    *,
    state: str | None = "open",
    topic: str | None = None,
    kind: str | None = None,
    limit: int = 100,
) -> list[Case]:
    """Cases, the newest first; null: any."""
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["list"],
            {"case_id": None, "state": state, "topic": topic, "kind": kind, "limit": limit},
        )
        return [Case(*row) for row in cur.fetchall()]


def show(conn: Any, case_id: int, members: int = 100) -> tuple[Case, list[CaseMember]]:
    """One case and up to `members` of its deliveries, open ones first; DecisionRefused when there is no such case."""
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["list"],
            {"case_id": case_id, "state": None, "topic": None, "kind": None, "limit": 1},
        )
        row = cur.fetchone()
        if row is None:
            raise DecisionRefused(
                f"There is no case {case_id}.",
                unaffected="Nothing was changed.",
                next_step="See: backstop cases list --all",
            )
        cur.execute(_SQL["members"], {"case_id": case_id, "limit": members})
        return Case(*row), [CaseMember(*member) for member in cur.fetchall()]
