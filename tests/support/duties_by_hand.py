"""Backstop's duties in this process, one after the other and without Airflow, over a stage of the demo; a person answers by hand.

One Spark session for all runs, so that the whole story of the demo is told in minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backstop.alerts.run_once import run_once as deliver_alerts
from backstop.checks.run import run_suites
from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.model.errors import Unavailable
from backstop.reconcile.run_once import run_once as reconcile
from backstop.resend.run_once import run_duty as resend
from backstop.runs.run import Run
from backstop.spark.session import start_session
from backstop.sweep.run_once import run_duty as sweep
from backstop.triage.run_once import run_duty as triage
from backstop_lab.demo.choose_answer import choose_answer
from backstop_lab.demo.settle_down import still_open
from backstop_lab.demo.stage import Stage
from backstop_lab.shop.databases import change
from backstop_lab.shop.wait_for import wait_for


class DutiesByHand:
    """A thread that does all duties in turn until it is stopped. `broken`: what ended it early; `away`: what did not answer."""

    def __init__(self, stage: Stage, docs: Path) -> None:
        self._stage, self._docs = stage, docs
        duties = {**stage.urls, "backstop_broker": stage.platform.broker.for_duties()}
        self._connections = Connections(resolver=duties.get)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        stage.beside = self._check
        self.broken: BaseException | None = None
        self.away: list[str] = []

    def __enter__(self) -> DutiesByHand:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def wait_until_quiet(self, seconds: float) -> None:
        """Nothing is open that Backstop, or the person who answers here, has to do."""
        person: Any = self  # as the demo's: it may have broken
        wait_for(
            "Quiet",
            lambda: not still_open(self._stage, person),
            seconds,
            lambda: str(still_open(self._stage, person)),
        )

    def _run(self) -> None:
        settings, connections = self._stage.settings, self._connections
        repair = [name for name, its in settings.topics.items() if its.mode == "repair"]

        def audit(run: Run, suites: Sequence[str]) -> None:
            run_suites(
                suites,
                connections.url(settings.control),
                run.run_id,
                None,
                self._docs,
                repair_topics=repair,
            )

        spark = start_session("the demo by hand", "local[2]")
        duties = (
            lambda: reconcile(settings, connections, lambda: spark.newSession(), audit),
            lambda: resend(settings, connections),
            lambda: sweep(settings, connections),
            lambda: triage(settings, connections),
            lambda: self._answer(),
            lambda: deliver_alerts(settings, connections),
        )
        try:
            while not self._over.is_set():
                for duty in duties:
                    try:
                        duty()
                    except Unavailable as away:
                        self.away.append(
                            str(away)
                        )  # a fault takes a database or the broker away; the next run finds it back
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for quiet
            self.broken = error
        finally:
            spark.stop()

    def _answer(self) -> None:
        """As a person would in Airflow."""
        control = connect(self._stage.settings, self._connections)
        try:
            open_now = change(
                self._stage.control,
                "SELECT case_id FROM case_file WHERE state = 'open' ORDER BY 1",
                (),
            )
            for (case_id,) in open_now:
                if answer := choose_answer(self._stage, case_id):
                    options = dict(answer.inputs)
                    if "ids" in options:
                        options["message_ids"] = [options.pop("ids")]
                    if "secret_content" in options:  # the form's name for it
                        options["content"] = options.pop("secret_content").encode()
                    decide(
                        control,
                        self._stage.settings,
                        self._connections,
                        case_id,
                        answer.option,
                        "ann",
                        answer.why,
                        options,
                    )
        finally:
            control.close()
