"""Replays an incident by hand: a stored plan is asked for, the canary's share first or all of it.

    plan (plan.py) | shown, and approved above the blast radius | requests and letters, a bounded batch a transaction

What was approved is what is asked for: numbers and groups are the plan's, so that a delivery which moved on since is only left
out. Every request is judged again when it is claimed; ramp, rate, order and pause hold as for everybody.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from backstop.cases.close import close_settled
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.control.decision_log import append
from backstop.control.speaker import people_for, require_may, settings_for
from backstop.incidents.measure_radius import is_too_wide
from backstop.incidents.plan import Plan, Wanted, digest_of, plan, read_plan
from backstop.model.errors import DecisionRefused
from backstop.model.records import Counts, Key
from backstop.requests.ask import Ask, ask, by_incident, ramped_topics
from backstop.runs.duty import Duty, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER, Run, hold
from backstop.runs.scope import name_of
from backstop.sql.named import load
from backstop.triage.decide.apply import granted_requests, is_granted, leave_cases, lock_seen
from backstop.triage.decide.evidence import read_dead_letters

__all__ = ["DUTY", "Mode", "Plan", "Wanted", "execute", "plan", "read_plan", "run_incident"]

DUTY = "incident"
Mode = Literal["dry_run", "canary", "full"]
_SQL = load("backstop.incidents", "queries.sql")
_APPLY = load("backstop.triage.decide", "decide.sql")["apply"]
_BATCH = 1_000
_DECIDED = "its dead letter was decided or classified again meanwhile"
_DIED = "it has a dead letter that the plan does not know"
_ASKED = "its send was asked for already"


def execute(
    settings: Settings,
    control: Any,
    run: Run,
    incident_id: int,
    mode: Mode,
    who: str,
    *,
    approved: bool,
) -> Counts:
    """Asks for what is planned and was not asked for yet; safe to run twice. `run`: any open run, which fences the writes.

    canary: the first deliveries, as many as the topic's canary; full: all. `approved`: a person saw the plan and said yes;
    without it nothing of a plan above the blast radius is asked for. Where all of an incident takes two people, so do canaries
    that together are more than the blast radius. Raises DecisionRefused, RunLost.
    """
    found, counts, after = read_plan(control, incident_id), Counts(), 0
    if mode == "dry_run":
        return counts
    settings = settings_for(control, settings)
    if not settings.is_repaired(found.topic):
        raise _refused(
            f"Topic {found.topic} is not in mode repair any more.",
            "Set its mode to repair in backstop.yaml.",
        )
    if not found.whole:
        raise _refused(f"The planning of {incident_id} was cut short.", "Plan it again.")
    until = max(1, settings.policy_for(found.topic).canary) if mode == "canary" else None
    with control, control.cursor() as cur:
        # Other plans may have asked for as much since it was made; canaries of one plan after another add up.
        wide = found.too_wide or is_too_wide(cur, settings, run, incident_id)
        goes_far = until is None or (wide and is_too_wide(cur, settings, run, incident_id, until))
    if wide and not approved:
        raise _refused(
            f"Plan {incident_id} holds {found.total} messages, more than the blast radius allows without an approval.",
            f"Read it, then approve its canary: backstop replay --plan {incident_id} --canary --approve DIGEST",
        )
    if not who.strip():
        raise _refused("A replay by hand needs a name.", "Say who asks (--by).")
    require_may(control, settings, who, "replay", found.topic)
    people = people_for(control, settings)
    if goes_far and "full_replay" in people.second_person:
        what = "all of it" if until is None else "so much within the window of the blast radius"
        if found.planner_is_unknown:
            raise _refused(
                f"Plan {incident_id} was made after its run was cleared, and nobody knows by whom: {what} goes out when somebody"
                " other than the planner approves it (people.second_person).",
                "Make another plan.",
            )
        if not approved or people.is_same(who, found.planned_by):
            raise _refused(
                f"Plan {incident_id} is {found.planned_by}'s: {what} goes out when somebody else approves it (people.second_person).",
                f"Let them approve it: backstop replay --plan {incident_id} --{mode} --approve DIGEST, or the form in Airflow.",
            )
    subject = f"plan {incident_id} of {found.topic}"
    if approved:
        with control, control.cursor() as cur:
            hold(cur, run)
            cur.execute(
                _SQL["approve"], {"run_id": incident_id, "who": who, "full": mode == "full"}
            )
            append(cur, who, f"approve ({mode})", subject, found.why, {})
    while True:
        with control, control.cursor() as cur:
            hold(cur, run)
            cur.execute(
                _SQL["next"],
                {"run_id": incident_id, "after": after, "until": until, "limit": _BATCH},
            )
            rows = cur.fetchall()
            if not rows:
                break
            after = rows[-1][0]
            asked = _ask_for(cur, settings, run, incident_id, who, found.rate, rows)
            append(cur, who, f"begin to replay ({mode})", subject, found.why, asked)
        counts += asked
    with control, control.cursor() as cur:
        hold(cur, run)
        close_settled(cur)
        if counts:
            recorded = {**counts, "approved": approved}
            append(cur, who, f"replay ({mode})", subject, found.why, recorded)
    return counts


def _ask_for(
    cur: Any,
    settings: Settings,
    run: Run,
    incident_id: int,
    who: str,
    rate: float | None,
    rows: list[tuple[Any, ...]],
) -> Counts:
    places = [row[0] for row in rows]
    # A letter that was left, decided or classified again since the plan, or that came since, is not what was approved.
    held = lock_seen(cur, [one for row in rows for one in row[9]])
    cur.execute(_SQL["other_letters"], {"run_id": incident_id, "places": places})
    others = {place for (place,) in cur.fetchall()}
    left = {
        row[0]: _DIED if row[0] in others else _DECIDED
        for row in rows
        if row[0] in others or not held.issuperset(row[8])
    }
    wanted = [row for row in rows if row[0] not in left]
    asks = [
        Ask(
            shard, topic, message_id, number, (group,), reason, by_incident(who, incident_id), route
        )
        for _, shard, topic, message_id, group, number, route, reason, _, _ in wanted
    ]
    counts = ask(cur, asks, run.run_id, ramped_topics(settings))
    if left:
        counts.add("moved_on", len(left))
    granted = granted_requests(cur, asks)
    left |= {row[0]: _ASKED for row in wanted if Key(row[2], row[3]) not in granted}
    numbers = [number for row in wanted for number in row[8]]
    letters = (
        read_dead_letters(cur, _SQL["planned_letters"], {"letters": numbers}) if numbers else []
    )
    shards = {(row[2], row[3]): row[1] for row in wanted}
    changed: list[dict[str, Any]] = []
    for letter in letters:
        number = is_granted(granted, letter.key, letter.group)
        if letter.key is not None and number is not None:
            changed.append(
                {
                    "dead_letter_id": letter.dead_letter_id,
                    "state": "replaying",
                    "decision": "replay",
                    "decided_by": who,
                    "reason": f"incident {incident_id}",
                    "shard": shards[letter.key],
                    "send_number": number,
                    "case_id": None,
                    "answered": True,
                }
            )
            counts.add("replaying")
    cur.execute(_APPLY, {"rows": json.dumps(changed)})
    leave_cases(cur, letters)
    asked = [place for place in places if place not in left]
    cur.execute(
        _SQL["left_out"], {"run_id": incident_id, "places": list(left), "whys": list(left.values())}
    )
    cur.execute(_SQL["asked"], {"run_id": incident_id, "places": asked})
    if rate is not None and asked:
        cur.execute(_SQL["pace"], {"run_id": incident_id, "places": asked, "rate": rate})
    return counts


@dataclass(frozen=True, slots=True)
class IncidentInput:
    """`wanted`: what to plan, or the number of a stored plan. `approved`: somebody said yes to it; a text is the digest of what
    they saw. `plans`: the plan that was found or made."""

    wanted: Wanted | int
    mode: Mode
    who: str
    approved: bool | str = False
    show: Callable[[Plan], None] = lambda _: None
    plans: list[Plan] = field(default_factory=list)


def find_plan(work: Work[IncidentInput]) -> None:
    """Plans, or takes the stored plan, and shows it. DecisionRefused when another plan was approved."""
    given = work.input
    found = (
        read_plan(work.control, given.wanted)
        if isinstance(given.wanted, int)
        else plan(*work.parts, given.wanted)
    )
    found = replace(found, digest=digest_of(work.control, found.incident_id))
    given.plans.append(found)
    given.show(found)
    if isinstance(given.approved, str) and given.approved != found.digest:
        raise _refused(
            f"What was approved ({given.approved}) is not what plan {found.incident_id} holds ({found.digest}).",
            f"Look at it again, and name its digest: backstop replay --plan {found.incident_id}",
        )


def request_planned(work: Work[IncidentInput]) -> Counts:
    """Requests what the plan holds, as the mode says."""
    given, number = work.input, work.input.plans[0].incident_id
    return execute(
        work.settings,
        work.control,
        work.run,
        number,
        given.mode,
        given.who,
        approved=bool(given.approved),
    )


INCIDENT = Duty(
    DUTY,
    steps=(Step("plan", find_plan), Step("request", request_planned, in_dry_run=False)),
    people=lambda _, dry_run: True,
    unaffected="What was requested is stored with its plan, and is requested once.",
    next_step="Bring it back, then give the same command with the plan's number (--plan).",
)


def run_incident(
    settings: Settings,
    connections: Connections,
    wanted: Wanted | int,
    mode: Mode,
    who: str,
    *,
    approved: bool | str = False,
    show: Callable[[Plan], None] = lambda _: None,
    dead_after: timedelta = DEAD_AFTER,
) -> tuple[Plan, Counts]:
    """The whole duty in this process, as `walk_duty`; returns the plan as it is afterwards."""
    with closing(connect(settings, connections)) as control:
        topic = read_plan(control, wanted).topic if isinstance(wanted, int) else wanted.topic
    given = IncidentInput(wanted, mode, who, approved, show)
    counts = walk_duty(
        INCIDENT,
        settings,
        connections,
        given,
        scope=name_of([topic]),
        dry_run=mode == "dry_run",
        dead_after=dead_after,
    ).counts
    with closing(connect(settings, connections)) as control:
        found = given.plans[0]
        return replace(read_plan(control, found.incident_id), digest=found.digest), counts


def _refused(what: str, next_step: str) -> DecisionRefused:
    return DecisionRefused(what, unaffected="Nothing was asked for.", next_step=next_step)
