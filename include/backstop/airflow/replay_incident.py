"""What the tasks of the DAG `replay_incident` do: plan, show the plan to somebody who says yes or no, ask for what was shown.

Plan and answer are in the database, by the run that made them: what was approved is what runs, however long it took, and what
tasks hand to one another decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, task

from backstop.airflow.ask_person import Answer
from backstop.airflow.control_room import Room, control_room, log_errors
from backstop.airflow.deciders import deciders, is_young, login_of, may_decide, may_trigger
from backstop.airflow.links import PREFIX, base_url
from backstop.airflow.wake import WORK, wake_duties

if TYPE_CHECKING:
    from backstop.incidents.replay import Mode, Plan

NO = "do nothing"
log = logging.getLogger(__name__)


@task(execution_timeout=timedelta(hours=1))
def plan(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """In the name of who triggered the run; in an old one, whose first plan may have been purged, of nobody who is known."""
    from backstop.incidents.plan import CLEARED

    run = context["dag_run"]
    who = login_of(run) or ""
    if who and not is_young(run):
        who = f"{CLEARED}{who}"
    return store_plan(params, who, context["run_id"])


@log_errors
def store_plan(params: Mapping[str, Any], who: str, dag_run_id: str) -> dict[str, Any]:
    """Stores the plan; nothing is asked for. What it returns is for people who look: no task reads it.

    Raises AirflowFailException for what cannot be planned, Unavailable when the present state could not be read.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.incidents.approve_plan import planned_in
    from backstop.incidents.plan import CLEARED
    from backstop.incidents.replay import Wanted, run_incident
    from backstop.model.errors import ConfigurationError, DecisionRefused

    try:
        start, end = _instant("from", params["from"]), _instant("to", params["to"])
    except ConfigurationError as error:
        raise AirflowFailException(str(error)) from error
    with control_room() as room:
        if planned_in(room.control, dag_run_id)[1]:
            # Airflow does not tell a task who cleared its run.
            who = f"{CLEARED}{who.removeprefix(CLEARED)}"
        try:
            wanted = Wanted(
                topic=str(params["topic"]),
                who=who,
                why=str(params["why"] or ""),
                start=start,
                end=end,
                verdicts=tuple(params["verdicts"] or ()),
                causes=tuple(params["causes"] or ()),
                category=params.get("category"),
                case=params.get("case"),
                group=params["group"],
                limit=params["limit"],
                rate=params["rate"],
                planned_in=dag_run_id,
            )
            found, _ = run_incident(room.settings, room.connections, wanted, "dry_run", who)
        except DecisionRefused as error:
            raise AirflowFailException(str(error)) from error
    shown = {
        "plan": found.incident_id,
        "topic": found.topic,
        "total": found.total,
        "counts": dict(found.counts),
        "left_out": dict(found.left_out),
        "examples": list(found.examples),
        "too_wide": found.too_wide,
        "why": found.why,
        "by": found.planned_by,
    }
    log.info("backstop: plan %s", shown)
    return shown


def _instant(field: str, text: str | None) -> Any:
    """Airflow does not check what its form calls a date-time; one without a zone would be read in the database's."""
    from backstop.config.instant import read_instant

    return read_instant(field, text) if text else None


def ask_for_approval(context: Any) -> dict[str, Any]:
    """The form that shows the plan; skipped when nothing goes out, or a few within the radius for who may decide."""
    from airflow.sdk.exceptions import AirflowSkipException

    from backstop.incidents.approve_plan import show, yes_to

    mode = context["params"]["mode"]
    with control_room() as room:
        found, made = _plan_of(room, context["run_id"])
        if mode == "dry_run" or not found.total:
            raise AirflowSkipException("nothing goes out")
        _require_maker(room, found, made, mode)
        if _needs_no_yes(room, found, made, mode, context["dag_run"]):
            raise AirflowSkipException("a canary within the blast radius")
        yes = yes_to(room.control, found.incident_id, mode)
        show(room.control, found.incident_id, yes)
        return {
            "subject": f"Plan {found.incident_id}: replay {found.total} deliveries of {found.topic} ({mode})?",
            "body": body_of(found, mode, yes),
            "options": [yes, NO],
            "params": {},
            "assigned_users": deciders(room.settings, found.topic, ["replay"]),
        }


def _plan_of(room: Room, dag_run_id: str) -> tuple[Plan, int]:
    """The newest plan that this run made, from the database, and how many it made. Raises AirflowFailException."""
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.incidents.approve_plan import planned_in
    from backstop.incidents.plan import read_plan

    incident_id, made = planned_in(room.control, dag_run_id)
    if incident_id is None:
        raise AirflowFailException(
            "This run has made no plan: clear its task `plan` with what follows it."
        )
    return read_plan(room.control, incident_id), made


def _needs_no_yes(room: Room, found: Plan, made: int, mode: str, dag_run: Any) -> bool:
    """A canary within the radius, for who may decide. Not where `plan` ran again, nor in an old run: who cleared it is not who
    triggered it."""
    if mode != "canary" or made != 1 or found.too_wide or not is_young(dag_run):
        return False
    return may_trigger(room.settings, login_of(dag_run), "replay", found.topic)


def _require_maker(room: Room, found: Plan, made: int, mode: str) -> None:
    """Raises AirflowFailException for all of a plan of which nobody knows who made it, where somebody else must say yes."""
    from airflow.sdk.exceptions import AirflowFailException

    unknown = made > 1 or found.planner_is_unknown
    if unknown and mode == "full" and "full_replay" in room.settings.people.second_person:
        raise AirflowFailException(
            f"Plan {found.incident_id} was made after this run was cleared, or a day after it was triggered, and Airflow does not"
            " say by whom: somebody other than its planner must say yes. Nothing was asked for. Trigger another run."
        )


def receive_approval(context: Any, answer: Answer) -> None:
    """Keeps the answer with the plan that it was shown with."""
    from backstop.incidents.approve_plan import receive

    with control_room() as room:
        receive(room.control, _plan_of(room, context["run_id"])[0].incident_id, answer)


def body_of(found: Plan, mode: str, yes: str) -> str:
    """The plan as Markdown; ids and reasons stand in code."""
    from backstop.decisions.question_text import code

    by = f"planned by {code(found.planned_by)}: {code(found.why)}"
    lines = [f"**{found.total}** deliveries of {code(found.topic)}, {by}", ""]
    lines += [f"- {number} to {code(name)}" for name, number in sorted(found.counts.items())]
    lines += [
        f"- left out {number}: {code(reason)}" for reason, number in sorted(found.left_out.items())
    ]
    if found.examples:
        lines += ["", "For example " + ", ".join(code(one) for one in found.examples) + "."]
    if found.too_wide:
        lines += ["", "**This is more than the blast radius of the policy.**"]
    what = (
        "only the first few, the policy's canary"
        if mode == "canary"
        else "all of it, in the steps of the ramp"
    )
    lines += ["", f"- **{yes}**: asks for {what}; each is judged again before it goes out"]
    lines += [f"- **{NO}**: ends here", ""]
    page = f"{base_url()}{PREFIX}/runs/{found.incident_id}"
    lines.append(f"[The run of the plan]({page}), or `backstop replay --plan {found.incident_id}`.")
    return "\n".join(lines)


# No approval may have been needed.
@task(
    trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    execution_timeout=timedelta(hours=1),
    outlets=[WORK],
)
def replay(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """In the name of who said yes, else of who planned."""
    done = request_planned(context["run_id"], params["mode"], context["dag_run"])
    wake_duties(context)
    return done


@log_errors
def request_planned(dag_run_id: str, mode: Mode, dag_run: Any) -> dict[str, Any]:
    """Asks for what the plan of this run holds; safe to run twice. `dag_run`: Airflow's record of it.

    Raises AirflowSkipException when nothing is to go out, or the answer was no or came from somebody who may not decide;
    AirflowFailException when a yes is needed and nobody gave it to this plan in this mode.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from backstop.incidents.approve_plan import given, yes_to
    from backstop.incidents.replay import run_incident
    from backstop.model.errors import DecisionRefused

    with control_room() as room:
        found, made = _plan_of(room, dag_run_id)
        if mode == "dry_run" or not found.total:
            raise AirflowSkipException("nothing goes out")
        _require_maker(room, found, made, mode)
        answer, who = given(room.control, found.incident_id), found.planned_by
        if answer is not None:
            who = str(answer["user_name"] or "")
            if not may_decide(room.settings, answer["user_id"], "replay", found.topic):
                raise AirflowSkipException(
                    f"{who or 'nobody'} may not decide to replay {found.topic}"
                )
            if answer["option"] == NO:
                raise AirflowSkipException(f"{who} said no")
        if answer is None and not _needs_no_yes(room, found, made, mode, dag_run):
            raise AirflowFailException(
                f"Nobody was asked about plan {found.incident_id}, or nobody has answered. Nothing was asked for."
                " Clear `approve` with what follows it: the form shows the plan."
            )
        if answer is not None and answer["option"] != yes_to(room.control, found.incident_id, mode):
            raise AirflowFailException(
                f"{who} answered {answer['option']!r}, which is no approval of plan {found.incident_id} ({mode}). Nothing was"
                " asked for. Clear `approve` with what follows it: the form shows the plan."
            )
        try:
            _, counts = run_incident(
                room.settings,
                room.connections,
                found.incident_id,
                mode,
                who,
                approved=answer is not None,
            )
        except DecisionRefused as error:
            raise AirflowFailException(str(error)) from error
    log.info("backstop: plan %s: %s", found.incident_id, counts)
    return {"plan": found.incident_id, **counts}
