"""What a person of the shop answers to a case: somebody who knows what happened, from the ledger, and mends it first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg2

from backstop_lab.demo.die import with_country
from backstop_lab.demo.stage import Stage
from backstop_lab.faults.brokers.protocol import EXPIRED, GIVEN_UP_UNDONE
from backstop_lab.shop.databases import change
from backstop_lab.shop.demand import FIELD_MISSING, NOT_JSON, RULE_REFUSED

KNOWN = (NOT_JSON, FIELD_MISSING, RULE_REFUSED, EXPIRED, GIVEN_UP_UNDONE)


@dataclass(frozen=True)
class Answer:
    """An option of the question, and what is filled in beside it."""

    option: str
    why: str
    inputs: dict[str, Any] = field(default_factory=dict)


def choose_answer(stage: Stage, case_id: int) -> Answer | None:
    """None: nothing is to be answered, or not yet."""
    [(kind, state)] = change(
        stage.control, "SELECT kind, state FROM case_file WHERE case_id = %s", (case_id,)
    )
    if state != "open":
        return None
    if kind == "mass_loss":
        return Answer(
            "discard", "the logs were deleted by hand; the work is done, as the shop's books show"
        )
    if kind == "key_parked":
        stage.conditions.open_the_account()
        return Answer("release", "the account is open again; nothing of it was lost")
    return of_dead_letters(stage, case_id) if kind == "dead_letters" else None


def of_dead_letters(stage: Stage, case_id: int) -> Answer | None:
    letters = change(
        stage.control,
        "SELECT topic, message_id, consumer_group, content FROM dead_letter WHERE case_id = %s AND state = 'open'"
        " ORDER BY dead_letter_id",
        (case_id,),
    )
    died = {(topic, message_id) for topic, message_id, _, _ in letters}
    known = [fault for fault in KNOWN if died & stage.ledger.keys(fault)]
    match known:
        case ["not_json"]:
            return Answer(
                "discard",
                "the export was cut short; the shop sent these orders again under new numbers",
            )
        case ["field_missing"]:
            _, message_id, _, content = letters[0]
            body = with_country(bytes(content).decode(), "DE")
            return Answer(
                "edit",
                "the customer told us the country",
                {"ids": message_id, "secret_content": body},
            )
        case ["rule_refused"]:
            return of_a_mended_rule(stage, case_id)
        case ["message_expired"]:
            return Answer("replay", "late is better than never for these")
        case ["given_up_undone"]:
            return Answer("replay", "a client gave them up by mistake, and nobody did the work")
    return Answer(
        "replay",
        f"not of this demo's poison ({', '.join(known) or 'no fault that was injected'}): once more",
    )


def of_a_mended_rule(stage: Stage, case_id: int) -> Answer | None:
    """One first; all others when that one was done."""
    stage.conditions.mend_the_rule()
    tried = change(
        stage.control,
        "SELECT l.topic, l.message_id FROM case_member AS m JOIN dead_letter AS l USING (topic, message_id, consumer_group)"
        " WHERE m.case_id = %s AND l.state IN ('replaying', 'replayed')",
        (case_id,),
    )
    if not tried:
        return Answer("replay_sample", "the credit limits were mended; one first", {"sample": 1})
    try:
        undone = stage.without_effect(
            "billing", [(topic, message_id) for topic, message_id in tried]
        )
    except psycopg2.OperationalError:
        return None  # the story has taken that database away: nobody can see yet whether it went through
    if undone:
        return None
    return Answer("replay", "the one that was tried went through: all others")
