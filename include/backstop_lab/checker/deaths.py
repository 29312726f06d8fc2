"""Dead letters: each injected death was drained once, and ended as it should: discarded with proof, replayed and consumed once,
or in a case that a person answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from .books import Books, Delivery, Ledger, Letter, Problems

BY_MACHINE, BY_PERSON, EDITED = "replayed", "replayed by a person", "edited and replayed"
PROVED, GIVEN_UP = "discarded with proof", "discarded by a person"
ENDS = {
    "suppressed_done": PROVED,
    "suppressed_undone": BY_MACHINE,
    "dependency_down": BY_MACHINE,
    "message_expired": BY_PERSON,
    "given_up_done": PROVED,
    "given_up_undone": BY_PERSON,
    "not_json": GIVEN_UP,
    "field_missing": EDITED,
    "rule_refused": BY_PERSON,
}
"""What each fault must come to."""
REPLAYED = (BY_MACHINE, BY_PERSON, EDITED)
OF_ONE_CAUSE = ("message_expired", "given_up_undone", "not_json", "field_missing", "rule_refused")
"""One case for each of these and each group, and nothing else in it."""


def deaths_of(ledger: Ledger) -> dict[Delivery, str]:
    """Delivery -> the fault that it died of."""
    return {
        (line["topic"], line["message_id"], line["consumer_group"]): fault
        for fault in ENDS
        for line in ledger.get(fault, [])
    }


def replays_called_for(ledger: Ledger) -> Counter[Delivery]:
    """How often each delivery may be replayed: once for each death that asks for it."""
    return Counter(
        (line["topic"], line["message_id"], line["consumer_group"])
        for fault, end in ENDS.items()
        if end in REPLAYED
        for line in ledger.get(fault, [])
    )


def check_deaths(books: Books, ledger: Ledger, problems: Problems) -> dict[str, Any]:
    """By fault: deaths, letters, how they ended, cases; everything that is not as it must be is a problem."""
    died = deaths_of(ledger)
    letters: dict[Delivery, list[Letter]] = defaultdict(list)
    for letter in books.letters:
        delivery = (letter.topic, letter.message_id, letter.consumer_group)
        letters[delivery].append(letter)
        if delivery not in died:
            problems.add("dead letter that nobody injected", *delivery)
    for entry, times in Counter(
        (one.broker, one.queue, one.broker_id.partition("#")[0]) for one in books.letters
    ).items():
        if times > 1:
            problems.add("dead letter stored twice", *entry)
    if books.undrained:
        problems.add("batch of dead letters not acknowledged", books.undrained)
    for delivery in books.discards:
        if died.get(delivery) != "not_json" and delivery not in lost_logs(ledger):
            problems.add("discarded without a reason", *delivery)
    told: dict[str, Any] = {}
    for fault, end in ENDS.items():
        mine = [delivery for delivery, of in died.items() if of == fault]
        if not mine:
            continue
        right = 0
        for delivery in mine:
            wrong = why_wrong(books, end, delivery, letters[delivery])
            if wrong:
                problems.add("dead letter not dealt with", fault, *delivery, wrong)
            right += not wrong
        cases = {case for delivery in mine for case in books.letter_cases.get(delivery, ())}
        wanted = len({(topic, group) for topic, _, group in mine}) if fault in OF_ONE_CAUSE else 0
        if fault in OF_ONE_CAUSE and (
            len(cases) != wanted or any(foreign(books, case, mine) for case in cases)
        ):
            problems.add("not one case a cause", fault, f"{len(cases)} cases in place of {wanted}")
        told[fault] = {
            "died": len(mine),
            "letters": sum(len(letters[delivery]) for delivery in mine),
            "discarded": sum(
                one.state == "discarded" for delivery in mine for one in letters[delivery]
            ),
            "replayed": sum(
                one.state == "replayed" for delivery in mine for one in letters[delivery]
            ),
            "cases": len(cases),
            "right": right,
            "end": end,
        }
    return told


def lost_logs(ledger: Ledger) -> set[Delivery]:
    """Deliveries whose logs were deleted by hand: a person who looked may give them up."""
    return {
        (line["topic"], line["message_id"], line["consumer_group"])
        for line in ledger.get("mass_loss", [])
    }


def foreign(books: Books, case: int, mine: list[Delivery]) -> bool:
    """Whether other deliveries than these stand in the case."""
    return any(
        case in cases for delivery, cases in books.letter_cases.items() if delivery not in mine
    )


def why_wrong(books: Books, end: str, delivery: Delivery, letters: list[Letter]) -> str | None:
    """What is not as this end demands of it, in the tables of the group, of the shard and of control; None: all is."""
    topic, message_id, group = delivery
    key = (topic, message_id)
    if not letters:
        return "was never drained"
    if any(letter.state in ("open", "replaying") for letter in letters):
        return "is still " + ", ".join(sorted({letter.state for letter in letters}))
    answered = any(books.answered.get(case) for case in books.letter_cases.get(delivery, ()))
    if end in (PROVED, GIVEN_UP):
        if any(letter.state != "discarded" or not letter.proof for letter in letters):
            return "was not discarded with proof"
        done = key in books.consumed[group] and books.effects[group][key] == 1
        if end == PROVED:
            return (
                None
                if done and delivery not in books.discards
                else "was discarded, and its work was not done"
            )
        if books.effects[group][key]:
            return "was discarded, and has an effect"
        return (
            None
            if answered and delivery in books.discards
            else "was discarded, and no person said so"
        )
    if any(letter.state != "replayed" for letter in letters):
        return "was not replayed"
    sent = {
        number for number, groups, outcome in books.resends.get(key, []) if outcome != "refused"
    }
    if any(letter.send_number not in sent for letter in letters):
        return "was called replayed, and no such send was made"
    if key not in books.consumed[group] or books.effects[group][key] != 1:
        return f"was replayed, and has {books.effects[group][key]} effects"
    if end == BY_MACHINE:
        return None
    if not answered:
        return "was replayed, and no person said so"
    if end == EDITED and not edited(books, delivery):
        return "was replayed, and not with the new content, or the old one was not kept"
    return None


def edited(books: Books, delivery: Delivery) -> bool:
    """Consumed in its second version; both versions are kept."""
    key = delivery[:2]
    return (
        books.versions.get(key, set()) >= {1, 2}
        and books.version_consumed[delivery[2]].get(key) == 2
    )
