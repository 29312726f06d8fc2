"""An operator that shows a form to a person and waits for the answer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from inspect import unwrap
from typing import Any

from airflow.sdk import BaseOperator

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
        self,
        *,
        form: Callable[[Any], dict[str, Any]],
        receive: Callable[[Any, Answer], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.form, self.receive = form, receive

    def execute(self, context: Any) -> None:
        """Writes the form and parks the task."""
        from airflow.providers.standard.operators.hitl import HITLOperator

        form = self.form(context)
        # Unwrapped, because the guard around it warns of operators that are called by hand.
        unwrap(HITLOperator.execute)(
            HITLOperator(task_id=self.task_id, response_timeout=self._look_again(), **form), context
        )

    @staticmethod
    def _look_again() -> timedelta:
        return timedelta(seconds=float(os.environ.get("BACKSTOP_LOOK_AGAIN_SECONDS", "600")))

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Keeps the answer that Airflow has recorded for this task. Airflow's API has held the option against the form."""
        from airflow.sdk.exceptions import TaskAwaitingInput
        from psycopg2 import InterfaceError, OperationalError

        from backstop.model.errors import Unavailable

        if event.get("error_type") == "timeout":
            raise TaskAwaitingInput(method_name="execute_complete", timeout=self._look_again())
        if "error" in event:
            raise RuntimeError(f"Airflow ended the question without an answer: {event['error']}")
        answer = answer_of(event)
        try:
            self.receive(context, answer)
        except (Unavailable, OperationalError, InterfaceError) as error:
            log.warning(
                "backstop: the answer waits in Airflow until the control database is back: %s",
                error,
            )
            soon = min(self._look_again(), timedelta(minutes=1))
            raise TaskAwaitingInput(method_name="execute_complete", timeout=soon) from None
        forget_content(context["ti"].id, event)


def answer_of(event: Mapping[str, Any]) -> Answer:
    """What Airflow's record of a question says was answered, by whom. Airflow makes the event of that record, for this task
    alone: no other task may ask for the record, and no user can write either."""
    from backstop.model.storable_text import fits

    user, inputs = event["responded_by_user"] or {}, event["params_input"] or {}
    # What no database holds: such a field is named, and the answer is not applied without it.
    bad = sorted(
        name for name, value in inputs.items() if isinstance(value, str) and not fits(value)
    )
    return {
        "option": "".join(event["chosen_options"][:1]),
        "inputs": {
            name: value
            for name, value in inputs.items()
            if value not in (None, "") and name not in bad
        },
        "user_id": user.get("id"),
        "user_name": user.get("name"),
    } | ({"unreadable": bad} if bad else {})


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
            log.exception(
                "backstop: the new content could not be taken out of Airflow's record of this question"
            )
