"""Applies a person's answer to a case of a parked ordering key.

    control: the intention, reached | consumer: the key's answer, by compare-and-set | control: discards, the decision

Crash points. After the consumer's commit the key's messages are released by its queue's owner, whatever happens here; the same
answer, given again, finds it so and records the decision; else the watch closes the case when the key is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, Protocol

from backstop.cases.intend import (
    Decided,
    Intent,
    append_decision,
    reach,
    record,
    refused,
    require_mine,
)
from backstop.cases.parked_discards import keep_discards
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.speaker import person
from backstop.evidence.sources import open_guarded
from backstop.leases import parking
from backstop.model.records import Counts
from backstop.stores.open import open_parking
from backstop.stores.postgresql.parking import ParkedKey, PostgresParking

RELEASE, EDIT_HEAD, DISCARD_HEAD, DISCARD_KEY = (
    "release",
    "edit_head",
    "discard_head",
    "discard_key",
)
_AS_WRITTEN = {
    RELEASE: "retry",
    EDIT_HEAD: "edit",
    DISCARD_HEAD: "discard head",
    DISCARD_KEY: "discard key",
}
"""As the consumer database has them."""
_MOST = 2_000


class Case(Protocol):
    """What an answer needs of the case."""

    @property
    def case_id(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def consumer_group(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def evidence(self) -> Mapping[str, Any]: ...


def answer_parked(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    intent: Intent,
    options: Mapping[str, Any],
) -> Decided:
    """Releases or discards the key and commits; the intention was written before.

    options: `content` (edit_head: bytes), `shown` (`head`, `last_number`: what the person saw, or what there was when it was
    proposed; null: what the case says now). Raises DecisionRefused when the key is not what was shown any more,
    StoreUnavailable when its database does not answer.
    """
    action, content = intent["action"], options.get("content")
    head, until = _seen(case, action, options.get("shown") or {})
    if action == EDIT_HEAD and content is None:
        raise refused("An edit needs the whole new content.", "Give it (--content-file FILE).")
    if case.consumer_group not in settings.groups:
        raise refused(
            f"The group {case.consumer_group} is not in backstop.yaml.",
            "Put it back, then decide again.",
        )
    group, counts = case.consumer_group, Counts()
    store = settings.groups[group].store
    with closing(
        open_guarded(f"store {store}", open_parking, settings, connections, store)
    ) as parked:
        again = reach(conn, intent)
        counts += _answer(parked, case, intent, content, head, until, again=again)
        mine = (case.case_id, intent["who"], intent["why"])
        # A person's login writes discards in its own name alone: what it approves the next watch moves.
        left = person(conn) not in (None, intent["who"])
        discards = [
            one
            for one in parked.discards([group], _MOST)
            if not left and (one.case_id, one.by, one.why) == mine
        ]
        with conn, conn.cursor() as cur:
            require_mine(cur, intent)
            kept = keep_discards(cur, discards)
            record(cur, intent, counts, [], whole=True)
            decided = append_decision(cur, Decided(case.case_id, action, counts), intent)
        parked.forget_discards(kept)
    return decided


def _seen(case: Case, action: str, shown: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """(the head, the last number) of the key as the person saw it: the watch may have found more of the open case since."""
    head, until = case.evidence.get("head"), case.evidence.get("last_number")
    if "at" not in shown:
        return head, until
    last = shown.get("last_number")
    if last is None and action == DISCARD_KEY:
        raise refused(
            f"It is not known which messages of the ordering key {case.subject!r} were shown.",
            f"Look at the key again and decide by what it is now: backstop cases show {case.case_id}",
        )
    # Numbers begin again where the consumer database was restored.
    return shown.get("head", head), last if until is None or last is None else min(last, until)


def _answer(
    parked: PostgresParking,
    case: Case,
    intent: Intent,
    content: bytes | None,
    head: str | None,
    until: int | None,
    *,
    again: bool,
) -> Counts:
    """The one transaction in the consumer database."""
    group, topic, key, action = case.consumer_group, case.topic, case.subject, intent["action"]
    present = parked.parked_key(group, topic, key)
    if again and _was_applied(present, intent):
        return Counts(answered_before=1)

    def apply(connection: Any) -> Counts:
        if action in (RELEASE, EDIT_HEAD):
            new = content if action == EDIT_HEAD else None
            parking.answer_retry(connection, group, topic, key, intent["who"], new, head=head)
            return Counts(released=1)
        discarded = parking.answer_discard(
            connection,
            group,
            topic,
            key,
            intent["who"],
            whole_key=action == DISCARD_KEY,
            head=head,
            until=until,
            why=intent["why"],
            case_id=case.case_id,
        )
        return Counts(discarded=len(discarded))

    return parked.change(apply)


def _was_applied(present: ParkedKey | None, intent: Intent) -> bool:
    """This answer had reached the consumer database: the key is free, or is being released by it."""
    if present is None:
        return True
    answered = (present.answer, present.answered_by) == (
        _AS_WRITTEN[intent["action"]],
        intent["who"],
    )
    return present.state == "RELEASING" and answered
