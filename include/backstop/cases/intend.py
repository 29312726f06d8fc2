"""A decision's first and last step: the intention that is written before anything is applied, and the record of what was done.

The intention is one row. Only the one whose intention still stands may finish; whoever began another meanwhile goes on alone.
What ends before it reached a producer leaves the case as it was, with the decision that the intention had replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg2
from psycopg2 import errors as pg

from backstop.control.decision_log import append
from backstop.model.errors import DecisionRefused
from backstop.model.records import Counts
from backstop.sql.named import load

_SQL = load("backstop.cases", "queries.sql")
Intent = Mapping[str, Any]
"""case_id, action, who, why; `once` names the answer, so that the same one is not applied twice; `shown_at`: when the person
saw the case; null: now."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision did. `left_out`: deliveries it did not fit, with the reason; the case stays open for them."""

    case_id: int
    action: str
    counts: Counts
    left_out: tuple[str, ...] = ()
    again: bool = False
    """The very same decision had been applied before; nothing changed now."""


@contextmanager
def intended(conn: Any, intent: Intent) -> Iterator[None]:
    """Writes down who is about to do what, and why; commits. DecisionRefused when the case is not open any more.

    Takes it back when the block ends in an error: always when it was refused, else unless it may have changed a producer.
    """
    _intend(conn, intent)
    try:
        yield
    except BaseException as error:
        try:
            conn.rollback()
            _take_back(conn, intent, reached=isinstance(error, DecisionRefused))
        except psycopg2.Error as away:
            error.add_note(
                f"The intention stands with the case: the control database did not answer ({type(away).__name__})."
            )
        raise


def reach(conn: Any, intent: Intent) -> bool:
    """From here on other databases are changed, and the intention outlives an error; commits. Returns whether a try of this very
    answer came so far before. DecisionRefused when another began."""
    with conn, conn.cursor() as cur:
        before = require_mine(cur, intent)
        cur.execute(_SQL["reached"], intent)
        _append(cur, intent, f"begin to {intent['action']}", {})
    return before


def begun(conn: Any, case_id: int, once: str, who: str) -> bool:
    """Whether this answer of this person was applied, or may have been in part: then it goes on, whatever the case looks like."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["begun"], {"case_id": case_id, "once": once, "who": who})
        row = cur.fetchone()
    return row is not None and bool(row[0])


def _intend(conn: Any, intent: Intent) -> None:
    try:
        with conn, conn.cursor() as cur:
            cur.execute(_SQL["intend"], intent)
            if cur.rowcount == 0:
                raise refused(
                    f"Case {intent['case_id']} was closed or decided a moment ago.",
                    f"See what became of it: backstop cases show {intent['case_id']}",
                )
    except pg.UniqueViolation:
        raise refused(
            f"Case {intent['case_id']} was left, and a newer case of the same cause is open.",
            "Decide the newer one: backstop cases list",
        ) from None


def _take_back(conn: Any, intent: Intent, *, reached: bool) -> None:
    """The case is as it was before; commits. Another's intention stays, and one that reached a producer unless `reached`."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["still_mine"], intent)
        row = cur.fetchone()
        if row is None or (row[0] and not reached):
            return
        cur.execute(_SQL["put_back"], intent)
        if cur.rowcount == 0:
            cur.execute(_SQL["stays_open"], intent)


def require_mine(cur: Any, intent: Intent) -> bool:
    """Holds the case until the caller's transaction ends; DecisionRefused when another decision of it was begun meanwhile, or it
    was closed.

    Returns whether it may have changed another database.
    """
    cur.execute(_SQL["still_mine"], intent)
    row = cur.fetchone()
    if row is None:
        cur.execute(_SQL["is_closed"], intent)
        now = cur.fetchone()
        if now is not None and now[0]:
            raise DecisionRefused(
                f"Case {intent['case_id']} was closed meanwhile: nothing of it is left to decide.",
                unaffected="What this decision had changed in other databases stays; no request was written for it.",
                next_step=f"See what became of it: backstop cases show {intent['case_id']}",
            )
        raise DecisionRefused(
            f"Somebody else began another decision of case {intent['case_id']} meanwhile.",
            unaffected="What this one had changed in producer databases stays; requests and discards were not written.",
            next_step=f"Talk to them: backstop cases show {intent['case_id']}",
        )
    return bool(row[0])


def record(
    cur: Any, intent: Intent, counts: Mapping[str, int], left_out: Sequence[str], *, whole: bool
) -> None:
    """Keeps what the decision did; `whole`: nothing of the case waits for a person any more, else it stays open."""
    entry = {
        "action": intent["action"],
        "by": intent["who"],
        "why": intent["why"],
        "did": dict(counts),
        "left_out": len(left_out),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if intent.get("once"):
        entry["once"] = intent["once"]
    cur.execute(
        _SQL["record_decision"], {"case_id": intent["case_id"], "entry": json.dumps([entry])}
    )
    cur.execute(_SQL["decided" if whole else "stays_open"], intent)


def append_decision(cur: Any, decided: Decided, intent: Intent) -> Decided:
    """Ends the proposal that it was and puts it into the log of decisions: the last statements of its transaction. Returns it."""
    if intent.get("proposal") is not None:
        cur.execute(_SQL["end_proposal"], intent)
        if cur.rowcount == 0:
            raise refused(
                "What was proposed was answered by somebody else meanwhile.",
                f"See: backstop cases show {intent['case_id']}",
            )
    _append(cur, intent, decided.action, {**decided.counts, "left_out": len(decided.left_out)})
    return decided


def _append(cur: Any, intent: Intent, action: str, did: Mapping[str, Any]) -> None:
    append(
        cur,
        intent.get("approved_by") or intent["who"],
        action,
        f"case {intent['case_id']}",
        intent["why"],
        {
            **did,
            "once": intent.get("once"),
            **({"by": intent["who"]} if intent.get("approved_by") else {}),
        },
    )


def refused(what: str, next_step: str) -> DecisionRefused:
    """A decision that was not begun, or of which nothing was applied."""
    return DecisionRefused(what, unaffected="Nothing was applied.", next_step=next_step)
