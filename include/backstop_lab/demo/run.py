"""The demo from an empty folder to its report: a platform, traffic, faults, a live Airflow, and the count of all."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import yaml

from backstop_lab.broker_kinds import EMBEDDED, KINDS
from backstop_lab.demo.accounting import machine, run_checker
from backstop_lab.demo.answer_questions import PERSON, AnsweringPerson
from backstop_lab.demo.call_for_runs import CallForRuns
from backstop_lab.demo.scenario import SECONDS_A_MESSAGE, play
from backstop_lab.demo.settle_down import QUESTIONS, let_it_finish
from backstop_lab.demo.stage import BOOKINGS, BOOKKEEPING, CALLED, Stage
from backstop_lab.platform import POSTGRESQL, PROJECT, Platform
from backstop_lab.servers.airflow import ADMIN
from backstop_lab.servers.receive_alerts import AlertReceivers
from backstop_lab.shop.databases import change

log = logging.getLogger(__name__)
QUIET_SECONDS = 900.0
AIRFLOW = "Airflow (beside the traffic)"
PARALLELISM = 8
"""Tasks at once: most of them wait for a database or for Spark."""
RECHECK = "10s"
"""A delivery that waits is judged again no sooner: with less each run judges everything that is under way."""
SOONER = {"retry_after": "1s", "sweep_interval": "2s", "unknown_horizon": "80s"}
"""A demo waits for each of these; a platform that stays up must not be kept busy by them."""
LAST_RUNS_SECONDS = 300.0
MANY_MESSAGES = 20_000
SCHEDULES = {
    # Started when they would find something to do (call_for_runs.py); on a schedule of seconds most runs find nothing.
    "BACKSTOP_RECONCILE_SCHEDULE": "none",
    "BACKSTOP_SWEEP_SCHEDULE": "none",
    "BACKSTOP_TRIAGE_SCHEDULE": "none",
    # Woken by whoever asks for a resend, opens a case or writes an alert.
    "BACKSTOP_RESEND_SCHEDULE": "1h",
    "BACKSTOP_ASK_SCHEDULE": "1h",
    "BACKSTOP_ALERTS_SCHEDULE": "1h",
    "BACKSTOP_WATCH_SCHEDULE": "1h",
    "BACKSTOP_RETRY_SECONDS": "1",
    "BACKSTOP_LOOK_AGAIN_SECONDS": "60",
    # A Spark driver lives for seconds here: the second compiler would cost more than it ever gives back.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class StartingAirflow:
    """Airflow comes up while the first messages flow already."""

    def __init__(self, stage: Stage, environment: Mapping[str, str]) -> None:
        self._stage, self._environment = stage, environment
        self._error: BaseException | None = None
        stage.beside = self.check
        self._thread = threading.Thread(target=self._start)
        self._thread.start()

    def _start(self) -> None:
        platform = self._stage.platform
        try:
            with self._stage.timed(
                AIRFLOW, "its database, its three processes and the first reading of the DAGs"
            ):
                platform.airflow.env.update(
                    {**platform.environment(), **SCHEDULES, **self._environment}
                )
                platform.airflow.users = {ADMIN: "admin", PERSON: "op"}
                platform.airflow.start()
                for duty in (*CALLED, QUESTIONS):
                    platform.airflow.api.unpause(duty)
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`, in the thread that can act
            self._error = error

    def wait(self) -> None:
        self._thread.join()
        self.check()

    def is_up(self) -> bool:
        return not self._thread.is_alive() and self._error is None

    def check(self) -> None:
        """Raises why Airflow did not start."""
        if self._error is not None:
            raise self._error


def run_demo(
    folder: Path, seed: int, messages: int, broker: str = EMBEDDED, stores: str = POSTGRESQL
) -> dict[str, Any]:
    """The whole demo in `folder`, which is emptied first; returns the report. `broker`, `stores`: kinds of backstop.yaml."""
    started = monotonic()
    log.info("set-up: waiting for the databases, the broker, Valkey and their schemas")
    with new_platform(folder, broker, stores) as platform:
        stage = Stage(platform, folder, seed, workers=workers_of_a_group(messages))
        try:
            stage.make_tables()
            stage.seconds["set-up"] = round(monotonic() - started, 1)
            report = tell(stage, messages)
        finally:
            stage.stop()
    report["seconds"] = {**stage.seconds, "all": round(monotonic() - started, 1)}
    report |= {"seed": seed, "messages": messages, "machine": machine()}
    (folder / "report.json").write_text(
        json.dumps(report, ensure_ascii=False, indent=2), encoding="utf-8"
    )
    return report


def workers_of_a_group(messages: int) -> int:
    """A worker commits its messages one by one and waits for the disk each time: with more of them one write serves several."""
    return 6 if messages >= MANY_MESSAGES else 2


def tell(stage: Stage, messages: int) -> dict[str, Any]:
    """Traffic and faults, quiet, and the count of everything."""
    receivers = AlertReceivers(stage.received)
    receivers.start()
    airflow = StartingAirflow(stage, receivers.environment())
    stage.call_for_runs = CallForRuns(stage, airflow.is_up).look
    person = AnsweringPerson(stage, lambda: stage.platform.airflow.api_of(PERSON), airflow.wait)
    try:
        person.start()
        try:
            stage.start()
            play(stage, messages)
        finally:
            airflow.wait()
        with stage.timed(
            "until quiet", "Backstop, and a person who is asked, to repair and decide all of it"
        ):
            quiet = QUIET_SECONDS + messages * SECONDS_A_MESSAGE
            let_it_finish(stage, person, stage.platform.airflow.api, quiet, LAST_RUNS_SECONDS)
    finally:
        person.stop()
        receivers.stop()
    with stage.timed("check", "the checker to count every message, effect and case"):
        report = run_checker(stage.write_places(), stage.ledger.folder)
    report["differs"] = stage.differs()
    report["runs"] = {
        f"{duty} {state}": count
        for duty, state, count in change(
            stage.control, "SELECT duty, state, count(*) FROM run GROUP BY 1, 2 ORDER BY 1, 2", ()
        )
    }
    return report


@contextmanager
def new_platform(
    folder: Path, broker: str = EMBEDDED, stores: str = POSTGRESQL
) -> Iterator[Platform]:
    """A platform without history, stopped at the end; its data stays in `folder` until the next demo."""
    root = folder / "platform"
    if root.exists():
        Platform(root).clear()  # refuses when another demo runs here
    shutil.rmtree(folder, ignore_errors=True)
    platform = Platform(
        root,
        write_config(folder / "backstop.yaml", broker, stores),
        broker,
        stores=stores,
        parallelism=PARALLELISM,
    )
    try:
        platform.start(airflow=False)
        yield platform
    finally:
        platform.stop()


def write_config(file: Path, broker: str = EMBEDDED, stores: str = POSTGRESQL) -> Path:
    """The platform's own settings, with these kinds of broker and of stores, readers of alerts (a mailbox and a program) and two
    rules about dead letters."""
    written = yaml.safe_load((PROJECT / "backstop.yaml").read_text(encoding="utf-8"))
    KINDS[broker].take_place(written)
    written["policy"] |= {"recheck": RECHECK, **SOONER}
    for store in (*written["producers"].values(), *written["consumers"].values()):
        store["kind"] = stores
    if KINDS[broker].owns_queues and stores == POSTGRESQL:
        [name] = written["brokers"]
        written["groups"][BOOKKEEPING] = {
            "store": "shipping_db",
            "duplicates": "guard",
            "progress": "acknowledged",
        }
        # A producer that is too slow leaves a send to Backstop: here nobody is asked about the gap.
        written["topics"][BOOKINGS] = {
            "broker": name,
            "groups": [BOOKKEEPING],
            "mode": "repair",
            "policy": {"ordering_gap": "resend"},
        }
    written["alerts"] = {
        "channels": {
            "mail": {"url": "env:BACKSTOP_ALERTS_MAIL", "at_least": "warning"},
            "post": {"url": "env:BACKSTOP_ALERTS_WEBHOOK", "kind": "webhook", "at_least": "info"},
        },
        "messages_an_hour": 600,
    }
    # What the shop's own errors mean; the others are known.
    rules = {"shop-missing-field": "^MissingField: ", "shop-credit": "^OverLimit: "}
    written["dead_letters"] = {
        "rules": [
            {"name": name, "where": "error", "category": "poison", "pattern": pattern}
            for name, pattern in rules.items()
        ]
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
    return file
