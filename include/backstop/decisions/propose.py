"""Decisions that take two people: one proposes, another approves, and what was proposed is what is applied.

    propose: kept | approve: the decision, as its proposer made it; then the proposal ends | or reject: it ends

Crash points. The decision's last transaction ends the proposal, too. Before it, approving again goes on where it was cut short,
and nobody can reject what may have been applied in part. An approver who is killed holds the proposal for a lease; after it,
it can be rejected if nothing of it reached a producer, and it lapses as any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import psycopg2

from backstop.cases.intend import refused
from backstop.config.people import PeopleSettings
from backstop.control.decision_log import append
from backstop.decisions.actions import OPTIONS
from backstop.sql.named import load

_SQL = load("backstop.decisions", "proposals.sql")
APPROVE, REJECT = "approve", "reject"
_LEASE = timedelta(hours=1)
"""An approval ends within it, or is begun again: the task that applies an answer may take half an hour."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A decision that waits for a second person."""

    proposal_id: int
    case_id: int
    action: str
    who: str
    why: str
    options: Mapping[str, Any]
    content: bytes | None
    login: str | None
    """Whose login to the control database proposed it; null: from before that was kept."""

    def __str__(self) -> str:
        beside = [f"{name} {value}" for name, value in said_beside(self.options).items()]
        if self.named:
            beside.append(f"{len(self.named)} named: {', '.join(self.named)}")
        if self.content is not None:
            beside.append(
                f"a new content of {len(self.content)} bytes, SHA-256 {sha256(self.content).hexdigest()}"
            )
        return f"{self.who} proposes to {self.action}: {self.why}" + "".join(
            f"; {one}" for one in beside
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The messages or letters that were named; none: every open delivery of the case, as it was when it was proposed."""
        return *named_in(self.options, "message_ids"), *named_in(self.options, "letters")


def named_in(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """What a proposal names: `message_ids` or `letters`."""
    value = options.get(name)
    return tuple(str(one) for one in (value if isinstance(value, list | tuple) else [value]) if one)


def said_beside(options: Mapping[str, Any]) -> dict[str, str]:
    """What else was said beside the action and is applied with it, such as `more`; the content is kept by itself."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in options.items()
        if name in OPTIONS and name not in ("message_ids", "letters") and value is not None
    }


def needs_second(people: PeopleSettings, action: str, options: Mapping[str, Any]) -> bool:
    """Whether one person alone may not decide this."""
    if action == "raise" and int(options.get("more") or 1) <= people.raise_alone:
        return False
    return action in people.second_person


def proposed(conn: Any, case_id: int) -> Proposal | None:
    """What waits for a second person; null: nothing, or the case was over since. Ends the connection's transaction."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["proposed"], {"case_id": case_id})
        row = cur.fetchone()
    if row is None:
        return None
    found = Proposal(*row)
    return found if found.content is None else replace(found, content=bytes(found.content))


def propose(
    conn: Any, case_id: int, action: str, who: str, why: str, options: Mapping[str, Any]
) -> None:
    """Keeps the decision for a second person; commits. DecisionRefused when the case is over or something is proposed already."""
    content = options.get("content")
    kept = {name: value for name, value in options.items() if name != "content"}
    values = {
        "case_id": case_id,
        "action": action,
        "who": who,
        "why": why,
        "options": json.dumps(kept),
        "content": content,
    }
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["end_stale"], values)
        cur.execute(_SQL["propose"], values)
        if cur.rowcount == 0:
            raise refused(
                f"Something else of case {case_id} was proposed or decided a moment ago.",
                f"See: backstop cases show {case_id}",
            )
        append(cur, who, f"propose to {action}", f"case {case_id}", why, kept | _hash_of(content))


def was_proposed(conn: Any, case_id: int, once: str | None, who: str) -> bool:
    """Whether this very answer of this person was proposed before: it is not proposed again, whatever became of it since."""
    if once is None:
        return False
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["was_proposed"], {"case_id": case_id, "once": once, "who": who})
        return bool(cur.fetchone()[0])


def was_approved(conn: Any, case_id: int, proposal_id: int) -> bool:
    """Whether this proposal of this case was applied, and not to a part of it alone."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["how_it_ended"], {"proposal_id": proposal_id, "case_id": case_id})
        return bool(cur.fetchone() == ("approved",))


def lapse(conn: Any, after: timedelta, case_id: int | None = None, who: str | None = None) -> int:
    """Ends what nobody approved or rejected in time (null: of every case), and forgets its content; commits. Returns how many.
    `who`: the person who decides the case and so found it, which the log of decisions says."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["lapse"], {"after": after, "lease": _LEASE, "case_id": case_id})
        number = int(cur.rowcount)
        if number and who is not None:
            append(
                cur,
                who,
                "find a lapsed proposal",
                f"case {case_id}",
                "nobody answered it in time",
                {},
            )
    return number


def _hash_of(content: bytes | None) -> dict[str, str]:
    return {} if content is None else {"content_sha256": sha256(content).hexdigest()}


@contextmanager
def approving(conn: Any, people: PeopleSettings, proposal: Proposal, who: str) -> Iterator[None]:
    """Nobody rejects it meanwhile; what ends in an error before it reached a producer lets go of it. Commits.

    DecisionRefused when the one who approves is the one who proposed, or it has ended. The decision ends it, in its last
    transaction.
    """
    if people.is_same(who, proposal.who):
        raise refused(
            f"{who} proposed this and cannot approve it.",
            "Let somebody else approve it, or reject it and decide otherwise.",
        )
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["begin_to_approve"], {"proposal_id": proposal.proposal_id, "who": who})
        if cur.rowcount == 0:
            raise refused(
                "It was answered a moment ago.", f"See: backstop cases show {proposal.case_id}"
            )
        append(
            cur,
            who,
            "begin to approve",
            f"case {proposal.case_id}",
            proposal.why,
            {"proposal": proposal.proposal_id, "proposed_by": proposal.who},
        )
    try:
        yield
    except BaseException as error:
        try:
            conn.rollback()
            with conn, conn.cursor() as cur:
                cur.execute(_SQL["let_go"], {"proposal_id": proposal.proposal_id, "who": who})
        except psycopg2.Error as away:
            error.add_note(
                f"The proposal can only be approved now: the control database did not answer ({type(away).__name__})."
            )
        raise


def reject(conn: Any, proposal: Proposal, who: str, why: str) -> None:
    """Ends it unapplied; commits. DecisionRefused when it has ended, or is being applied."""
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["reject"], {"proposal_id": proposal.proposal_id, "who": who, "lease": _LEASE}
        )
        if cur.rowcount == 0:
            raise refused(
                "It was answered a moment ago, or is being applied.",
                f"See: backstop cases show {proposal.case_id}",
            )
        append(
            cur,
            who,
            f"reject to {proposal.action}",
            f"case {proposal.case_id}",
            why,
            {"proposed_by": proposal.who},
        )
