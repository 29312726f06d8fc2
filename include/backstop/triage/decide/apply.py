"""Decides the open letters that are due, and applies it: a bounded batch is one transaction of the control database.

    letters | gather_evidence | decide (pure) | letters as they were seen? requests, cases, letters together | commit

The evidence of the next batch is read while this one is applied. A crash loses a look. Two runs at once: a letter that the other
one decided meanwhile is left alone, because it is changed only where it is still as it was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg2

from backstop.cases.close import close_settled, settle
from backstop.cases.open import open_case
from backstop.config.connections import Connections
from backstop.config.settings import Policy, Settings
from backstop.control.connection import connect
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Counts, Key
from backstop.requests.ask import TRIAGE, Ask, ask, ramped_topics
from backstop.runs.run import Run, add_counts, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.decide.decide import (
    LEFT,
    REASONS,
    Decision,
    Discard,
    Escalate,
    Facts,
    Replay,
    Wait,
    decide,
    look_again,
)
from backstop.triage.decide.evidence import (
    Evidence,
    OpenDeadLetter,
    gather_evidence,
    read_dead_letters,
)
from backstop.triage.decide.refresh_case_summary import refresh_cases, summary_of

_SQL = load("backstop.triage.decide", "decide.sql")
_BATCH = 5_000
_NAMES: Mapping[type[object], str] = {
    Discard: "discard",
    Replay: "replay",
    Escalate: "escalate",
    Wait: "wait",
}


@dataclass(frozen=True, slots=True)
class Decided:
    """A letter and what was decided of it; a dry run tells them."""

    letter: OpenDeadLetter
    decision: Decision

    def __str__(self) -> str:
        name = f"{self.letter.topic or '?'} {self.letter.message_id or '(no id)'} for {self.letter.group or 'an unknown group'}"
        match self.decision:
            case Discard(proof):
                does = "would be discarded: " + ", ".join(
                    f"{key} {value}" for key, value in proof.items() if value is not None
                )
            case Replay(reason):
                does = f"would be replayed ({reason})"
            case Escalate(reason):
                does = f"would ask a person ({reason})"
            case Wait(until, reason):
                does = f"would wait until {until.isoformat(timespec='seconds')}: {reason}"
        return f"letter {self.letter.dead_letter_id}, {name}: {does}"


def decide_and_apply(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    *,
    tell: Callable[[Decided], None] = lambda _: None,
) -> Counts:
    """Returns `discarded`, `replaying`, `escalated`, `waits`, `moved_on`, `cases_closed` and what ask() counts.

    A dry run only tells. Raises RunLost; Unavailable, after all else was done, when something did not answer, or the database
    refused what was decided of a dead letter: what needed it waits.
    """
    counts, touched = Counts(), set[int]()
    undecidable: dict[str, str] = {}
    with control, control.cursor() as cur:
        hold(cur, run)
        cur.execute(_SQL["clock"])
        cut = cur.fetchone()[0]
    with (
        Sources(settings, connections) as sources,
        closing(connect(settings, connections)) as reading,
        ThreadPoolExecutor(1, "evidence") as reader,
    ):
        ahead = reader.submit(_read_batch, reading, settings, sources, run, cut, 0)
        while (read := ahead.result()) is not None:
            letters, look = read
            after = letters[-1].dead_letter_id
            ahead = reader.submit(_read_batch, reading, settings, sources, run, cut, after)
            # Only now: an earlier message of a key may have been given to a person with the batch before.
            decided = decide_all(settings, control, look, letters)
            if run.dry_run:
                for one in decided:
                    tell(one)
                    counts.add(f"would_{_NAMES[type(one.decision)]}")
                continue
            done, cases = _apply_apart(control, settings, run, look, decided, undecidable)
            add_counts(control, run, done)
            counts, touched = counts + done, touched | cases
        missed = {**sources.unreachable, **undecidable}
    if not run.dry_run:
        refresh_cases(control, run, touched)
        with control, control.cursor() as cur:
            hold(cur, run)
            closed = close_settled(cur)
        if closed:
            add_counts(control, run, {"cases_closed": closed})
            counts.add("cases_closed", closed)
    if missed:
        raise Unavailable(
            "Not everything answered: "
            + "; ".join(f"{name}: {why}" for name, why in sorted(missed.items())),
            unaffected="Dead letters that needed it wait, undecided; all others were decided.",
            next_step="Bring back what is named; the next run decides them.",
        )
    return counts


def _read_batch(
    reading: Any, settings: Settings, sources: Sources, run: Run, cut: datetime, after: int
) -> tuple[list[OpenDeadLetter], Evidence] | None:
    """The next dead letters that are due, after this one, with their evidence; null: there are no more."""
    with reading, reading.cursor() as cur:
        values = {"after": after, "cut": cut, "topics": topics_of(run.scope), "limit": _BATCH}
        letters = read_dead_letters(cur, "due", values)
    return (letters, gather_evidence(reading, settings, sources, letters)) if letters else None


def decide_all(
    settings: Settings, control: Any, look: Evidence, letters: Sequence[OpenDeadLetter]
) -> list[Decided]:
    """A decision for each letter; of ordering keys, one whose earlier message a person must decide waits."""
    decisions: dict[int, Decision] = {}
    for letter in letters:
        decisions[letter.dead_letter_id] = decide(
            look.facts[letter.dead_letter_id], policy_of(settings, letter)
        )
    behind = {key: look.befores[key] for letter in letters if (key := letter.key) in look.befores}
    if behind:
        asked = {
            letter.key
            for letter in letters
            if isinstance(decisions[letter.dead_letter_id], Escalate)
        }
        wanted = sorted(set(behind.values()))
        with control, control.cursor() as cur:
            cur.execute(
                _SQL["escalated"],
                {"topics": [k.topic for k in wanted], "ids": [k.message_id for k in wanted]},
            )
            asked |= {Key(*row) for row in cur.fetchall()}
        for letter in letters:
            if letter.key in behind and behind[letter.key] in asked:
                facts = replace(
                    look.facts[letter.dead_letter_id], before=behind[letter.key].message_id
                )
                decisions[letter.dead_letter_id] = decide(facts, policy_of(settings, letter))
    return [Decided(letter, decisions[letter.dead_letter_id]) for letter in letters]


def policy_of(settings: Settings, letter: OpenDeadLetter) -> Policy:
    """The policy of the letter's topic and group, as far as the settings know them."""
    topic = letter.topic if letter.topic in settings.topics else None
    group = letter.group if letter.group in settings.groups else None
    if topic is not None and group not in settings.groups_of(topic):
        group = None
    return settings.policy_for(topic, group)


def _apply_apart(
    control: Any,
    settings: Settings,
    run: Run,
    look: Evidence,
    decided: Sequence[Decided],
    undecidable: dict[str, str],
) -> tuple[Counts, set[int]]:
    """As _apply, committed. Halves what the database refuses until the dead letter at fault stands alone: it is named in
    `undecidable` and stays as it was, and the others are decided."""
    try:
        with control, control.cursor() as cur:
            hold(cur, run)
            return _apply(cur, settings, run, look, decided)
    except psycopg2.DataError as error:
        if len(decided) == 1:
            why = f"its decision cannot be stored: {str(error).splitlines()[0]}"
            undecidable[f"letter {decided[0].letter.dead_letter_id}"] = why
            return Counts(), set()
    half = len(decided) // 2
    first = _apply_apart(control, settings, run, look, decided[:half], undecidable)
    second = _apply_apart(control, settings, run, look, decided[half:], undecidable)
    return first[0] + second[0], first[1] | second[1]


def _apply(
    cur: Any, settings: Settings, run: Run, look: Evidence, decided: Sequence[Decided]
) -> tuple[Counts, set[int]]:
    """(counts, cases whose letters changed); in the caller's transaction, which holds the run."""
    held = lock(cur, [one.letter for one in decided])
    counts = Counts(moved_on=len(decided) - len(held)) if len(held) < len(decided) else Counts()
    mine = [one for one in decided if one.letter.dead_letter_id in held]
    asks = [
        ask_of(one.letter, look.facts[one.letter.dead_letter_id], TRIAGE)
        for one in mine
        if isinstance(one.decision, Replay)
    ]
    counts += ask(cur, asks, run.run_id, ramped_topics(settings))
    granted = granted_requests(cur, asks)
    cases = _open_cases(cur, run, look, mine)
    rows: list[dict[str, Any]] = []
    discarded: list[OpenDeadLetter] = []
    moved: list[OpenDeadLetter] = []
    for one in mine:
        letter, policy = one.letter, policy_of(settings, one.letter)
        row: dict[str, Any] = {
            "dead_letter_id": letter.dead_letter_id,
            "state": "open",
            "decided_by": TRIAGE,
            "case_id": letter.case_id,
        }
        match one.decision:
            case Discard(proof, by):
                row |= {
                    "state": "discarded",
                    "decision": "discard",
                    "reason": why_discarded(proof),
                    "decided_by": by,
                    "proof": dict(proof),
                }
                discarded.append(letter)
                counts.add("discarded")
            case Replay(reason) if (
                number := is_granted(granted, letter.key, letter.group)
            ) is not None:
                stub = look.facts[letter.dead_letter_id].stub
                assert stub is not None
                row |= {
                    "state": "replaying",
                    "decision": "replay",
                    "reason": reason,
                    "shard": stub.shard,
                    "send_number": number,
                    "case_id": None,
                }
                counts.add("replaying")
            case Replay():
                row |= {
                    "decision": "wait",
                    "reason": "another send of it was asked for",
                    "look_at": look.as_of + policy.recheck,
                }
                counts.add("waits")
            case Escalate(reason):
                row |= {
                    "decision": "escalate",
                    "reason": reason,
                    "case_id": cases[cause_of(letter)],
                    "look_at": look_again(letter.drained_at, look.as_of, policy),
                }
                counts.add("escalated")
            case Wait(until, reason):
                # One that came after its delivery was left belongs to the same case.
                left = look.facts[letter.dead_letter_id].left if reason == LEFT else None
                row |= {
                    "decision": "wait",
                    "reason": reason,
                    "look_at": until,
                    "case_id": letter.case_id or left,
                    "left_in_case": left,
                }
                counts.add("waits")
        if letter.case_id is not None and (
            row["case_id"] != letter.case_id or row["state"] != "open"
        ):
            moved.append(letter)
        rows.append(row)
    cur.execute(_SQL["apply"], {"rows": json.dumps(rows, default=str)})
    if ended := [letter.delivery for letter in discarded if letter.delivery is not None]:
        settle(cur, ended)
    leave_cases(cur, moved)
    return counts, {
        *cases.values(),
        *(letter.case_id for letter in moved if letter.case_id is not None),
    }


def lock(cur: Any, letters: Sequence[OpenDeadLetter]) -> set[int]:
    """Numbers of those that are open and as they were seen; they stay so until the caller's transaction ends."""
    return lock_seen(cur, [seen_of(one) for one in letters])


def seen_of(letter: OpenDeadLetter) -> dict[str, Any]:
    """What tells whether it was decided, or classified again, since it was read; as JSON can hold it."""
    return {
        "dead_letter_id": letter.dead_letter_id,
        "decided_at": letter.decided_at and letter.decided_at.isoformat(),
        "classified_at": letter.classified_at and letter.classified_at.isoformat(),
    }


def lock_seen(cur: Any, seen: Sequence[Mapping[str, Any]]) -> set[int]:
    """As lock(), of letters that were read in another transaction, perhaps long ago."""
    cur.execute(_SQL["lock"], {"seen": json.dumps(list(seen))})
    return {row[0] for row in cur.fetchall()}


def ask_of(letter: OpenDeadLetter, facts: Facts, requested_by: str) -> Ask:
    """The next send of a dead letter's message, for its group. Without a route of the group's own it goes to the topic: triage has
    made sure that it may, or a person decided it."""
    assert facts.stub is not None and letter.delivery is not None
    topic, message_id, group = letter.delivery
    return Ask(
        shard=facts.stub.shard,
        topic=topic,
        message_id=message_id,
        send_number=facts.stub.send_count + 1,
        groups=(group,),
        reason=f"dead letter: {letter.category}",
        requested_by=requested_by,
        route="group" if facts.route == "group" else "topic",
    )


def granted_requests(cur: Any, asks: Sequence[Ask]) -> dict[Key, tuple[int, list[str] | None]]:
    """Of what was just asked for, the requests that are open now: their number and groups, by message."""
    cur.execute(
        _SQL["granted"],
        {
            "topics": [one.topic for one in asks],
            "ids": [one.message_id for one in asks],
            "numbers": [one.send_number for one in asks],
        },
    )
    return {
        Key(topic, message_id): (number, groups)
        for topic, message_id, number, groups in cur.fetchall()
    }


def is_granted(
    granted: Mapping[Key, tuple[int, list[str] | None]], key: Key | None, group: str | None
) -> int | None:
    """The number of the open request that reaches this message's group; null: there is none."""
    found = granted.get(key) if key is not None else None
    if found is None or (found[1] is not None and group not in found[1]):
        return None
    return found[0]


Cause = tuple[str, str, str]
"""topic, consumer_group, fingerprint, as a case names them"""


def cause_of(letter: OpenDeadLetter) -> Cause:
    return letter.topic or "", letter.group or "*", letter.fingerprint or ""


def _open_cases(cur: Any, run: Run, look: Evidence, decided: Iterable[Decided]) -> dict[Cause, int]:
    """One case for each cause, topic and group that a person must decide; in order, so that two runs cannot wait crosswise."""
    causes: dict[Cause, list[tuple[OpenDeadLetter, str]]] = {}
    for one in decided:
        if isinstance(one.decision, Escalate):
            causes.setdefault(cause_of(one.letter), []).append((one.letter, one.decision.reason))
    opened: dict[Cause, int] = {}
    for (topic, group, fingerprint), found in sorted(causes.items()):
        reasons = Counts()
        for _, reason in found:
            reasons.add(reason)
        first = found[0][0]
        opened[topic, group, fingerprint] = open_case(
            cur,
            kind="dead_letters",
            topic=topic,
            group=group,
            subject=fingerprint,
            reopens=True,
            severity="critical"
            if any(REASONS[reason].critical for reason in reasons)
            else "warning",
            summary=summary_of(topic, group, reasons),
            evidence={"template": first.shown, "rule_category": first.category, "reasons": reasons},
            members=[
                (_shard(look, letter), letter.topic, letter.message_id, letter.group or "*")
                for letter, _ in found
                if letter.topic is not None and letter.message_id is not None
            ],
            run_id=run.run_id,
        )
    return opened


def _shard(look: Evidence, letter: OpenDeadLetter) -> str:
    """Where the promise is; '' when there is none."""
    stub = look.facts[letter.dead_letter_id].stub
    return "" if stub is None else stub.shard


def leave_cases(cur: Any, letters: Sequence[OpenDeadLetter]) -> None:
    """Settles members of cases that these letters left, or in which nothing of the delivery is undecided any more."""
    gone = [
        (letter.case_id, letter.topic, letter.message_id, letter.group or "*")
        for letter in letters
        if letter.case_id is not None and letter.key is not None
    ]
    if gone:
        cur.execute(
            _SQL["leave_case"],
            {
                "cases": sorted({one[0] for one in gone}),
                "topics": [one[1] for one in gone],
                "ids": [one[2] for one in gone],
                "groups": [one[3] for one in gone],
            },
        )


def why_discarded(proof: Mapping[str, Any]) -> str:
    """The reason that is kept with a discarded dead letter."""
    return "consumed" if "log" in proof else "a person decided so"
