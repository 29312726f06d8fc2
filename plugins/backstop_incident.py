"""What the tasks of the DAG `replay_incident` do: plan, show the plan to somebody who says yes or no, ask for what was shown.

The plan is stored, so that what was approved is what runs, however long the approval took.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

try:
    from backstop.plugins.backstop_decide import Answer, deciders, may_decide
    from backstop.plugins.backstop_duty import control_room, told
    from backstop.plugins.backstop_links import PREFIX, base_url
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    from backstop_decide import Answer, deciders, may_decide
    from backstop_duty import control_room, told
    from backstop_links import PREFIX, base_url

NO = "do nothing"
log = logging.getLogger(__name__)


@told
def plan(params: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Stores the plan and returns what is to be shown of it; nothing is asked for.

    Raises AirflowFailException for what cannot be planned, Unavailable when the present state could not be read.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.dead_letters.replay_incident import Wanted, run_incident
    from backstop.errors import ConfigurationError, DecisionRefused

    try:
        start, end = _instant("from", params["from"]), _instant("to", params["to"])
    except ConfigurationError as error:
        raise AirflowFailException(str(error)) from error
    with control_room() as room:
        try:
            wanted = Wanted(
                topic=str(params["topic"]), who=who, why=str(params["why"] or ""), start=start, end=end,
                verdicts=tuple(params["verdicts"] or ()), causes=tuple(params["causes"] or ()),
                group=params["group"], limit=params["limit"], rate=params["rate"],
            )  # fmt: skip
            found, _ = run_incident(room.settings, room.connections, wanted, "dry_run", who)
        except DecisionRefused as error:
            raise AirflowFailException(str(error)) from error
    shown = {
        "plan": found.incident_id, "topic": found.topic, "total": found.total, "counts": dict(found.counts),
        "left_out": dict(found.left_out), "examples": list(found.examples), "too_wide": found.too_wide, "why": found.why,
        "by": found.planned_by,
    }  # fmt: skip
    log.info("backstop: plan %s", shown)
    return shown


def _instant(field: str, text: str | None) -> Any:
    """Airflow does not check what its form calls a date-time; one without a zone would be read in the database's."""
    from backstop.config.instant import read_instant

    return read_instant(field, text) if text else None


def yes_to(shown: Mapping[str, Any]) -> str:
    """The answer that lets a plan run. It names the plan: when `plan` alone is cleared, an old yes is none to the new plan."""
    return f"replay plan {shown['plan']}"


def ask_for_approval(context: Any) -> dict[str, Any]:
    """The form that shows the plan; skipped when nothing goes out, or a few within the radius for who may decide."""
    from airflow.sdk.exceptions import AirflowSkipException

    shown, mode = context["ti"].xcom_pull(task_ids="plan"), context["params"]["mode"]
    if mode == "dry_run" or not shown["total"]:
        raise AirflowSkipException("nothing goes out")
    with control_room() as room:
        if mode == "canary" and not shown["too_wide"] and may_decide(room.settings, context["dag_run"].triggering_user_name):
            raise AirflowSkipException("a canary within the blast radius")
        return {
            "subject": f"Plan {shown['plan']}: replay {shown['total']} deliveries of {shown['topic']} ({mode})?",
            "body": body_of(shown, mode),
            "options": [yes_to(shown), NO],
            "params": {},
            "assigned_users": deciders(room.settings),
        }


def body_of(shown: Mapping[str, Any], mode: str) -> str:
    """The plan as Markdown; ids and reasons stand in code."""
    from backstop.cases.question_text import code

    by = f"planned by {code(shown['by'])}: {code(shown['why'])}"
    lines = [f"**{shown['total']}** deliveries of {code(shown['topic'])}, {by}", ""]
    lines += [f"- {number} to {code(name)}" for name, number in sorted(shown["counts"].items())]
    lines += [f"- left out {number}: {code(reason)}" for reason, number in sorted(shown["left_out"].items())]
    if shown["examples"]:
        lines += ["", "For example " + ", ".join(code(one) for one in shown["examples"]) + "."]
    if shown["too_wide"]:
        lines += ["", "**This is more than the blast radius of the policy.**"]
    what = "only the first few, the policy's canary" if mode == "canary" else "all of it, in the steps of the ramp"
    lines += ["", f"- **{yes_to(shown)}**: asks for {what}; each is judged again before it goes out"]
    lines += [f"- **{NO}**: ends here", ""]
    page = f"{base_url()}{PREFIX}/runs/{shown['plan']}"
    lines.append(f"[The run of the plan]({page}), or `backstop replay --plan {shown['plan']}`.")
    return "\n".join(lines)


@told
def replay(shown: Mapping[str, Any], mode: str, answer: Answer | None, who: str, trigger: str | None) -> dict[str, Any]:
    """Asks for what the plan holds; safe to run twice. `answer` null: no approval was needed, because `trigger`, who triggered
    the run as Airflow knows them, may decide.

    Raises AirflowSkipException when nothing is to go out, or the answer was no or came from somebody who may not decide.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from backstop.dead_letters.replay_incident import run_incident
    from backstop.errors import DecisionRefused

    if mode == "dry_run" or not shown["total"]:
        raise AirflowSkipException("nothing goes out")
    with control_room() as room:
        if answer is None:
            if not may_decide(room.settings, trigger):
                raise AirflowSkipException(f"{trigger or 'nobody'} may not decide, and nobody said yes")
            if mode != "canary" or shown["too_wide"]:
                raise AirflowFailException(
                    f"Nobody was asked about plan {shown['plan']}, which was made anew since. Nothing was asked for."
                    " Clear `approve` with what follows it: the form shows the plan."
                )
        else:
            if not may_decide(room.settings, answer["user_id"]):
                raise AirflowSkipException(f"{answer['user_name'] or 'nobody'} may not decide")
            if answer["option"] == NO:
                raise AirflowSkipException(f"{answer['user_name']} said no")
            if answer["option"] != yes_to(shown):
                raise AirflowFailException(
                    f"{answer['user_name']} answered {answer['option']!r}, and the plan is {shown['plan']} now. Nothing was asked"
                    " for. Clear `approve` with what follows it: the form shows the new plan."
                )
            who = str(answer["user_name"])
        try:
            _, counts = run_incident(
                room.settings, room.connections, int(shown["plan"]), mode, who, approved=answer is not None
            )  # fmt: skip
        except DecisionRefused as error:
            raise AirflowFailException(str(error)) from error
    log.info("backstop: plan %s: %s", shown["plan"], counts)
    return {"plan": shown["plan"], **counts}
