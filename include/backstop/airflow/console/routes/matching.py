"""All dead letters that match a filter: counted, and exported."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    API,
    Filter,
    Routes,
    Visiting,
    readable,
)
from backstop.airflow.console.visit import Visit, require, writing
from backstop.reports.console import LISTS, MOST, read_page, read_rows
from backstop.reports.filters import LONGEST, NONE, read_filter

# No postponed annotations: FastAPI and Pydantic read them.


class CaseOfDeadLetters(m.Answer):
    """A case, and how many of some dead letters are in it."""

    case: int
    dead_letters: int


class Matching(m.Answer):
    """What a filter of dead letters matches, and what can be done with all of it."""

    dead_letters: int = Field(description="10001: more than that")
    cases: list[CaseOfDeadLetters] = Field(
        description="those of the first 10,000: their answers discard, edit or leave them"
    )
    actions: list[m.Action]


class ExportedDeadLetter(m.DeadLetterRow):
    """A dead letter in an export; the last four are null where no contents were asked for."""

    headers: str | None = None
    text: str | None = None
    base64: str | None = None
    error: str | None = None


class Export(m.Answer):
    """What matches a filter, the newest first (with contents: the oldest first)."""

    items: list[ExportedDeadLetter]
    more: bool = Field(
        description="there is more than one export holds: 10,000 dead letters, or 16 MiB of contents"
    )


class WantedExport(BaseModel):
    """Which dead letters, and whether with headers and contents; then the filter names one topic."""

    model_config = ConfigDict(extra="forbid")
    filter: str = Field(default="", max_length=LONGEST)
    contents: bool = False
    why: str = Field(default="", max_length=10_000, pattern=r"^[^\x00]*$")


EXPORTED, EXPORTED_BYTES = 10_000, 16 * 1024 * 1024
"""Dead letters of one export, and bytes of their contents."""


def match_dead_letters(visited: Visiting, filter: Filter = "") -> Matching:
    """What a filter matches: how many, in which cases, and what you may do with all of them."""
    wanted = read_filter(filter, LISTS["dead_letters"].filters, LISTS["dead_letters"].choices)
    rows = read_rows(visited.conn, "matching_dead_letters", visited.sight, **wanted)
    cases = [
        CaseOfDeadLetters(case=row["case"], dead_letters=row["number"])
        for row in rows
        if row["case"] is not None
    ]
    export = m.Action(
        name="export",
        allowed=True,
        why_not=None,
        method="POST",
        href=f"{API}/dead-letters/export",
        body={"filter": filter, "contents": False},
    )
    why_not = _why_not_export(visited, wanted)
    contents = m.Action(
        name="export_contents",
        allowed=why_not is None,
        why_not=why_not,
        method="POST",
        href=f"{API}/dead-letters/export",
        body={"filter": filter, "contents": True, "why": ""},
    )
    return Matching(
        dead_letters=sum(row["number"] for row in rows),
        cases=cases[:50],
        actions=[visited.plan_replay_of(wanted), export, contents],
    )


def _why_not_export(visited: Visit, wanted: dict[str, Any]) -> str | None:
    if wanted["topic"] is None:
        return "Name one topic in the filter: who may read contents is decided by topic."
    if wanted["topic"] == "*" or wanted["group"] == "*":
        return "Contents are exported of one topic: leave topic:* and group:* out."
    if wanted["cause"] == 0 or wanted["category"] == NONE:
        return "Leave cause:none and category:none out: what is not classified is not exported."
    return visited.why_not_read(wanted["topic"])


def export_dead_letters(visited: Visiting, said: WantedExport) -> Export:
    """What a filter matches, as one document. Contents are for who may change contents of the topic, and that you read them is
    logged first."""
    listing = LISTS["dead_letters"]
    wanted = read_filter(said.filter, listing.filters, listing.choices)
    if not said.contents:
        return _export_rows(visited, said.filter)
    if wanted["topic"] is not None:
        visited.require_sees(wanted["topic"])
    require(_why_not_export(visited, wanted))
    return _export_contents(visited, wanted, said)


def _export_rows(visited: Visit, text: str) -> Export:
    items: list[ExportedDeadLetter] = []
    after: str | None = None
    while True:
        page = read_page(visited.conn, "dead_letters", visited.sight, text, after, MOST)
        items += [ExportedDeadLetter(**row) for row in page.rows]
        after = page.next
        if after is None or len(items) >= EXPORTED:
            return Export(items=items[:EXPORTED], more=after is not None or len(items) > EXPORTED)


def _export_contents(visited: Visit, wanted: dict[str, Any], said: WantedExport) -> Export:
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.export_letters import read_letters
    from backstop.reports.letters import LetterFilter

    since = None if wanted["since"] is None else datetime.now(UTC) - wanted["since"]
    chosen = LetterFilter(
        wanted["topic"],
        wanted["group"],
        _states(wanted["state"]),
        wanted["category"],
        wanted["cause"],
        wanted["case"],
        since,
        wanted["id"],
    )
    items: list[ExportedDeadLetter] = []
    size, more = 0, False
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"filter": said.filter}
            append(cursor, who, "read contents", "dead letters", said.why, details)
        letters = read_letters(room.control, chosen, EXPORTED + 1)
        try:
            for letter in letters:
                size += letter["content_bytes"] + len(letter["headers"])
                if more := len(items) == EXPORTED or (bool(items) and size > EXPORTED_BYTES):
                    break
                items.append(_exported(letter))
        finally:
            letters.close()
    return Export(items=items, more=more)


def _states(state: str | None) -> tuple[str, ...] | None:
    from backstop.reports.letters import UNDECIDED

    if state is None:
        return None
    return UNDECIDED if state == "undecided" else (state,)


def _exported(letter: dict[str, Any]) -> ExportedDeadLetter:
    text, encoded = readable(letter["content"])
    return ExportedDeadLetter(
        dead_letter=letter["dead_letter_id"],
        group=letter["consumer_group"],
        cause=letter["cause_id"],
        case=letter["case_id"],
        classified_by=None,
        invalid=letter["invalid"] is not None,
        headers=letter["headers"].decode(errors="replace"),
        text=text,
        base64=encoded,
        error=letter["error"] or letter["cause_text"] or "",
        **{name: letter[name] for name in _AS_EXPORTED},
    )


_AS_EXPORTED = (
    "broker",
    "queue",
    "topic",
    "message_id",
    "state",
    "category",
    "decision",
    "reason",
    "decided_by",
    "decided_at",
    "deliveries",
    "content_bytes",
    "died_at",
    "drained_at",
)


ROUTES: Routes = (
    ("GET", "/dead-letters/matching", match_dead_letters),
    ("POST", "/dead-letters/export", export_dead_letters),
)
