"""Applies a person's answer to a case of dead letters, after reading the present state of each letter again.

    control: the intention | look again | producer: more sends allowed, or the content replaced | control: requests or
                                        |   decisions, letters, the answer

Crash points. After the intention: nothing was applied, and the case shows what somebody was about to do. After the producer's
commits: a stub is allowed one more send, with which triage may go on by itself where only the budget was in its way, or has
its new content (edit.py); answering again finds it so and goes on. The last transaction is one: requests, letters and the
answer appear together. A letter that moved on since it was read, or that the answer does not fit, is left out with the reason,
and the case stays open for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backstop.cases.close import Delivery, close_settled, settle
from backstop.cases.intend import (
    Decided,
    Intent,
    append_decision,
    reach,
    record,
    refused,
    require_mine,
)
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.kept_contents import kept_contents
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Key
from backstop.requests.ask import ask, ramped_topics
from backstop.sql.named import load
from backstop.stores.protocol import StubStore
from backstop.triage.decide.apply import (
    ask_of,
    granted_requests,
    is_granted,
    leave_cases,
    lock,
    policy_of,
    why_discarded,
)
from backstop.triage.decide.decide import (
    LEFT,
    Facts,
    budget_of,
    budget_used,
    is_conflict,
    is_done,
    proof_of,
)
from backstop.triage.decide.edit import replace_content
from backstop.triage.decide.evidence import (
    Evidence,
    OpenDeadLetter,
    gather_evidence,
    read_dead_letters,
)
from backstop.triage.decide.fits_answer import IS_KEPT, why_not
from backstop.triage.decide.refresh_case_summary import refresh_case

_SQL = load("backstop.triage.decide", "decide.sql")
_BATCH = 1_000
COUNTED = 10_000
"""Open dead letters of a case that a preview counts; one more says that there are more."""
REASONS_SHOWN = 20
"""So many of the sentences that say why deliveries are left out are shown; a case may have thousands."""
IDS_SHOWN = 5
"""So many of the ids that a person named, and the case does not have, are shown."""
_REPLAYS = ("replay", "replay_sample", "edit")
_NO_DELIVERY = "none of these dead letters names its topic, message and group"
"""Why a sample of them is empty."""


class Case(Protocol):
    """What an answer needs of the case."""

    @property
    def case_id(self) -> int: ...
    @property
    def topic(self) -> str: ...


@dataclass(slots=True)
class _Plan:
    """What fits at this moment."""

    fits: list[tuple[OpenDeadLetter, Facts]] = field(default_factory=list)
    done: list[tuple[OpenDeadLetter, Mapping[str, Any], str]] = field(default_factory=list)
    """Letters of which nothing is left to decide, with the proof and whose it is."""
    left_out: list[str] = field(default_factory=list)
    looks: list[Evidence] = field(default_factory=list)


def answer(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    intent: Intent,
    options: Mapping[str, Any],
) -> Decided:
    """Applies the answer to the case's undecided letters and commits; the intention was written before.

    options: `message_ids`, `letters` (numbers of letters): only these; `sample` (replay_sample: how many, the topic's
    canary); `content` (edit: bytes); `shown`: what the person saw. Letters that were left before, or that came after it was
    shown, are only touched when they are named; those left also when no other is there. Raises DecisionRefused,
    StoreUnavailable.
    """
    letters, late, rest = _choose(conn, settings, case, intent, options)
    if intent["action"] == "leave":
        return _leave(conn, intent, letters, late, rest)
    with Sources(settings, connections) as sources:
        plan = _plan(conn, settings, sources, intent, letters)
        plan.left_out += late
        if not plan.fits and not plan.done:
            reasons = first_of(plan.left_out or [_NO_DELIVERY])
            raise refused(
                f"The answer to {intent['action']} does not fit case {case.case_id} as it is now: {reasons}",
                f"Look again (backstop cases show {case.case_id}) and decide by the present state.",
            )
        counts = Counts()
        if intent["action"] == "edit" and plan.fits:
            stub = plan.fits[0][1].stub
            assert stub is not None
            reach(conn, intent)
            version = replace_content(
                conn, sources.shard(stub.shard), stub.key, options["content"], intent
            )
            counts.add("content_version", version)
        if intent["action"] in _REPLAYS:
            counts += _allow_more(conn, settings, sources, intent, plan)
    return _finish(conn, settings, intent, plan, counts, rest)


def preview_answer(
    conn: Any, sources: Sources, case_id: int, action: str, most: int
) -> tuple[int, int, int, int, tuple[str, ...]]:
    """(dead letters read, open ones up to one more than COUNTED, those that the answer fits, those that are done, why others would
    be left out) at this moment, of the first `most`; it changes nothing. Raises StoreUnavailable."""
    with conn, conn.cursor() as cur:
        # As an answer: what was left before only where nothing else is open.
        for left in (False, True):
            which = {"case_id": case_id, "left": left}
            letters = read_dead_letters(cur, "first_of_case", {**which, "limit": most})
            if letters:
                break
        cur.execute(_SQL["count_of_case"], {**which, "limit": COUNTED + 1})
        (number,) = cur.fetchone()
    intent = {"case_id": case_id, "action": action}
    plan = _plan(conn, sources.settings, sources, intent, letters)
    return (
        len(letters),
        number,
        len(plan.fits),
        len(plan.done),
        tuple(plan.left_out[:REASONS_SHOWN]),
    )


def _choose(
    conn: Any, settings: Settings, case: Case, intent: Intent, options: Mapping[str, Any]
) -> tuple[list[OpenDeadLetter], list[str], bool]:
    """(the letters that the answer is about, what is to be said of those that came too late, whether the case has others)"""
    action, ids, numbers = intent["action"], options.get("message_ids"), options.get("letters")
    with conn, conn.cursor() as cur:
        every = read_dead_letters(
            cur, "of_case", {"case_id": case.case_id, "ids": None, "letters": None}
        )
        shown = options.get("shown") or {}
        cur.execute(
            _SQL["came_after"],
            {"case_id": case.case_id, "at": shown.get("at"), "letter": shown.get("letter")},
        )
        unseen = {row[0] for row in cur.fetchall()}
    named = ids is not None or numbers is not None
    late = (
        []
        if named
        else [
            _late(one) for one in every if one.dead_letter_id in unseen and one.left_in_case is None
        ]
    )
    if named:
        chosen = [
            one
            for one in every
            if one.message_id in set(ids or ()) or one.dead_letter_id in set(numbers or ())
        ]
        missing = set(ids or ()) - {one.message_id for one in chosen}
        missing |= {
            str(number)
            for number in numbers or ()
            if number not in {one.dead_letter_id for one in chosen}
        }
        if missing:
            raise refused(
                f"Not among the undecided dead letters of case {case.case_id}: {', '.join(sorted(missing)[:IDS_SHOWN])}.",
                f"See them: backstop dead-letters list --case {case.case_id}",
            )
    else:
        seen = [one for one in every if one.dead_letter_id not in unseen]
        chosen = [one for one in seen if one.left_in_case is None] or ([] if late else seen)
    if not chosen and late:
        raise refused(
            f"All {len(late)} undecided dead letters of case {case.case_id} came after the question.",
            f"Look again: backstop cases show {case.case_id}",
        )
    if not chosen:
        raise refused(
            f"Case {case.case_id} has no undecided dead letters any more.",
            f"See: backstop cases show {case.case_id}",
        )
    if (
        action in _REPLAYS
        and case.topic in settings.topics
        and not settings.is_repaired(case.topic)
    ):
        raise refused(
            f"Topic {case.topic} is in mode observe, in which nothing is ever sent.",
            "Set its mode to repair in backstop.yaml, or decide otherwise.",
        )
    if action == "replay_sample":
        chosen = _sample(settings, chosen, options.get("sample"))
    if action == "edit" and (
        len({one.key for one in chosen}) != 1 or options.get("content") is None
    ):
        raise refused(
            "Editing replaces the content of one message.",
            "Name the message (--message ID) and give the new content (--content-file FILE).",
        )
    picked = {one.dead_letter_id for one in chosen}
    # What was left before does not keep a case open that is left now.
    others = [
        one
        for one in every
        if one.dead_letter_id not in picked and (action != "leave" or one.left_in_case is None)
    ]
    return chosen, late, bool(others)


def _late(letter: OpenDeadLetter) -> str:
    return f"{letter.message_id or f'letter {letter.dead_letter_id}'}: it came after the question"


def _sample(
    settings: Settings, letters: Sequence[OpenDeadLetter], wanted: Any
) -> list[OpenDeadLetter]:
    """The letters of the first deliveries: as many as asked for, else as the topic's canary."""
    size = int(wanted) if wanted is not None else max(1, policy_of(settings, letters[0]).canary)
    if size < 1:
        raise refused("A sample has at least one delivery.", "Say how many: --sample N.")
    first = list(
        dict.fromkeys(letter.delivery for letter in letters if letter.delivery is not None)
    )[:size]
    return [letter for letter in letters if letter.delivery in set(first)]


def _plan(
    conn: Any,
    settings: Settings,
    sources: Sources,
    intent: Intent,
    letters: Sequence[OpenDeadLetter],
) -> _Plan:
    plan = _Plan()
    for start in range(0, len(letters), _BATCH):
        batch = list(letters[start : start + _BATCH])
        look = gather_evidence(conn, settings, sources, batch)
        plan.looks.append(look)
        kept: set[Delivery] = set()
        if intent["action"] == "discard":
            read = [one for one in batch if look.facts[one.dead_letter_id].unread is None]
            kept = kept_contents(sources, (one.delivery for one in read if one.delivery))
        for letter in batch:
            facts, policy = look.facts[letter.dead_letter_id], policy_of(settings, letter)
            if facts.unread is not None:
                raise StoreUnavailable(
                    f"The present state could not be read: {facts.unread}.",
                    unaffected="Nothing was applied; the case is open.",
                    next_step="Bring it back, then decide again.",
                )
            if facts.discarded is not None:
                plan.done.append((letter, facts.discarded, str(facts.discarded["decided_by"])))
            elif facts.log is not None and is_done(facts) and not is_conflict(facts):
                plan.done.append((letter, proof_of(facts.log), "triage"))
            elif reason := why_not(intent["action"], facts, policy) or (
                IS_KEPT if letter.delivery in kept else None
            ):
                plan.left_out.append(
                    f"{letter.message_id or f'letter {letter.dead_letter_id}'}: {reason}"
                )
            else:
                plan.fits.append((letter, facts))
    return plan


def _allow_more(
    conn: Any, settings: Settings, sources: Sources, intent: Intent, plan: _Plan
) -> Counts:
    """One more send where they are used up; a stub that moved on meanwhile is left out."""
    raised, gone = set[Key](), set[Key]()
    if any(
        facts.stub is not None and budget_used(facts.stub, policy_of(settings, letter))
        for letter, facts in plan.fits
    ):
        reach(conn, intent)
    for letter, facts in plan.fits:
        stub = facts.stub
        assert stub is not None
        if stub.key in raised | gone or not budget_used(stub, policy_of(settings, letter)):
            continue
        budget = budget_of(stub, policy_of(settings, letter))
        sends = max(budget, stub.send_count - stub.refusals + 1)
        if allow_sends(sources.shard(stub.shard), stub.key, sends):
            raised.add(stub.key)
        else:
            gone.add(stub.key)
            plan.left_out.append(
                f"{stub.message_id}: it was just confirmed or withdrawn, or its content was erased"
            )
    plan.fits = [(letter, facts) for letter, facts in plan.fits if letter.key not in gone]
    return Counts(raised=len(raised)) if raised else Counts()


def allow_sends(store: StubStore, key: Key, sends: int) -> bool:
    """Allows a message that many sends, refusals not counted; returns whether it may be sent that often now, by this or already."""
    if store.raise_max_sends(key, sends):
        return True
    now = store.stubs([key]).get(key)
    return now is not None and (now.max_sends or 0) >= sends


def _leave(
    conn: Any, intent: Intent, letters: Sequence[OpenDeadLetter], late: list[str], rest: bool
) -> Decided:
    with conn, conn.cursor() as cur:
        require_mine(cur, intent)
        held = lock(cur, letters)
        _write(
            cur,
            [
                {
                    "dead_letter_id": one.dead_letter_id,
                    "state": "open",
                    "decision": "wait",
                    "reason": LEFT,
                    "decided_by": intent["who"],
                    "case_id": intent["case_id"],
                    "answered": True,
                    "left_in_case": intent["case_id"],
                }
                for one in letters
                if one.dead_letter_id in held
            ],
        )
        counts = Counts(left=len(held), left_out=len(late)) if late else Counts(left=len(held))
        record(cur, intent, counts, late, whole=not rest and len(held) == len(letters))
        return append_decision(
            cur, Decided(intent["case_id"], "leave", counts, tuple(late)), intent
        )


def _finish(
    conn: Any, settings: Settings, intent: Intent, plan: _Plan, counts: Counts, rest: bool
) -> Decided:
    """The last transaction: requests or decisions, the letters, and the answer itself."""
    case_id, who = intent["case_id"], intent["who"]
    rows: list[dict[str, Any]] = []
    taken_up: list[Delivery] = []
    settled = [one.delivery for one, _, _ in plan.done if one.delivery is not None]
    with conn, conn.cursor() as cur:
        require_mine(cur, intent)
        held = lock(
            cur, [letter for letter, _ in plan.fits] + [letter for letter, _, _ in plan.done]
        )
        fits = [(letter, facts) for letter, facts in plan.fits if letter.dead_letter_id in held]
        plan.left_out += [
            f"{letter.message_id}: it was decided otherwise a moment ago"
            for letter, _ in plan.fits
            if letter.dead_letter_id not in held
        ]
        if intent["action"] == "discard":
            # What the log proves done stays CONFIRMED: of a conflict only the letter is discarded.
            given_up = [
                letter.delivery
                for letter, facts in fits
                if letter.delivery is not None and not is_done(facts)
            ]
            cur.execute(
                _SQL["give_up"],
                {
                    **intent,
                    "topics": [d[0] for d in given_up],
                    "ids": [d[1] for d in given_up],
                    "groups": [d[2] for d in given_up],
                },
            )
            settled += given_up
            proof = {"decided_by": who, "why": intent["why"], "case_id": case_id}
            rows += [_discarded(letter, proof, who, case_id) for letter, _ in fits]
            counts.add("discarded", len(fits))
        elif fits:
            asks = [ask_of(letter, facts, f"case {case_id}") for letter, facts in fits]
            counts += ask(cur, asks, None, ramped_topics(settings))
            granted = granted_requests(cur, asks)
            for letter, facts in fits:
                number = is_granted(granted, letter.key, letter.group)
                if number is None:
                    plan.left_out.append(f"{letter.message_id}: a send of it is under way")
                    continue
                assert facts.stub is not None
                rows.append(
                    {
                        "dead_letter_id": letter.dead_letter_id,
                        "state": "replaying",
                        "decision": "replay",
                        "decided_by": who,
                        "reason": intent["action"],
                        "case_id": case_id,
                        "shard": facts.stub.shard,
                        "send_number": number,
                        "answered": True,
                    }
                )
                if letter.delivery is not None:
                    taken_up.append(letter.delivery)
                counts.add("replaying")
        rows += [
            _discarded(letter, proof, by, case_id)
            for letter, proof, by in plan.done
            if letter.dead_letter_id in held
        ]
        _write(cur, rows)
        if taken_up:
            topics, ids, groups = (list(column) for column in zip(*taken_up, strict=True))
            values = {"case_id": case_id, "topics": topics, "ids": ids, "groups": groups}
            cur.execute(_SQL["take_up"], values)
        if settled:
            settle(cur, settled)
        leave_cases(cur, [letter for letter, _ in fits])
        for name, number in (("already_done", len(plan.done)), ("left_out", len(plan.left_out))):
            if number:
                counts.add(name, number)
        record(cur, intent, counts, plan.left_out, whole=not (plan.left_out or rest))
        refresh_case(cur, case_id)
        close_settled(cur)
        return append_decision(
            cur, Decided(case_id, intent["action"], counts, tuple(plan.left_out)), intent
        )


def _discarded(
    letter: OpenDeadLetter, proof: Mapping[str, Any], by: str, case_id: int
) -> dict[str, Any]:
    return {
        "dead_letter_id": letter.dead_letter_id,
        "state": "discarded",
        "decision": "discard",
        "decided_by": by,
        "reason": why_discarded(proof),
        "case_id": case_id,
        "proof": dict(proof),
        "answered": True,
    }


def _write(cur: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    cur.execute(_SQL["apply"], {"rows": json.dumps(rows, default=str)})


def first_of(sentences: Sequence[str]) -> str:
    """The first few of the sentences that say why an answer fits nothing."""
    rest = f" (and {len(sentences) - 3} more)" if len(sentences) > 3 else ""
    return "; ".join(sentences[:3]) + rest + "."
