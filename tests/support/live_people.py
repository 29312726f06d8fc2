"""One embedded platform with a live Airflow, in which duties run and people with different roles answer; and the hands a test
needs for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2

from backstop.cases.open import open_case
from backstop.client import SendPolicy, record
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.decisions.decide import decide
from backstop_lab.platform import PROJECT, Platform
from backstop_lab.servers.airflow_api import FINISHED, AirflowApi, AirflowUnavailable
from committed import rows

SECONDS = 600.0
"""For one step on a busy machine."""
A_MOMENT = 5.0
"""What a person takes at least to answer."""
HOSTILE = "id-1` <img src=x onerror=alert(1)> [a](http://evil.example) {{ 7*7 }}\u202e\n# head"
SIMPLE = {"olga": "op", "otto": "op", "uwe": "user", "vera": "viewer"}
"""Users of the simple auth manager, and their roles."""
Detail = dict[str, Any]
FORMS = """
SELECT h.subject, h.responded_at IS NULL AND t.state = 'awaiting_input' AS asks
FROM hitl_detail h JOIN task_instance t ON t.id = h.ti_id
"""
"""Airflow's forms, and whether each waits for an answer."""


class Live:
    """The platform, and what the tests do to it."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.api = platform, platform.airflow.api
        self.settings = load(platform.config)
        self.connections = Connections(resolver=platform.connections().get)
        self._taken: dict[str, Callable[[], int]] = {}
        """By form: gives the answer that Airflow took for it once more."""
        self._asked: dict[object, float] = {}
        """Since when it asks for an answer that it lost."""

    def control(self) -> Any:
        return psycopg2.connect(self.platform.dsn("control"))

    def rows(self, query: str, *values: object, database: str = "control") -> list[tuple[Any, ...]]:
        return rows(self.platform.dsn(database), query, values)

    def airflow(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of Airflow's own tables: those who wait read often, and a request costs its api-server more than the task that they
        wait for."""
        return self.rows(query, *values, database="airflow")

    def wait(self, dag: str, run: str) -> str:
        """The state in which the run ended."""
        self.wait_for(lambda: self.state(dag, run) in FINISHED, f"the end of {run} of {dag}")
        return self.state(dag, run)

    def state(self, dag: str, run: str) -> str:
        ((state,),) = self.airflow(
            "SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s", dag, run
        )
        return str(state)

    def case(
        self,
        severity: str,
        *ids: str,
        kind: str = "unknown",
        topic: str = "orders",
        subject: str = "",
    ) -> int:
        """An open case about messages that were promised and never sent."""
        producer = psycopg2.connect(self.platform.dsn("producer_a"))
        policy = SendPolicy(timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=1))
        with producer:
            for message_id in ids:
                record(producer, topic, b"{}", message_id=message_id, policy=policy, send=False)
        producer.close()
        connection = self.control()
        with connection, connection.cursor() as cursor:
            case_id = open_case(
                cursor,
                kind=kind,
                topic=topic,
                group="billing",
                subject=subject,
                severity=severity,
                run_id=None,
                summary=f"nobody can say what became of {len(ids)} deliveries",
                evidence={"where": HOSTILE},
                members=[("shop_a", topic, message_id, "billing") for message_id in ids],
            )
        connection.close()
        return case_id

    def forget_cases(self) -> None:
        """What other tests left open is over, and nobody is asked about it."""
        self.rows("UPDATE case_question SET ended_at = now(), how = 'over' WHERE ended_at IS NULL")
        self.rows("UPDATE case_file SET state = 'closed', closed_at = now() WHERE state = 'open'")

    def by_command_line(self, case_id: int, action: str) -> None:
        connection = self.control()
        decide(
            connection,
            self.settings,
            self.connections,
            case_id,
            action,
            "carla",
            "seen by command line",
        )
        connection.close()

    def look(self) -> None:
        """One run of ask_people, to its end."""
        assert self.wait("ask_people", self.api.trigger("ask_people", {})) == "success"

    def details(self, case_id: int) -> list[Detail]:
        """What Airflow shows of the case and nobody answered yet."""
        found = self.api.request(
            "GET", "/dags/~/dagRuns/~/hitlDetails?response_received=false&limit=100"
        )
        return [
            one
            for one in found["hitl_details"]
            if one["subject"].startswith(f"Case {case_id}:")
            and one["task_instance"]["state"] == "awaiting_input"
        ]

    def asks(self, case_id: int) -> int:
        """How many of its questions wait for an answer."""
        query = f"SELECT count(*) FROM ({FORMS}) AS form WHERE subject LIKE %s AND asks"
        return int(self.airflow(query, f"Case {case_id}:%")[0][0])

    def question(self, case_id: int, dag: str = "decide_case") -> Detail:
        def asked() -> bool:
            ended = self.airflow(
                "SELECT run_id FROM dag_run WHERE dag_id = %s AND state = 'failed'", dag
            )
            assert not ended, f"failed: {ended}"
            return self.asks(case_id) == 1

        self.wait_for(asked, f"one question about case {case_id}")
        self.wait_until_parked(dag, self.run_of(case_id))
        return self.details(case_id)[0]

    def wait_until_parked(self, dag: str, run: str, task: str = "ask") -> None:
        """Until the form is there, and an answer to it is not lost."""
        query = """SELECT try_number FROM task_instance
            WHERE dag_id = %s AND run_id = %s AND task_id = %s AND state = 'awaiting_input'"""

        def parked() -> bool:
            tries = self.airflow(query, dag, run, task)
            waits = self.platform.airflow.waits_for_an_answer
            return bool(tries) and waits(dag, run, task, tries[0][0])

        self.wait_for(parked, f"the form of {task} in {run} of {dag}")

    def run_of(self, case_id: int) -> str:
        """The run that asks about the case now."""
        ((run,),) = self.rows(
            "SELECT dag_run_id FROM case_question WHERE case_id = %s AND ended_at IS NULL", case_id
        )
        return str(run)

    def name(self, case_id: int, number: int) -> str:
        """The run of a question."""
        ((run,),) = self.rows(
            "SELECT dag_run_id FROM case_question WHERE case_id = %s AND number = %s",
            case_id,
            number,
        )
        return str(run)

    def answer(
        self,
        run: str,
        option: str,
        *,
        api: AirflowApi | None = None,
        dag: str = "decide_case",
        task: str = "ask",
        **inputs: object,
    ) -> int:
        """The status of the answer: 200 when Airflow took it."""
        path = form_of(dag, run, task)
        try:
            (api or self.api).request(
                "PATCH", path, {"chosen_options": [option], "params_input": inputs}
            )
        except AirflowUnavailable as refused:
            assert refused.status is not None, refused
            return refused.status
        self._taken[path] = lambda: self.answer(run, option, api=api, dag=dag, task=task, **inputs)
        return 200

    def answers_again(
        self, run: str, answer: Callable[[], int], dag: str = "decide_case", task: str = "ask"
    ) -> None:
        """What `end_of` does when Airflow asks again; a status of 200 is expected of it."""
        self._taken[form_of(dag, run, task)] = answer

    def end_of(self, run: str, *, dag: str = "decide_case", task: str = "ask") -> dict[str, str]:
        """The states of its tasks and of the whole run when it has ended.

        Airflow may lose an answer that comes before the task has left its worker, and asks again: it is answered again, as a
        person would.
        """
        path = form_of(dag, run, task)

        def over() -> bool:
            if path in self._taken:
                form = self.airflow(
                    f"{FORMS} WHERE t.dag_id = %s AND t.run_id = %s AND t.task_id = %s",
                    dag,
                    run,
                    task,
                )
                if self.asks_again(path, [asks for _, asks in form] == [True]):
                    assert self._taken[path]() == 200
            return self.state(dag, run) in FINISHED

        self.wait_for(over, f"the end of {run} of {dag}")
        return self.tasks(run, dag) | {"": self.state(dag, run)}

    def asks_again(self, what: object, asks: bool) -> bool:
        """Whether Airflow has asked for some seconds, as it does after it lost an answer.

        It loses one that comes before its scheduler knows that the task has left its worker, and each costs a try of the task:
        on a busy machine one who answers in the first instant each time uses them all up.
        """
        since = (
            self._asked.setdefault(what, time.monotonic()) if asks else self._asked.pop(what, None)
        )
        return asks and since is not None and time.monotonic() - since > A_MOMENT

    def tasks(self, run: str, dag: str = "decide_case") -> dict[str, str]:
        query = "SELECT task_id, state FROM task_instance WHERE dag_id = %s AND run_id = %s"
        return {name: str(state) for name, state in self.airflow(query, dag, run)}

    def ended(self, run: str) -> tuple[Any, ...]:
        return self.rows(
            "SELECT how, answered_by, answer, said FROM case_question WHERE dag_run_id = %s", run
        )[0]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
            time.sleep(0.25)

    def run(self, duty: str, **form: object) -> dict[str, str]:
        """A run by hand, to its end: each task's state, and the run's own under ""."""
        return self.run_named(duty, **form)[1]

    def run_named(self, duty: str, **form: object) -> tuple[str, dict[str, str]]:
        """The same, after Airflow's id of the run."""
        run = self.api.trigger(duty, form)
        state = self.wait(duty, run)
        return run, self.tasks(run, duty) | {"": state}


def form_of(dag: str, run: str, task: str) -> str:
    """Where Airflow takes the answer to a form."""
    return f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{task}/-1/hitlDetails"


def status(api: AirflowApi, method: str, path: str, body: Any = None) -> int:
    try:
        api.request(method, path, body)
    except AirflowUnavailable as refused:
        assert refused.status is not None, refused
        return refused.status
    return 200


def task(dag: str, run: str, name: str) -> str:
    return f"/dags/{dag}/dagRuns/{run}/taskInstances/{name}"


def forge(api: AirflowApi, dag: str, run: str, name: str, value: Any) -> int:
    """Writes the task's result, whether it has one or not."""
    path, entry = f"{task(dag, run, name)}/xcomEntries", {"key": "return_value", "value": value}
    written = status(api, "POST", path, entry)
    return (
        written
        if written == 200
        else status(api, "PATCH", f"{path}/return_value", {"value": value})
    )


def long_ago(people: Live, message_id: str, topic: str = "orders") -> None:
    """A message that was promised five minutes ago and never sent."""
    people.case("info", message_id, topic=topic, subject=message_id)
    people.rows(
        """UPDATE message_stub SET created_at = created_at - interval '5 min', first_seen_at = created_at - interval '5 min',
               next_check_at = created_at - interval '4 min', attempted_at = attempted_at - interval '5 min',
               attempt_deadline = attempt_deadline - interval '5 min'
           WHERE message_id = %s""",
        message_id,
        database="producer_a",
    )


DUTIES = (
    "decide_case",
    "ask_people",
    "triage",
    "resend",
    "replay_incident",
    "reconcile",
    "sweep",
    "watch",
)


@contextmanager
def live_people(
    root: Path,
    settings: str = "  questions: 2\n",
    users: Mapping[str, str] = SIMPLE,
    environment: Mapping[str, str] = {},
    before: Callable[[Platform], None] = lambda _: None,
    after: Callable[[Live], None] = lambda _: None,
    dags: tuple[str, ...] = DUTIES,
) -> Iterator[Live]:
    """Every duty is started by the tests alone. `settings`: what follows in backstop.yaml, at first within `people`; `before` and
    `after` Airflow starts."""
    config = root / "backstop.yaml"
    config.write_text((PROJECT / "backstop.yaml").read_text() + settings)
    platform = Platform(root, config)
    try:
        platform.start(airflow=False)
        platform.airflow.env.update(
            platform.environment()
            | {
                "BACKSTOP_RETRY_SECONDS": "1",
                "BACKSTOP_LOOK_AGAIN_SECONDS": "15",
                "BACKSTOP_ASK_SCHEDULE": "none",
                "BACKSTOP_TRIAGE_SCHEDULE": "none",
                "BACKSTOP_RESEND_SCHEDULE": "asset",
                "BACKSTOP_RECONCILE_SCHEDULE": "none",
                "BACKSTOP_SWEEP_SCHEDULE": "asset",
                "BACKSTOP_WATCH_SCHEDULE": "none",
                "BACKSTOP_DOCS_FOLDER": str(root / "docs"),
                "BACKSTOP_SPARK_FROM": "3",
            }
            | environment
        )
        platform.airflow.users |= users
        before(platform)
        platform.airflow.start()
        ready = Live(platform)
        after(ready)
        for name in dags:
            ready.api.unpause(name)
        yield ready
    finally:
        platform.stop()
