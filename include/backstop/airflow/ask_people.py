"""What the tasks of the DAG `ask_people` do: choose which cases to ask about, and start a run for each."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import BaseOperator, task

from backstop.airflow.control_room import control_room, log_errors
from backstop.airflow.decide_case import DAG, dag_for

log = logging.getLogger(__name__)


@task(retries=0)
def look(**context: Any) -> list[dict[str, Any]]:
    """The runs to start; often none."""
    return look_for_questions(context["ti"])


@log_errors
def look_for_questions(ti: Any) -> list[dict[str, Any]]:
    """Runs to start: new questions, those whose start was lost, and live ones whose case needs no answer (started again, they end).

    A question that was answered and whose answer could not be applied stays live: clearing `apply` applies it. Raises
    AirflowFailException when there is something to ask and the DAG that asks is paused. What was chosen before and started
    since is a success, after which a failure is reported again.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.decisions.propose import lapse
    from backstop.decisions.questions import Question, choose, end, live, present, topics_of
    from backstop.watch.outbox import note_success

    with control_room() as room:

        def start_of(question: Question) -> dict[str, Any]:
            dag_id = dag_for(room.settings, topics[question.case_id])
            return {
                "trigger_dag_id": dag_id,
                "dag_run_id": question.dag_run_id,
                "conf": {"case_id": question.case_id},
                "reset": False,
            }

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
                    log.warning(
                        "backstop: clear the task apply of the run %s: it has an answer that was not applied",
                        run,
                    )
                else:
                    end(
                        room.control,
                        run,
                        "over",
                        f"the case is {now.state}, and the answer of the run {run} was not applied",
                    )
            elif state in ("success", "failed"):
                end(
                    room.control,
                    run,
                    "lost",
                    f"the run {run} ended ({state}) without applying an answer",
                )
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
    """Whether the form of a run stands open: only then is it started again, never while an answer is applied."""
    return (
        str(ti.get_task_states(dag_id=dag_id, run_ids=[run]).get(run, {}).get("ask"))
        == "awaiting_input"
    )


class StartRunOperator(BaseOperator):
    """Starts one run of another DAG under a given name; one that is there already is left alone, or started again (`reset`).

    The provider's own takes a third of a second to import in every DAG file.
    """

    template_fields = ()

    def __init__(
        self,
        *,
        trigger_dag_id: str,
        dag_run_id: str,
        conf: dict[str, Any],
        reset: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.trigger_dag_id, self.dag_run_id, self.conf, self.reset = (
            trigger_dag_id,
            dag_run_id,
            conf,
            reset,
        )

    def execute(self, context: Any) -> None:
        """Airflow starts it when this task ends. Only what asks about a case: what `look` handed on may be anybody's by now."""
        from airflow.sdk.exceptions import AirflowFailException, DagRunTriggerException

        if self.trigger_dag_id.partition("__")[0] != DAG:
            raise AirflowFailException(f"ask_people starts no run of {self.trigger_dag_id}.")
        raise DagRunTriggerException(
            trigger_dag_id=self.trigger_dag_id,
            dag_run_id=self.dag_run_id,
            conf=self.conf,
            logical_date=None,
            reset_dag_run=self.reset,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=60,
            deferrable=False,
        )
