"""What the tasks of the DAGs `decide_case` do: put a case before people, and apply what they answer.

What is asked, and how an answer becomes a decision, is in backstop.decisions; here is only what Airflow must be told.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, task

from backstop.airflow.ask_person import CONTENT, CONTENT_BASE64, Answer
from backstop.airflow.control_room import control_room, log_errors
from backstop.airflow.deciders import askable, may_decide
from backstop.airflow.links import PREFIX, base_url
from backstop.airflow.wake import WORK, wake_duties

if TYPE_CHECKING:
    from backstop.decisions.questions import How

DAG = "decide_case"
"""Asks about the cases of no team; a team's DAG has its name behind this one."""
log = logging.getLogger(__name__)


def dags_of_teams() -> dict[str, str | None]:
    """The DAGs of teams with the role that may read each, when a DAG file is parsed. The settings are loaded only where they name
    teams: that takes longer than all else of the file."""
    from backstop.config.file import settings_file

    file = settings_file()
    if not file.is_file() or not re.search(
        r"""\bteams["']?\s*:""", file.read_text(encoding="utf-8")
    ):
        return {}
    from backstop.config.load import load

    return {f"{DAG}__{team.name}": team.role for team in load().teams}


def dag_for(settings: Any, topic: str) -> str:
    """The DAG that asks about cases of a topic: its team's, or the one for all."""
    team = settings.teams_by_topic().get(topic)
    return f"{DAG}__{team}" if team else DAG


def ask_about_case(context: Any) -> dict[str, Any]:
    """The form of the case that the run was started for."""
    ti = context["ti"]
    return form_of(int(context["params"]["case_id"]), context["run_id"], str(ti.id), ti.dag_id)


@log_errors
def form_of(case_id: int, dag_run_id: str, asked_by: str = "", dag_id: str = DAG) -> dict[str, Any]:
    """Subject, body, options, fields and who may answer, of a case that still needs an answer.

    Raises AirflowSkipException when it does not, AirflowFailException when this run may not ask: whoever may read the DAG would
    see the case.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from backstop.decisions.list_cases import show
    from backstop.decisions.propose import proposed
    from backstop.decisions.question_text import EXAMPLES, body_of, subject_of
    from backstop.decisions.questions import begin, end, last_said, show_now, topics_of, why_stale
    from backstop.model.errors import DecisionRefused

    with control_room() as room:
        topic = topics_of(room.control, [case_id]).get(case_id)
        if topic is not None and dag_for(room.settings, topic) != dag_id:
            raise AirflowFailException(
                f"Case {case_id} is asked about by {dag_for(room.settings, topic)}, not by {dag_id}."
            )
        try:
            asked = begin(room.control, case_id, dag_run_id)
        except DecisionRefused as error:
            raise AirflowFailException(str(error)) from error
        # Before it is read: what joins it in between is shown, and not decided.
        now = show_now(room.control, asked.question, asked_by)
        case, members = show(room.control, case_id, EXAMPLES)
        over = why_stale(asked.shown or {"state": now.state, "proposal": now.proposal}, now)
        if over or not case.actions:
            said = over or f"the case is {case.state}"
            end(room.control, dag_run_id, "over", said)
            raise AirflowSkipException(said)
        before, waits = last_said(room.control, asked.question), proposed(room.control, case_id)
        return {
            "subject": subject_of(case),
            "body": body_of(
                case,
                members,
                page=f"{base_url()}{PREFIX}/cases/{case_id}",
                said=before,
                proposal=waits,
            ),
            "options": list(case.actions),
            "params": fields_of(case.kind, case.actions),
            "assigned_users": askable(room.settings, case, waits),
        }


def fields_of(kind: str, actions: tuple[str, ...]) -> dict[str, Any]:
    """The form's fields; all begin empty, so that nothing is decided by leaving one as it is."""
    from backstop.decisions.actions import MOST, WITHOUT_MEMBERS

    # Not nullable: Airflow's form refuses to be sent without it.
    why = "The reason; it is kept with the case. Without it nothing is applied."
    fields = {
        "why": Param(
            None, type="string", minLength=1, format="multiline", title="Why", description=why
        )
    }
    if "approve" in actions:
        return fields
    if kind not in (*WITHOUT_MEMBERS, "new_epoch", "ramp_stopped"):
        fields["ids"] = _field(
            "Only these",
            "Message ids, one a line; empty: every open delivery of the case",
            lines=True,
        )
    if "drained" in actions:
        fields["broker"] = _field(
            "Broker", "For drained: the broker that the topic left, by its name in the settings"
        )
    if "raise" in actions:
        fields["more"] = _number(
            "More sends", "For raise: how many more; empty: one", most=MOST["more"]
        )
    if "replay_sample" in actions:
        fields["sample"] = _number(
            "Sample",
            "For replay_sample: how many; empty: as the policy's canary",
            most=MOST["sample"],
        )
    if edit := next((action for action in ("edit", "edit_head") if action in actions), None):
        kept = (
            f"For {edit}: the whole content, as text. Airflow has it until the answer is received."
        )
        fields[CONTENT] = _field("New content", kept, lines=True)
        fields[CONTENT_BASE64] = _field(
            "New content, base64", f"For {edit}: the same for content that is not text", lines=True
        )
    return fields


def _field(title: str, description: str, *, lines: bool = False) -> Param:
    extra = {"format": "multiline"} if lines else {}
    return Param(None, type=["null", "string"], title=title, description=description, **extra)


def _number(title: str, description: str, *, most: int) -> Param:
    return Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=most,
        title=title,
        description=description,
    )


def receive_answer(context: Any, answer: Answer) -> None:
    """Keeps the answer with the question that this run asks."""
    from backstop.decisions.questions import receive

    with control_room() as room:
        if not receive(
            room.control,
            context["run_id"],
            answer,
            asked_by=str(context["ti"].id) if "ti" in context else "",
        ):
            log.warning(
                "backstop: the form was written again or its case is closed: this answer does not belong to it"
            )


# A database may be down for hours, and the answer is stored: retry up to five minutes apart, for about two hours.
@task(
    retries=30,
    retry_exponential_backoff=2,
    max_retry_delay=timedelta(minutes=5),
    execution_timeout=timedelta(minutes=30),
    outlets=[WORK],
)
def apply(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """The answer is in the control database, where only the task `ask` puts it, with who gave it by Airflow's own record."""
    from airflow.sdk.exceptions import AirflowSkipException

    done = apply_answer(params["case_id"], context["run_id"], context["dag"].dag_id)
    if done["how"] not in ("applied", "partly"):
        context["ti"].xcom_push(key="said", value=done["said"])
        raise AirflowSkipException(done["said"])
    wake_duties(context)
    return done


@log_errors
def apply_answer(case_id: int, dag_run_id: str, dag_id: str = DAG) -> dict[str, Any]:
    """Decides the case by the answer that was received, unless it does not fit any more; returns how it ended and what to say of
    it.

    Raises Unavailable when the present state cannot be read: the answer is kept, and applied by the next try.
    """
    from backstop.cases.intend import begun
    from backstop.decisions.decide import decide
    from backstop.decisions.list_cases import show
    from backstop.decisions.propose import APPROVE, REJECT, proposed
    from backstop.decisions.questions import asked, end, present, topics_of, why_stale
    from backstop.model.errors import DecisionRefused

    with control_room() as room:
        question = asked(room.control, dag_run_id)
        if question is not None and question.how is not None:
            return {"how": question.how, "said": question.said or ""}
        owner = dag_for(room.settings, topics_of(room.control, [case_id]).get(case_id, ""))
        if (
            question is not None and owner != dag_id
        ):  # its topic has changed its team: the same question is asked there
            return {
                "how": "not_applied",
                "said": f"case {case_id} is asked about by {owner}, not by {dag_id}",
            }
        if question is None or question.given is None or question.question.case_id != case_id:
            said = f"nobody has answered the question about case {case_id}: Airflow has no answer of this run's task ask"
            if (
                question is None or question.question.case_id == case_id
            ):  # not another case's question
                end(room.control, dag_run_id, "not_applied", said)
            return {"how": "not_applied", "said": said}
        answer, shown = question.given, question.shown
        option, inputs = str(answer["option"]), dict(answer["inputs"])
        who, why = str(answer.get("user_name") or ""), str(inputs.get("why", "")).strip()
        how: How = "not_applied"
        said = ""
        now, once = present(room.control, case_id), question.name
        if option == APPROVE and shown.get("proposal") is not None:
            once = f"proposal {shown['proposal']}"
        topic, waits = (
            show(room.control, case_id, members=0)[0].topic,
            proposed(room.control, case_id),
        )
        action = waits.action if waits is not None and option in (APPROVE, REJECT) else option
        if not may_decide(room.settings, answer.get("user_id"), action, topic):
            said = f"{who or 'nobody'} may not decide to {action} in {topic} (people in backstop.yaml, or the role op)"
        elif not why:
            said = f"{who} chose {option} without a reason"
        elif bad := answer.get("unreadable"):
            said = f"{who} chose {option} with characters that cannot be kept in {', '.join(bad)}: give such a content as base64"
        # An answer that changed something before this try was cut short goes on, whatever the case looks like now.
        elif not begun(room.control, case_id, once, who) and (stale := why_stale(shown, now)):
            said = f"{who} chose {option}, and {stale}"
        else:
            try:
                decided = decide(
                    room.control,
                    room.settings,
                    room.connections,
                    case_id,
                    option,
                    who,
                    why,
                    options_of(inputs) | {"once": once, "shown": shown},
                )
                how = "partly" if decided.left_out else "applied"
                said = f"{who} chose {option}: {decided.counts}" + "".join(
                    f"; left out: {one}" for one in decided.left_out[:5]
                )
            except DecisionRefused as error:
                said = f"{who} chose {option}, and it was refused: {error.what} {error.next_step}"
        end(room.control, dag_run_id, how, said, who=who or None, answer=option or None)
    log.info("backstop: %s", said)
    return {"how": how, "said": said}


def options_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The form's fields as cases.decide takes them. Raises DecisionRefused for base64 that is none, and for two contents."""
    from backstop.model.errors import DecisionRefused

    options: dict[str, Any] = {
        name: inputs[name] for name in ("more", "sample", "broker") if name in inputs
    }
    if CONTENT in inputs and CONTENT_BASE64 in inputs:
        raise DecisionRefused(
            "The new content is given twice.",
            unaffected="Nothing was applied.",
            next_step="Answer again with one of them.",
        )
    if CONTENT in inputs:
        options["content"] = str(inputs[CONTENT]).encode()
    elif CONTENT_BASE64 in inputs:
        options["content"] = _decoded(str(inputs[CONTENT_BASE64]))
    # Nothing else is cut: an id may begin and end with blanks, and hold what Unicode calls the end of a line.
    ids = [
        line
        for line in (line.removesuffix("\r") for line in str(inputs.get("ids", "")).split("\n"))
        if line
    ]
    return options | ({"message_ids": ids} if ids else {})


def _decoded(text: str) -> bytes:
    from base64 import b64decode
    from binascii import Error

    from backstop.model.errors import DecisionRefused

    try:
        return b64decode("".join(text.split()), validate=True)
    except (Error, ValueError) as error:
        raise DecisionRefused(
            f"The new content is no base64: {error}.",
            unaffected="Nothing was applied.",
            next_step="Answer again with the whole of it.",
        ) from error
