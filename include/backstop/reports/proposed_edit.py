"""The contents that a proposed edit would replace, as they are now: what the second person compares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.decisions.list_cases import Case
from backstop.decisions.propose import Proposal, named_in
from backstop.evidence.sources import open_guarded
from backstop.model.errors import ConfigurationError
from backstop.reports.export_letters import read_letters
from backstop.reports.letters import UNDECIDED, LetterFilter, show_letter
from backstop.sql.connection import STATEMENT_TIMEOUT
from backstop.stores.open import open_parking


@dataclass(frozen=True, slots=True)
class ContentBefore:
    """One content that the proposal would replace; the content null when it was purged."""

    dead_letter: int | None
    """null: it is the head of a parked key."""
    message_id: str | None
    content: bytes | None


def contents_before(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    proposal: Proposal,
    limit: int | None = None,
    patience: timedelta = STATEMENT_TIMEOUT,
) -> list[ContentBefore]:
    """Of the undecided dead letters that the proposal names, or all of its case where it names none; or of the parked key's head.
    Raises StoreUnavailable."""
    if case.kind == "key_parked":
        return _head(settings, connections, case, patience)
    letters = (
        _named(conn, proposal) if proposal.named else _letters(conn, case.case_id, None, limit)
    )
    return [
        ContentBefore(one["dead_letter_id"], one["message_id"], one["content"])
        for one in islice(letters, limit)
    ]


def _head(
    settings: Settings, connections: Connections, case: Case, patience: timedelta
) -> list[ContentBefore]:
    if case.consumer_group not in settings.groups:
        return []
    store = settings.groups[case.consumer_group].store
    opening = partial(open_parking, patience=patience)
    parking = open_guarded(f"store {store}", opening, settings, connections, store)
    with closing(parking) as parked:
        head = parked.head_content(case.consumer_group, case.topic, case.subject)
    return [] if head is None else [ContentBefore(None, *head)]


def _named(conn: Any, proposal: Proposal) -> Iterator[dict[str, Any]]:
    for message_id in named_in(proposal.options, "message_ids"):
        yield from _letters(conn, proposal.case_id, message_id, None)
    for number in named_in(proposal.options, "letters"):
        try:
            letter = show_letter(conn, int(number))
        except (ConfigurationError, ValueError):
            continue  # purged since, and the answer will say so
        if letter["case_id"] == proposal.case_id and letter["state"] in UNDECIDED:
            yield letter


def _letters(
    conn: Any, case_id: int, message_id: str | None, limit: int | None
) -> Iterator[dict[str, Any]]:
    of_case = LetterFilter(states=UNDECIDED, case=case_id, message_id=message_id)
    return read_letters(conn, of_case, limit)
