"""Plans a replay by hand: which deliveries of a window go out, which are left out and why; stored, so that what is shown is
what runs.

Two ways to choose: by verdict (of a reconcile run, judged again now), or by dead letters (their causes, or all of them). Nothing
is sent, and no budget is raised: what has used up its sends, or must not be repeated, is its case's matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from psycopg2.extras import execute_values

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.decision_log import require_short
from backstop.control.speaker import settings_for
from backstop.evidence.judge_by_key import Judge, Judged, Judgement
from backstop.evidence.sources import Sources
from backstop.incidents.measure_radius import is_too_wide
from backstop.model.errors import DecisionRefused, StoreUnavailable
from backstop.model.records import Category, Counts, Key, Verdict
from backstop.requests.ask import route_for
from backstop.runs.run import Run, hold
from backstop.sql.named import load
from backstop.triage.decide.apply import policy_of, seen_of
from backstop.triage.decide.decide import Facts, budget_used, is_conflict, is_done
from backstop.triage.decide.evidence import OpenDeadLetter, gather_evidence, read_dead_letters
from backstop.triage.decide.fits_answer import why_not

_SQL = load("backstop.incidents", "queries.sql")
_BATCH = 1_000
_EXAMPLES = 5
_NO_DUPLICATES = "a copy would reach a group that it might harm: decide it by its case"
_USED_UP = "its sends are used up: its case allows more"
CLEARED = "whoever cleared the run of "
"""Begins `planned_by` where a cleared run in Airflow made the plan: Airflow does not say who cleared it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person wants replayed. The window is of created_at for verdicts, of the death for dead letters; null: open."""

    topic: str
    who: str
    why: str
    start: datetime | None = None
    end: datetime | None = None
    verdicts: tuple[str, ...] = ()
    causes: tuple[int, ...] = ()
    category: str | None = None
    """Of dead letters."""
    case: int | None = None
    """Likewise."""
    group: str | None = None
    limit: int | None = None
    rate: float | None = None
    """Messages a second, below the topic's own limit."""
    planned_in: str | None = None
    """The run in Airflow; null: by command line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A stored plan. `too_wide`: more than the blast radius of the policy; a second look is asked before all of it runs.
    Not `whole`: its planning was cut short, and nothing of it is asked for."""

    incident_id: int
    topic: str
    planned_by: str
    why: str
    total: int
    asked: int
    to_ask: int
    """Those that were neither asked for yet nor left out when they were to be."""
    counts: Counts
    """"<group>: <reason>" -> deliveries."""
    examples: tuple[str, ...]
    left_out: Counts
    """Why -> deliveries: those that were not planned, and those that moved on before they were asked for."""
    whole: bool
    too_wide: bool
    rate: float | None
    digest: str = ""
    """Of the deliveries, as they are sent (`digest_of`): who says yes names it; what changed since has another."""

    @property
    def planner_is_unknown(self) -> bool:
        """Whether a cleared run made it: whoever approves it may be its planner."""
        return self.planned_by.startswith(CLEARED)


@dataclass(slots=True)
class _Collected:
    left_out: Counts = field(default_factory=Counts)
    total: int = 0

    def room(self, limit: int | None) -> bool:
        return limit is None or self.total < limit


@dataclass(frozen=True, slots=True)
class _Fits:
    shard: str
    topic: str
    message_id: str
    group: str
    send_number: int
    route: str
    reason: str
    letters: tuple[OpenDeadLetter, ...] = ()


def plan(
    settings: Settings, connections: Connections, control: Any, run: Run, wanted: Wanted
) -> Plan:
    """Stores and returns the plan; its number is the run's. Commits page by page.

    Raises DecisionRefused for what cannot be planned, StoreUnavailable when the present state could not be read, RunLost.
    """
    settings = settings_for(control, settings)
    _check(settings, wanted)
    with control, control.cursor() as cur:
        hold(cur, run)
        _check_causes(cur, wanted.causes)
        _check_case(cur, wanted.case)
        cur.execute(
            _SQL["begin"],
            {
                "run_id": run.run_id,
                "who": wanted.who,
                "why": wanted.why,
                "wanted": json.dumps(
                    {
                        **asdict(wanted),
                        "start": wanted.start and wanted.start.isoformat(),
                        "end": wanted.end and wanted.end.isoformat(),
                    }
                ),
            },
        )
        if wanted.planned_in is not None:
            cur.execute(_SQL["plan_in"], {"run_id": run.run_id, "planned_in": wanted.planned_in})
    collected = _Collected()
    by_letter = bool(wanted.causes) or str(Verdict.DEAD_LETTERED) in wanted.verdicts
    verdicts = tuple(verdict for verdict in wanted.verdicts if verdict != Verdict.DEAD_LETTERED)
    pages = _by_letter(settings, connections, control, wanted, collected) if by_letter else iter(())
    for page in pages:
        _store(control, run, page, wanted, collected)
    if verdicts:
        with Judge(settings, connections, control) as judge:
            for page in _by_verdict(
                settings, control, judge, wanted, verdicts, collected, run.as_of
            ):
                _store(control, run, page, wanted, collected)
    with control, control.cursor() as cur:
        hold(cur, run)
        cur.execute(
            _SQL["end"],
            {
                "run_id": run.run_id,
                "left_out": json.dumps(collected.left_out),
                "too_wide": is_too_wide(cur, settings, run, run.run_id),
            },
        )
    return read_plan(control, run.run_id)


def read_plan(control: Any, incident_id: int) -> Plan:
    """A stored plan as it is now; DecisionRefused when there is none of this number."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["read"], {"run_id": incident_id})
        row = cur.fetchone()
        if row is None:
            raise DecisionRefused(
                f"There is no plan {incident_id}.",
                unaffected="Nothing was asked for.",
                next_step="Make one: backstop replay --dry-run",
            )
        who, why, wanted, whole, wide, left_out = row
        cur.execute(_SQL["read_counts"], {"run_id": incident_id})
        found = cur.fetchall()
        cur.execute(_SQL["read_left_out"], {"run_id": incident_id})
        moved_on = Counts(dict(cur.fetchall()))
        cur.execute(_SQL["read_examples"], {"run_id": incident_id, "limit": _EXAMPLES})
        examples = tuple(message_id for (message_id,) in cur.fetchall())
    counts = Counts({f"{group}: {reason}": number for group, reason, number, *_ in found})
    total, asked, gone = (sum(row[place] for row in found) for place in (2, 3, 4))
    return Plan(
        incident_id,
        wanted["topic"],
        who,
        why,
        total,
        asked,
        total - asked - gone,
        counts,
        examples,
        Counts(left_out) + moved_on,
        whole,
        wide,
        wanted["rate"],
    )


def digest_of(control: Any, incident_id: int) -> str:
    """One short text for what a plan would send; it reads the whole plan."""
    with control, control.cursor() as cur:
        cur.execute(_SQL["digest"], {"run_id": incident_id})
        return str(cur.fetchone()[0])


def _check(settings: Settings, wanted: Wanted) -> None:
    if wanted.topic not in settings.topics:
        raise _refused(
            f"There is no topic {wanted.topic!r}.", f"Name one of: {', '.join(settings.topics)}."
        )
    if wanted.group is not None and wanted.group not in settings.groups_of(wanted.topic):
        raise _refused(
            f"{wanted.group!r} does not take {wanted.topic}.", "Name a group of the topic, or none."
        )
    if not settings.is_repaired(wanted.topic):
        raise _refused(
            f"Topic {wanted.topic} is in mode observe, in which nothing is ever sent.",
            "Set its mode to repair in backstop.yaml.",
        )
    allowed = {
        str(verdict)
        for verdict in (Verdict.LOST, Verdict.UNSENT, Verdict.STALLED, Verdict.DEAD_LETTERED)
    }
    if not wanted.verdicts and not wanted.causes:
        raise _refused(
            "Neither verdicts nor causes are named.",
            "Name verdicts or causes (--verdict, --cause).",
        )
    if unknown := sorted(set(wanted.verdicts) - allowed):
        raise _refused(
            f"{', '.join(unknown)} is not replayed by hand.",
            f"Name some of: {', '.join(sorted(allowed))}.",
        )
    if (wanted.category is not None or wanted.case is not None) and not (
        set(wanted.verdicts) <= {str(Verdict.DEAD_LETTERED)}
    ):
        raise _refused(
            "A category and a case choose among dead letters only.",
            f"Name causes or the verdict {Verdict.DEAD_LETTERED}, and no other verdict.",
        )
    if wanted.category is not None and wanted.category not in list(Category):
        raise _refused(
            f"There is no category {wanted.category!r}.", f"Name one of: {', '.join(Category)}."
        )
    if not wanted.who.strip() or not wanted.why.strip():
        raise _refused(
            "A replay by hand needs a name and a reason.", "Say who asks (--by) and why (--why)."
        )
    require_short(wanted.who, wanted.why)  # what is asked for goes into the log with it
    for name, number in (("limit", wanted.limit), ("rate", wanted.rate)):
        if number is not None and not 0 < number < math.inf:
            raise _refused(f"The {name} is {number:g}.", f"Give a {name} of more than 0, or none.")
    if wanted.start is not None and wanted.end is not None and wanted.start >= wanted.end:
        raise _refused(
            f"The window from {wanted.start} to {wanted.end} holds nothing.",
            "Let it begin before it ends.",
        )


def _check_causes(cur: Any, causes: Sequence[int]) -> None:
    """A cause that is not there would make an empty plan, as if nothing had died of it."""
    cur.execute(_SQL["unknown_causes"], {"causes": list(causes)})
    if unknown := [str(cause_id) for (cause_id,) in cur.fetchall()]:
        raise _refused(
            f"There is no cause {', '.join(unknown)}.", "See: backstop dead-letters causes --all"
        )


def _check_case(cur: Any, case: int | None) -> None:
    """Nor has a case of another kind any dead letters."""
    if case is None:
        return
    cur.execute(_SQL["case_of_dead_letters"], {"case_id": case})
    if cur.fetchone() is None:
        raise _refused(
            f"There is no case {case} of dead letters.",
            "See: backstop cases list --kind dead_letters --all",
        )


def _by_letter(
    settings: Settings,
    connections: Connections,
    control: Any,
    wanted: Wanted,
    collected: _Collected,
) -> Iterator[list[_Fits]]:
    after = 0
    with Sources(settings, connections) as sources:
        while collected.room(wanted.limit):
            with control, control.cursor() as cur:
                letters = read_dead_letters(
                    cur,
                    _SQL["letters"],
                    {
                        "after": after,
                        "topic": wanted.topic,
                        "group": wanted.group,
                        "causes": list(wanted.causes) or None,
                        "category": wanted.category,
                        "case": wanted.case,
                        "start": wanted.start,
                        "end": wanted.end,
                        "limit": _BATCH,
                    },
                )
            if not letters:
                return
            after = letters[-1].dead_letter_id
            look = gather_evidence(control, settings, sources, letters)
            fits: dict[tuple[str, str, str], _Fits] = {}
            for letter in letters:
                facts = look.facts[letter.dead_letter_id]
                if facts.unread is not None:
                    raise _away(facts.unread)
                if (reason := _left_out(settings, letter, facts)) is not None:
                    collected.left_out.add(reason)
                    continue
                assert letter.delivery is not None and facts.stub is not None
                before = fits[letter.delivery].letters if letter.delivery in fits else ()
                fits[letter.delivery] = _Fits(
                    facts.stub.shard,
                    *letter.delivery,
                    facts.stub.send_count + 1,
                    facts.route or "topic",
                    f"dead letter: {letter.category or 'not classified'}",
                    (*before, letter),
                )
            yield list(fits.values())


def _left_out(settings: Settings, letter: OpenDeadLetter, facts: Facts) -> str | None:
    if facts.discarded is not None:
        return "a person gave it up"
    if is_done(facts) and not is_conflict(facts):
        return "it is done: the next triage discards its dead letter"
    if facts.left is not None:
        return "a person left it on purpose: answer its case"
    policy = policy_of(settings, letter)
    if (reason := why_not("replay", facts, policy)) is not None:
        return reason
    if facts.stub is not None and budget_used(facts.stub, policy):
        return _USED_UP
    return _NO_DUPLICATES if facts.route is None or facts.duplicates == "no" else None


def _by_verdict(
    settings: Settings,
    control: Any,
    judge: Judge,
    wanted: Wanted,
    verdicts: Sequence[str],
    collected: _Collected,
    as_of: datetime,
) -> Iterator[list[_Fits]]:
    after = ""
    with control, control.cursor() as cur:
        cur.execute(_SQL["first_run"], {"since": _judged_since(settings, wanted, as_of)})
        (first,) = cur.fetchone()
    while collected.room(wanted.limit):
        with control, control.cursor() as cur:
            cur.execute(
                _SQL["candidates"],
                {
                    "first": first,
                    "topic": wanted.topic,
                    "group": wanted.group,
                    "verdicts": list(verdicts),
                    "after": after,
                    "limit": _BATCH,
                },
            )
            groups = {message_id: set(found) for message_id, found in cur.fetchall()}
        if not groups:
            return
        after = list(groups)[-1]  # in the order of the database, not of Python
        seen = judge.judgement([Key(wanted.topic, message_id) for message_id in groups])
        if seen.unreachable:
            raise _away(", ".join(sorted(seen.unreachable)))
        known: dict[Key, dict[str, str]] = {}
        for one in seen.judged:
            known.setdefault(one.key, {})[one.consumer_group] = str(one.verdict)
        page: list[_Fits] = []
        for one in seen.judged:
            if one.consumer_group not in groups[one.message_id] or not _in_window(
                seen.stubs[one.key].created_at, wanted
            ):
                continue
            route = route_for(
                judge.sources, one.topic, frozenset({one.consumer_group}), known[one.key]
            )
            if (reason := _not_eligible(settings, one, seen, verdicts, route)) is not None:
                collected.left_out.add(reason)
                continue
            page.append(
                _Fits(
                    one.shard,
                    one.topic,
                    one.message_id,
                    one.consumer_group,
                    one.send_count + 1,
                    route or "topic",
                    f"{one.verdict}: {one.reason}",
                )
            )
        yield page


def _judged_since(settings: Settings, wanted: Wanted, as_of: datetime) -> datetime:
    """No run before it has a verdict of a message that may be replayed: younger than the replay horizon, and in the window."""
    policies = [
        settings.policy_for(wanted.topic, group) for group in settings.groups_of(wanted.topic)
    ]
    oldest = as_of - max((policy.replay_horizon for policy in policies), default=timedelta(0))
    skew = max((policy.max_clock_skew for policy in policies), default=timedelta(0))
    return max(oldest, wanted.start or oldest) - skew


def _in_window(created: datetime, wanted: Wanted) -> bool:
    return (wanted.start is None or created >= wanted.start) and (
        wanted.end is None or created < wanted.end
    )


def _not_eligible(
    settings: Settings, one: Judged, seen: Judgement, verdicts: Sequence[str], route: str | None
) -> str | None:
    if len(seen.shards_of[one.key]) > 1:
        return "it is on more than one shard; fix that first"
    if one.verdict == Verdict.EXHAUSTED:
        return "its sends are used up, or it is too old: decide its case"
    if str(one.verdict) not in verdicts:
        return f"it is {one.verdict} now"
    if route is None or settings.groups[one.consumer_group].duplicates == "no":
        return _NO_DUPLICATES
    return None if one.eligible else f"it is {one.verdict}, and not to be sent yet: {one.reason}"


def _store(
    control: Any, run: Run, page: Sequence[_Fits], wanted: Wanted, collected: _Collected
) -> None:
    with control, control.cursor() as cur:
        hold(cur, run)
        cur.execute(
            _SQL["planned"],
            {
                "run_id": run.run_id,
                "topic": wanted.topic,
                "ids": [one.message_id for one in page],
                "groups": [one.group for one in page],
            },
        )
        planned = set(cur.fetchall())
        again = [one for one in page if (one.message_id, one.group) in planned and one.letters]
        if again:
            cur.execute(
                _SQL["add_letters"],
                {
                    "run_id": run.run_id,
                    "rows": json.dumps(
                        [
                            {
                                "topic": one.topic,
                                "message_id": one.message_id,
                                "consumer_group": one.group,
                                "letters": [letter.dead_letter_id for letter in one.letters],
                                "seen": [seen_of(letter) for letter in one.letters],
                            }
                            for one in again
                        ]
                    ),
                },
            )
        new = [one for one in page if (one.message_id, one.group) not in planned]
        rows = [
            (
                run.run_id,
                collected.total + place,
                one.shard,
                one.topic,
                one.message_id,
                one.group,
                one.send_number,
                one.route,
                one.reason,
                [letter.dead_letter_id for letter in one.letters],
                json.dumps([seen_of(letter) for letter in one.letters]),
            )
            for place, one in enumerate(
                new if wanted.limit is None else new[: wanted.limit - collected.total], start=1
            )
        ]
        if rows:
            places = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s::jsonb)"
            execute_values(cur, _SQL["plan"], rows, template=places, page_size=_BATCH)
    collected.total += len(rows)


def _away(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The present state could not be read: {what} did not answer.",
        unaffected="Nothing was asked for; the plan is not whole.",
        next_step="Bring it back, then plan again.",
    )


def _refused(what: str, next_step: str) -> DecisionRefused:
    return DecisionRefused(
        what, unaffected="Nothing was planned or asked for.", next_step=next_step
    )
