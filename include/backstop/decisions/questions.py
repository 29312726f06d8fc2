"""Keeps which cases people are asked about: at most so many at a time, never one twice at once, none lost.

    choose: rows, committed | start their runs | show | receive the answer | decide, then end the row

Crash points. After the rows, before a run is started: the row is live and has no run; whoever looks next starts it under the
same name. After the run was started: the second start meets it. After the decision, before the row ends: the answer is
applied again, which changes nothing, and then the row ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from backstop.model.errors import DecisionRefused
from backstop.sql.named import load

_SQL = load("backstop.decisions", "questions.sql")
AFTER_LOST = timedelta(minutes=5)
"""How long a case whose question was lost is left alone: else a form that cannot be shown would be tried every minute."""

How = Literal["applied", "partly", "not_applied", "over", "lost"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one case, and the run that shows it."""

    case_id: int
    number: int
    dag_run_id: str


@dataclass(frozen=True, slots=True)
class Live:
    """A question without an end. Not `needed`: its case was decided or closed elsewhere, or began again."""

    question: Question
    needed: bool
    answered: bool
    """Its answer was received, whatever the states of tasks say."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a question: what the person saw, and how it ended."""

    question: Question
    shown: Mapping[str, Any]
    given: Mapping[str, Any] | None
    """The answer: option, inputs, user_id, user_name; null: nobody has answered this form."""
    how: str | None
    said: str | None

    @property
    def name(self) -> str:
        """What the answer to this form is called: a run that is cleared shows another form, whose answer is another."""
        return (
            f"{self.question.dag_run_id} {self.shown['at']}"
            if "at" in self.shown
            else self.question.dag_run_id
        )


@dataclass(frozen=True, slots=True)
class Present:
    """What a person would see of a case now."""

    state: str
    reopened: int
    decision: str | None
    decided_by: str | None
    open: int
    undecided: bool
    """Something of it waits for a decision."""
    proposal: int | None
    """What waits for a second person."""


def choose(conn: Any, limit: int, teams: Mapping[str, str] | None = None) -> list[Question]:
    """New questions, so that at most `limit` are live, twice as many with critical ones; committed before any run is started.
    `teams`: by topic; each has as many, so that none waits for another's answers."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["one_chooser"])
        cur.execute(
            f"INSERT INTO case_question (case_id, number, dag_run_id) {_SQL['places']}"
            " ON CONFLICT DO NOTHING RETURNING case_id, number, dag_run_id",
            _bounds(limit, teams),
        )
        return [Question(*row) for row in cur.fetchall()]


def _bounds(limit: int, teams: Mapping[str, str] | None) -> dict[str, Any]:
    return {"limit": limit, "after_lost": AFTER_LOST, "teams": json.dumps(dict(teams or {}))}


def any_to_ask(conn: Any, limit: int, teams: Mapping[str, str] | None = None) -> bool:
    """Whether there is a new question to choose, or a live one that is not needed any more; changes nothing."""
    with conn, conn.cursor() as cur:
        cur.execute(f"SELECT EXISTS ({_SQL['places']})", _bounds(limit, teams))
        if cur.fetchone()[0]:
            return True
    return any(not one.needed for one in live(conn))


def live(conn: Any) -> list[Live]:
    """Every question that has not ended."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["live"])
        return [Live(Question(*row[:3]), *row[3:]) for row in cur.fetchall()]


def topics_of(conn: Any, case_ids: Iterable[int]) -> dict[int, str]:
    """The topic of each of these cases."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["topics"], {"case_ids": list(case_ids)})
        return dict(cur.fetchall())


def asked(conn: Any, dag_run_id: str) -> Asked | None:
    """The question of a run; null: none was recorded."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["of_run"], {"dag_run_id": dag_run_id})
        row = cur.fetchone()
    return None if row is None else Asked(Question(*row[:3]), *row[3:])


def begin(conn: Any, case_id: int, dag_run_id: str) -> Asked:
    """The live question of this run, which is recorded here when somebody started the run themselves or cleared it.

    Raises DecisionRefused while another run asks about the case.
    """
    where = {"case_id": case_id, "dag_run_id": dag_run_id}
    present(conn, case_id)
    named = re.match(r"case-(\d+)-\d+-[0-9a-f]{8}$", dag_run_id)
    if named is not None and int(named[1]) != case_id:
        raise DecisionRefused(
            f"The name {dag_run_id} is kept for a question about case {named[1]}.",
            unaffected="Nothing was changed.",
            next_step="Start another run, without a name of its own.",
        )
    found = asked(conn, dag_run_id)
    if found is None or found.how is not None:
        with conn, conn.cursor() as cur:
            cur.execute(_SQL["ask_by_hand" if found is None else "ask_again"], where)
        found = asked(conn, dag_run_id)
    if found is None or found.how is not None:
        with conn, conn.cursor() as cur:
            cur.execute(_SQL["live_of_case"], where)
            other = cur.fetchone()
        raise DecisionRefused(
            f"Case {case_id} is being asked about already"
            + (f", by the run {other[0]}." if other else "."),
            unaffected="Nothing was changed.",
            next_step="Answer that one.",
        )
    if found.question.case_id != case_id:
        raise DecisionRefused(
            f"The run {dag_run_id} belongs to case {found.question.case_id}, not to {case_id}.",
            unaffected="Nothing was changed.",
            next_step="Start another run, without a name of its own.",
        )
    return found


def present(conn: Any, case_id: int) -> Present:
    """The case as it is now. Raises DecisionRefused when there is none."""
    with conn, conn.cursor() as cur:
        return _present(cur, case_id)


def _present(cur: Any, case_id: int) -> Present:
    cur.execute(_SQL["present"], {"case_id": case_id})
    row = cur.fetchone()
    if row is None:
        raise DecisionRefused(
            f"There is no case {case_id}.",
            unaffected="Nothing was changed.",
            next_step="See: backstop cases list --all",
        )
    return Present(*row)


def show_now(conn: Any, question: Question, asked_by: str = "") -> Present:
    """What the person will see, kept with the question: the answer is compared with it, and is about nothing that came later.

    Called before the form is written. The case is held for a moment, so that what joins it is either seen here or has a later
    instant. `asked_by`: the try of the task that writes the form; another one's answer is none to it.
    """
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["hold_case"], {"case_id": question.case_id})
        now = _present(cur, question.case_id)
        cur.execute(_SQL["bound"], {"case_id": question.case_id})
        at, letter, head, last_number = cur.fetchone()
        shown = {
            "state": now.state,
            "reopened": now.reopened,
            "open": now.open,
            "at": at.isoformat(),
            "letter": letter,
            "head": head,
            "last_number": last_number,
            "proposal": now.proposal,
            "asked_by": asked_by,
        }
        cur.execute(_SQL["shown"], {"dag_run_id": question.dag_run_id, "shown": json.dumps(shown)})
    return now


def receive(conn: Any, dag_run_id: str, given: Mapping[str, Any], *, asked_by: str = "") -> bool:
    """Keeps the answer to the form that this run has written. It is kept here and nowhere else: what tasks hand to one another
    in Airflow can be written by whoever may start a run there. False: it is none to the form that was written last."""
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["given"],
            {"dag_run_id": dag_run_id, "given": json.dumps(given), "asked_by": asked_by},
        )
        return bool(cur.rowcount)


def last_said(conn: Any, question: Question) -> str | None:
    """Why the answer before this question was not applied, or not to everything; null: there was none."""
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["last_said"], {"case_id": question.case_id, "number": question.number})
        row = cur.fetchone()
    return None if row is None else row[0]


def why_stale(shown: Mapping[str, Any], now: Present) -> str | None:
    """Why an answer to what was shown does not fit what is there now; null: it may be tried.

    More than half as many again, and more than five: a person who looked at three deliveries has not decided of thousands.
    """
    if now.state != shown.get("state", "open"):
        by = f" by {now.decided_by} ({now.decision})" if now.decision else ""
        return f"the case was {now.state}{by} before this answer came"
    if int(shown.get("reopened", now.reopened)) != now.reopened:
        return "the case was over and has come back since the question was asked"
    if shown.get("proposal") != now.proposal:
        return "what was proposed of the case is not what was shown"
    if not now.undecided:
        return "nothing of the case waits for a decision any more"
    seen = int(shown.get("open", now.open))
    if now.open > max(seen + 5, seen * 3 // 2):
        return f"it had {seen} open deliveries when the question was asked, and has {now.open} now"
    return None


def end(
    conn: Any,
    dag_run_id: str,
    how: How,
    said: str,
    *,
    who: str | None = None,
    answer: str | None = None,
) -> bool:
    """Ends a question; false when it had ended before."""
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["ended"],
            {"dag_run_id": dag_run_id, "how": how, "said": said, "who": who, "answer": answer},
        )
        return bool(cur.rowcount)
