"""Answers what Airflow asks people, through its own API, as somebody who looks every other second: `ann`, who may decide.

An answer is lost on its way into Airflow when it comes before the scheduler has heard that the process that asked is gone. So
she waits until it has, and takes her time to read. What was lost all the same, or not applied, is asked again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from backstop_lab.demo.choose_answer import choose_answer
from backstop_lab.demo.stage import Stage
from backstop_lab.servers.airflow_api import AirflowApi, AirflowUnavailable, Json

PERSON = "ann"
LOOK_SECONDS = 2.0
READS_FOR = 3.0
TAKEN = 409
"""Airflow's status for a question that was answered before."""


class AnsweringPerson:
    """A thread that looks at what is asked, until it is stopped. `broken`: what ended it early."""

    def __init__(
        self, stage: Stage, api: Callable[[], AirflowApi], until_up: Callable[[], None]
    ) -> None:
        self._stage, self._open_api, self._until_up = stage, api, until_up
        self._heard_of = stage.platform.airflow.waits_for_an_answer
        self._seen: dict[tuple[str, int], float] = {}
        self._answered: set[tuple[str, int]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.broken: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._until_up()
            api = self._open_api()
            while not self._over.wait(LOOK_SECONDS):
                try:
                    self._look(api)
                except AirflowUnavailable as silent:
                    if silent.status is not None:
                        raise
                    # A busy machine: no answer is no refusal, and she looks again.
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for the answers
            self.broken = error

    def _look(self, api: AirflowApi) -> None:
        for question in api.questions():
            case, task = re.match(r"Case (\d+): ", question["subject"]), question["task_instance"]
            # Asked again, by the same run or another, it is another question.
            name = (task["dag_run_id"], task["try_number"])
            if case is None or name in self._answered or not self._is_at_rest(task):
                continue
            if time.monotonic() - self._seen.setdefault(name, time.monotonic()) < READS_FOR:
                continue
            self._answer(api, question, int(case[1]), name)

    def _is_at_rest(self, task: Json) -> bool:
        return task["state"] == "awaiting_input" and self._heard_of(
            task["dag_id"], task["dag_run_id"], task["task_id"], task["try_number"]
        )

    def _answer(self, api: AirflowApi, question: Json, case_id: int, name: tuple[str, int]) -> None:
        answer = choose_answer(self._stage, case_id)
        if answer is None:
            return
        try:
            api.answer(question, answer.option, {"why": answer.why, **answer.inputs})
        except AirflowUnavailable as refused:
            if refused.status != TAKEN:
                raise
        self._answered.add(name)
