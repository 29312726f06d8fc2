"""Put cases before people in Airflow's human-in-the-loop view, and apply what they answer.

Light: DAG files import it. What is asked, and how an answer becomes a decision, is in backstop.cases; here is only what
Airflow must be told: who may answer, which fields the form has, which runs are to be started.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from inspect import unwrap
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Param

from backstop.airflow.links import PREFIX, base_url
from backstop.airflow.steps import control_room, told

if TYPE_CHECKING:
    from backstop.cases.questions import How

DAG = "decide_case"
"""Asks about the cases of no team; a team's DAG has its name behind this one."""
log = logging.getLogger(__name__)

Answer = Mapping[str, Any]
"""option, inputs (the form's fields), user_id, user_name; unreadable: fields that cannot be kept."""
CONTENT, CONTENT_BASE64 = "secret_content", "secret_content_base64"
"""Fields of a new content. Airflow's audit log masks what is called a secret, and nothing else of a form."""


class AskPersonOperator(BaseOperator):
    """Shows a form and waits, without a worker, until a person answers; nothing answers in their place.

    `form` writes it when the task starts: a function of the context that returns subject, body, options, params and
    assigned_users, or skips the task. `receive` keeps the answer, with who gave it as Airflow's own record of this task says: a
    function of the context and the answer. Nothing is handed on as an XCom, which whoever may start a run can write. Airflow's
    own HITLOperator does the asking; it takes its form when a DAG file is read, and imports too much for that.

    An answer in the instant in which the task is parked can stay in Airflow (3.3.2) without waking it. Airflow's own look at
    what has timed out does wake it, with the answer; so the wait is a chain of short ones. It goes on while the answer cannot be
    kept because the control database is away: Airflow has it meanwhile.
    """

    template_fields = ()

    def __init__(
        self, *, form: Callable[[Any], dict[str, Any]], receive: Callable[[Any, Answer], None], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.form, self.receive = form, receive

    def execute(self, context: Any) -> None:
        """Writes the form and parks the task."""
        from airflow.providers.standard.operators.hitl import HITLOperator

        form = self.form(context)
        # Unwrapped, because the guard around it warns of operators that are called by hand.
        unwrap(HITLOperator.execute)(HITLOperator(task_id=self.task_id, response_timeout=self._look_again(), **form), context)

    @staticmethod
    def _look_again() -> timedelta:
        return timedelta(seconds=float(os.environ.get("BACKSTOP_LOOK_AGAIN_SECONDS", "600")))

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Keeps the answer that Airflow has recorded for this task. Airflow's API has held the option against the form."""
        from airflow.sdk.exceptions import TaskAwaitingInput
        from psycopg2 import InterfaceError, OperationalError

        from backstop.errors import Unavailable

        if event.get("error_type") == "timeout":
            raise TaskAwaitingInput(method_name="execute_complete", timeout=self._look_again())
        if "error" in event:
            raise RuntimeError(f"Airflow ended the question without an answer: {event['error']}")
        answer = answer_of(event)
        try:
            self.receive(context, answer)
        except (Unavailable, OperationalError, InterfaceError) as error:
            log.warning("backstop: the answer waits in Airflow until the control database is back: %s", error)
            soon = min(self._look_again(), timedelta(minutes=1))
            raise TaskAwaitingInput(method_name="execute_complete", timeout=soon) from None
        forget_content(context["ti"].id, event)


def answer_of(event: Mapping[str, Any]) -> Answer:
    """What Airflow's record of a question says was answered, by whom. Airflow makes the event of that record, for this task
    alone: no other task may ask for the record, and no user can write either."""
    user, inputs = event["responded_by_user"] or {}, event["params_input"] or {}
    # PostgreSQL keeps neither in a text: such a field is named, and the answer is not applied without it.
    bad = sorted(name for name, value in inputs.items() if isinstance(value, str) and not _can_be_kept(value))
    return {
        "option": "".join(event["chosen_options"][:1]),
        "inputs": {name: value for name, value in inputs.items() if value not in (None, "") and name not in bad},
        "user_id": user.get("id"),
        "user_name": user.get("name"),
    } | ({"unreadable": bad} if bad else {})


def _can_be_kept(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def forget_content(ti_id: Any, event: Mapping[str, Any]) -> None:
    """Takes an answer with a new content out of Airflow's record of the question, which every viewer may read.

    A task can only take out the whole answer. Who gave it, and what they chose, is with the case.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    inputs = event["params_input"] or {}
    if inputs.get(CONTENT) or inputs.get(CONTENT_BASE64):
        try:
            # For a question that is there Airflow reads nothing of this: it removes the answer.
            upsert_hitl_detail(ti_id=ti_id, options=event["chosen_options"], subject="", params={})
        except AirflowRuntimeError:
            # The answer is received: a task that fails now would ask the person again.
            log.exception("backstop: the new content could not be taken out of Airflow's record of this question")


def dags_of_teams() -> dict[str, str | None]:
    """The DAGs of teams with the role that may read each, when a DAG file is parsed. The settings are loaded only where they name
    teams: that takes longer than all else of the file."""
    from backstop.config.file import settings_file

    file = settings_file()
    if not file.is_file() or not re.search(r"""\bteams["']?\s*:""", file.read_text(encoding="utf-8")):
        return {}
    from backstop.config.load import load

    return {f"{DAG}__{team.name}": team.role for team in load().teams}


def dag_for(settings: Any, topic: str) -> str:
    """The DAG that asks about cases of a topic: its team's, or the one for all."""
    team = settings.teams_by_topic().get(topic)
    return f"{DAG}__{team}" if team else DAG


class StartRunOperator(BaseOperator):
    """Starts one run of another DAG under a given name; one that is there already is left alone, or begun anew (`reset`).

    The provider's own takes a third of a second to import in every DAG file.
    """

    template_fields = ()

    def __init__(
        self, *, trigger_dag_id: str, dag_run_id: str, conf: dict[str, Any], reset: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.trigger_dag_id, self.dag_run_id, self.conf, self.reset = trigger_dag_id, dag_run_id, conf, reset

    def execute(self, context: Any) -> None:
        """Airflow starts it when this task ends."""
        from airflow.sdk.exceptions import DagRunTriggerException

        raise DagRunTriggerException(
            trigger_dag_id=self.trigger_dag_id, dag_run_id=self.dag_run_id, conf=self.conf, logical_date=None,
            reset_dag_run=self.reset, skip_when_already_exists=True, wait_for_completion=False,
            allowed_states=[], failed_states=[], poke_interval=60, deferrable=False,
        )  # fmt: skip


def ask_about_case(context: Any) -> dict[str, Any]:
    """The form of the case that the run was started for."""
    ti = context["ti"]
    return form_of(int(context["params"]["case_id"]), context["run_id"], str(ti.id), ti.dag_id)


@told
def form_of(case_id: int, dag_run_id: str, asked_by: str = "", dag_id: str = DAG) -> dict[str, Any]:
    """Subject, body, options, fields and who may answer, of a case that still needs an answer.

    Raises AirflowSkipException when it does not, AirflowFailException when this run may not ask: whoever may read the DAG would
    see the case.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from backstop.cases.look import show
    from backstop.cases.propose import proposed
    from backstop.cases.question_text import EXAMPLES, body_of, subject_of
    from backstop.cases.questions import begin, end, last_said, show_now, topics_of, why_stale
    from backstop.errors import DecisionRefused

    with control_room() as room:
        topic = topics_of(room.control, [case_id]).get(case_id)
        if topic is not None and dag_for(room.settings, topic) != dag_id:
            raise AirflowFailException(f"Case {case_id} is asked about by {dag_for(room.settings, topic)}, not by {dag_id}.")
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
            "body": body_of(case, members, page=f"{base_url()}{PREFIX}/cases/{case_id}", said=before, proposal=waits),
            "options": list(case.actions),
            "params": fields_of(case.kind, case.actions),
            "assigned_users": askable(room.settings, case, waits),
        }


def fields_of(kind: str, actions: tuple[str, ...]) -> dict[str, Any]:
    """The form's fields; all begin empty, so that nothing is decided by leaving one as it is."""
    # Not nullable: Airflow's form refuses to be sent without it.
    why = "The reason; it is kept with the case. Without it nothing is applied."
    fields = {"why": Param(None, type="string", minLength=1, format="multiline", title="Why", description=why)}
    if "approve" in actions:
        return fields
    if kind not in ("lease_leak", "repeated_failure", "queue_blocked", "quota_full", "new_epoch", "ramp_stopped"):
        fields["ids"] = _field("Only these", "Message ids, one a line; empty: every open delivery of the case", lines=True)
    if "drained" in actions:
        fields["broker"] = _field("Broker", "For drained: the broker that the topic left, by its name in the settings")
    if "raise" in actions:
        fields["more"] = _number("More sends", "For raise: how many more; empty: one", most=100)
    if "replay_sample" in actions:
        fields["sample"] = _number("Sample", "For replay_sample: how many; empty: as the policy's canary", most=10_000)
    if "edit" in actions:
        kept = "For edit: the whole content, as text. Airflow has it until the answer is received."
        fields[CONTENT] = _field("New content", kept, lines=True)
        fields[CONTENT_BASE64] = _field("New content, base64", "For edit: the same for content that is not text", lines=True)
    return fields


def _field(title: str, description: str, *, lines: bool = False) -> Param:
    extra = {"format": "multiline"} if lines else {}
    return Param(None, type=["null", "string"], title=title, description=description, **extra)


def _number(title: str, description: str, *, most: int) -> Param:
    return Param(None, type=["null", "integer"], minimum=1, maximum=most, title=title, description=description)


def deciders(settings: Any, topic: str, actions: Iterable[str]) -> list[dict[str, str]]:
    """The users who may give some of these answers, for Airflow's own check; empty: whoever Airflow lets answer."""
    found: dict[str, str] = {}
    for action in actions:
        named = _who_may(settings, action, topic)
        if named is None:
            return []
        found |= {one.id: one.name or one.id for one in named}
    return [{"id": user_id, "name": name} for user_id, name in found.items()]


def askable(settings: Any, case: Any, waits: Any) -> list[dict[str, str]]:
    """Whom a case is shown to. Not who proposed what waits, where others are named: they may not approve it, and take it back by
    `backstop cases decide`."""
    if waits is None:
        return deciders(settings, case.topic, case.actions)
    named = deciders(settings, case.topic, [waits.action])
    others = [
        one for one in named if not any(settings.people.is_same(known, waits.who) for known in (one["id"], one["name"]))
    ]
    # Nobody named means everybody.
    return others or named


def _who_may(settings: Any, action: str, topic: str) -> tuple[Any, ...] | None:
    """Those who alone may; null: nobody is named, and Airflow's own permissions hold."""
    from backstop.config.people import Decider

    named = settings.people.who_may(action, topic)
    if named is not None or not _is_simple() or (logins := _simple_deciders()) is None:
        return tuple(named) if named is not None else None
    return tuple(Decider(id=login) for login in logins)


def _is_simple() -> bool:
    """Airflow's simple auth manager: ids are logins, and lesser roles may answer too."""
    from airflow.sdk import conf

    return str(conf.get("core", "auth_manager", fallback="")).endswith(".SimpleAuthManager")


def _simple_deciders() -> tuple[str, ...] | None:
    """Who has the role op or admin in Airflow's simple auth manager; null: everybody is an admin."""
    from airflow.sdk import conf

    if conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        return None
    users = [entry.strip().split(":") for entry in str(conf.get("core", "simple_auth_manager_users", fallback="")).split(",")]
    return tuple(user[0] for user in users if len(user) > 1 and user[1].lower() in ("op", "admin"))


def may_decide(settings: Any, user_id: str | None, action: str, topic: str) -> bool:
    """Asked when an answer is applied, of the id in Airflow's record: an answer without a known user decides nothing."""
    named = _who_may(settings, action, topic)
    return bool(user_id) and (named is None or any(one.id == user_id for one in named))


def may_trigger(settings: Any, login: str | None, action: str, topic: str) -> bool:
    """Whether who triggered a run may do this without anybody's yes. Of them Airflow keeps the login name, which is compared
    with names, and with ids only where ids are logins. With nobody named, and all admins aside, nobody may."""
    named = _who_may(settings, action, topic)
    if not login or named is None:
        return bool(login) and _is_simple()
    return any((one.name or (one.id if _is_simple() else None)) == login for one in named)


def receive_answer(context: Any, answer: Answer) -> None:
    """Keeps the answer with the question that this run asks."""
    from backstop.cases.questions import receive

    with control_room() as room:
        if not receive(room.control, context["run_id"], answer, asked_by=str(context["ti"].id) if "ti" in context else ""):
            log.warning("backstop: the form was written again or its case is closed: this answer does not belong to it")


def is_young(dag_run: Any) -> bool:
    """Whether a run was triggered within a day. What Backstop remembers of a run is purged with time: clearing an old one must
    not act in the name of who once triggered it."""
    from datetime import UTC, datetime

    run_after = getattr(dag_run, "run_after", None)
    return run_after is not None and datetime.now(UTC) - run_after < timedelta(days=1)


@told
def apply_answer(case_id: int, dag_run_id: str, dag_id: str = DAG) -> dict[str, Any]:
    """Decides the case by the answer that was received, unless it does not fit any more; returns how it ended and what to say of
    it.

    Raises Unavailable when the present state cannot be read: the answer is kept, and applied by the next try.
    """
    from backstop.cases.decide import decide
    from backstop.cases.intend import begun
    from backstop.cases.look import show
    from backstop.cases.propose import APPROVE, REJECT, proposed
    from backstop.cases.questions import asked, end, present, topics_of, why_stale
    from backstop.errors import DecisionRefused

    with control_room() as room:
        question = asked(room.control, dag_run_id)
        if question is not None and question.how is not None:
            return {"how": question.how, "said": question.said or ""}
        owner = dag_for(room.settings, topics_of(room.control, [case_id]).get(case_id, ""))
        if question is not None and owner != dag_id:  # its topic has changed its team: the same question is asked there
            return {"how": "not_applied", "said": f"case {case_id} is asked about by {owner}, not by {dag_id}"}
        if question is None or question.given is None or question.question.case_id != case_id:
            said = f"nobody has answered the question about case {case_id}: Airflow has no answer of this run's task ask"
            if question is None or question.question.case_id == case_id:  # not another case's question
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
        topic, waits = show(room.control, case_id, members=0)[0].topic, proposed(room.control, case_id)
        action = waits.action if waits is not None and option in (APPROVE, REJECT) else option
        if not may_decide(room.settings, answer.get("user_id"), action, topic):
            said = f"{who or 'nobody'} may not decide to {action} in {topic} (people in backstop.yaml, or the role op)"
        elif not why:
            said = f"{who} chose {option} without a reason"
        elif bad := answer.get("unreadable"):
            said = f"{who} chose {option} with characters that cannot be kept in {', '.join(bad)}: give such a content as base64"
        # An answer that changed something before this try was cut short goes on, whatever the case looks like now.
        elif not begun(room.control, case_id, once) and (stale := why_stale(shown, now)):
            said = f"{who} chose {option}, and {stale}"
        else:
            try:
                decided = decide(
                    room.control, room.settings, room.connections, case_id, option, who, why,
                    options_of(inputs) | {"once": once, "shown": shown},
                )  # fmt: skip
                how = "partly" if decided.left_out else "applied"
                said = f"{who} chose {option}: {decided.counts}" + "".join(f"; left out: {one}" for one in decided.left_out[:5])
            except DecisionRefused as error:
                said = f"{who} chose {option}, and it was refused: {error.what} {error.next_step}"
        end(room.control, dag_run_id, how, said, who=who or None, answer=option or None)
    log.info("backstop: %s", said)
    return {"how": how, "said": said}


def options_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The form's fields as cases.decide takes them. Raises DecisionRefused for base64 that is none, and for two contents."""
    from backstop.errors import DecisionRefused

    options: dict[str, Any] = {name: inputs[name] for name in ("more", "sample", "broker") if name in inputs}
    if CONTENT in inputs and CONTENT_BASE64 in inputs:
        raise DecisionRefused(
            "The new content is given twice.", kept="Nothing was applied.", next_step="Answer again with one of them."
        )
    if CONTENT in inputs:
        options["content"] = str(inputs[CONTENT]).encode()
    elif CONTENT_BASE64 in inputs:
        options["content"] = _decoded(str(inputs[CONTENT_BASE64]))
    # Nothing else is cut: an id may begin and end with blanks, and hold what Unicode calls the end of a line.
    ids = [line for line in (line.removesuffix("\r") for line in str(inputs.get("ids", "")).split("\n")) if line]
    return options | ({"message_ids": ids} if ids else {})


def _decoded(text: str) -> bytes:
    from base64 import b64decode
    from binascii import Error

    from backstop.errors import DecisionRefused

    try:
        return b64decode("".join(text.split()), validate=True)
    except (Error, ValueError) as error:
        raise DecisionRefused(
            f"The new content is no base64: {error}.", kept="Nothing was applied.", next_step="Answer again with the whole of it."
        ) from error


@told
def look_for_questions(ti: Any) -> list[dict[str, Any]]:
    """Runs to start: new questions, those whose start was lost, and live ones whose case needs no answer (begun anew, they end).

    A question that was answered and whose answer could not be applied stays live: clearing `apply` applies it. Raises
    AirflowFailException when there is something to ask and the DAG that asks is paused. What was chosen before and started
    since is a success, after which a failure is told anew.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.cases.propose import lapse
    from backstop.cases.questions import Question, choose, end, live, present, topics_of
    from backstop.health.outbox import note_success

    with control_room() as room:

        def start_of(question: Question) -> dict[str, Any]:
            dag_id = dag_for(room.settings, topics[question.case_id])
            return {"trigger_dag_id": dag_id, "dag_run_id": question.dag_run_id, "conf": {"case_id": question.case_id},
                    "reset": False}  # fmt: skip

        lapse(room.control, room.settings.people.proposals_lapse_after)
        starts, questions = [], live(room.control)
        topics = topics_of(room.control, [one.question.case_id for one in questions])
        for one in questions:
            question, run, start = one.question, one.question.dag_run_id, start_of(one.question)
            dag_id = start["trigger_dag_id"]
            if ti.get_dr_count(dag_id=dag_id, run_ids=[run]) == 0:
                starts.append(start)
            elif (state := run_state(ti, dag_id, run)) == "failed" and one.answered:
                if (now := present(room.control, question.case_id)).state == "open" or one.needed:
                    log.warning("backstop: clear the task apply of the run %s: it has an answer that was not applied", run)
                else:
                    end(room.control, run, "over", f"the case is {now.state}, and the answer of the run {run} was not applied")
            elif state in ("success", "failed"):
                end(room.control, run, "lost", f"the run {run} ended ({state}) without applying an answer")
            elif not one.needed and is_waiting(ti, dag_id, run):
                starts.append(start | {"reset": True})
        if not starts:
            note_success(room.control, "ask_people")
        new = choose(room.control, room.settings.people.questions, room.settings.teams_by_topic())
        topics |= topics_of(room.control, [question.case_id for question in new])
        starts += map(start_of, new)
    dags = sorted({one["trigger_dag_id"] for one in starts})
    paused = [dag_id for dag_id in dags if _is_held(ti, dag_id)]
    waiting = [one for one in starts if one["trigger_dag_id"] in paused]
    if waiting:
        held = ", ".join(paused)
        what = f"{len(waiting)} cases wait to be shown to people, and the DAG {held} is paused or not there: unpause it."
        if len(waiting) == len(starts):
            raise AirflowFailException(what)
        log.error("backstop: %s", what)  # those of other teams are shown first; the next look fails
    return [one for one in starts if one["trigger_dag_id"] not in paused]


def _is_held(ti: Any, dag_id: str) -> bool:
    """Whether the DAG starts nothing: paused, or not parsed (yet), which must not keep other teams' questions back."""
    try:
        return bool(ti.get_dag(dag_id).is_paused)
    except Exception:
        log.exception("backstop: the DAG %s cannot be looked at; its questions wait", dag_id)
        return True


def run_state(ti: Any, dag_id: str, run: str) -> str:
    """By its plain name: Airflow answers with an enumeration, whose text is another."""
    state = ti.get_dagrun_state(dag_id=dag_id, run_id=run)
    return str(getattr(state, "value", state))


def is_waiting(ti: Any, dag_id: str, run: str) -> bool:
    """Whether the form of a run stands open: only then is it begun anew, never while an answer is applied."""
    return str(ti.get_task_states(dag_id=dag_id, run_ids=[run]).get(run, {}).get("ask")) == "awaiting_input"
