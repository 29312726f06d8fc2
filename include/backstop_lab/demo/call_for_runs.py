"""Starts a duty when it would find something to do, as a person with the databases before them would trigger its DAG.

On a schedule of seconds most runs of a demo find nothing, or judge the same few stubs again, and each costs processes. A
platform that stays up goes by its schedules (`make up`, docs/how-to/airflow.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg2

from backstop.alerts.list_alerts import any_waiting
from backstop.decisions.questions import any_to_ask
from backstop.resend.count_due import count_due
from backstop.schema.mariadb import is_mariadb
from backstop_lab.demo.stage import Stage
from backstop_lab.servers.airflow_api import AirflowApi, AirflowUnavailable
from backstop_lab.shop.databases import away, change, listed, statements

LOOK_SECONDS = 1.0
SOON_SECONDS = 6.0
"""A run is not called for while more stubs become due within this time: what was just sent does, and a run of its own takes
longer."""
PATIENCE = {
    "reconcile": 30.0,
    "triage": 20.0,
    "sweep": 10.0,
    "resend": 10.0,
    "watch": 10.0,
    "ask_people": 10.0,
    "deliver_alerts": 10.0,
}
"""Seconds after which a duty with work is called although more is to come, or although a task should have started it."""
LONGEST = 60.0
"""Seconds without a call after which the three that have no other start are called, whatever is known of their work."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What a duty would find. Not `ready`: it is left to wait for more of the kind, or for whoever starts the duty otherwise."""

    what: str
    ready: bool = False


class CallForRuns:
    """Looks once a second while the story waits; `stage.runs_wanted` says for what. Not shared between threads."""

    def __init__(self, stage: Stage, is_up: Callable[[], bool]) -> None:
        self._stage, self._is_up = stage, is_up
        self._finders = {
            "reconcile": self._to_judge,
            "triage": self._to_triage,
            "sweep": self._to_sweep,
            "resend": self._to_send,
            "watch": self._to_watch,
            "ask_people": self._to_ask,
            "deliver_alerts": self._to_deliver,
        }
        self._looked_at = -LOOK_SECONDS
        self._waits_since: dict[str, float] = {}
        self._called_at: dict[str, float] = {}

    def look(self) -> None:
        """Calls for what is wanted and has something to do; nothing before Airflow is up."""
        now = monotonic()
        if now - self._looked_at < LOOK_SECONDS or not self._is_up():
            return
        self._looked_at = now
        wanted = self._stage.runs_wanted.duties
        if not wanted:
            return
        with closing(psycopg2.connect(self._stage.control, connect_timeout=10)) as control:
            alive = {
                str(duty)
                for (duty,) in rows(
                    control, "SELECT DISTINCT duty FROM run WHERE finished_at IS NULL"
                )
            }
            for duty, find in self._finders.items():
                if duty in alive:
                    self._waits_since.pop(duty, None)
                elif duty in wanted:
                    self._call_when_due(duty, find(control), now)

    def _call_when_due(self, duty: str, work: Work | None, now: float) -> None:
        if work is None:
            self._waits_since.pop(duty, None)
            if (
                duty in ("reconcile", "triage", "sweep")
                and now - self._called_at.setdefault(duty, now) >= LONGEST
            ):
                self._call(duty, f"it was not called for {LONGEST:.0f} s", now)
            return
        if work.ready or now - self._waits_since.setdefault(duty, now) >= PATIENCE[duty]:
            self._call(duty, work.what, now)

    def _call(self, duty: str, why: str, now: float) -> None:
        api: AirflowApi = self._stage.platform.airflow.api
        try:
            if any(run["state"] in ("queued", "running") for run in api.dag_runs(duty, limit=1)):
                return
            api.trigger(duty)
        except AirflowUnavailable as silent:
            if silent.status is not None:
                raise
            return  # a busy machine: asked again by the next look
        log.debug("  calls for %s: %s", duty, why)
        self._called_at[duty] = now
        self._waits_since.pop(duty, None)

    def _to_judge(self, control: Any) -> Work | None:
        values = {
            "held": listed((topic, mid) for topic, mid in rows(control, HELD)),
            "soon": SOON_SECONDS,
        }
        due = soon = 0
        for dsn in self._stage.shards.values():
            for counted_due, counted_soon in ask(dsn, statements(dsn)["due"], values):
                due, soon = due + int(counted_due), soon + int(counted_soon)
        if not due:
            return None
        more = soon > 0 or (not self._stage.runs_wanted.at_once and number(control, UNDER_WAY) > 0)
        return Work(f"{due} stubs are due", ready=not more)

    def _to_triage(self, control: Any) -> Work | None:
        groups = [
            (topic, group) for topic, takers in self._stage.topics.items() for group in takers
        ]
        if waiting := self._stage.broker_faults.letters_waiting(groups):
            return Work(f"{waiting} dead letters wait in the broker", ready=True)
        if undecided := number(control, LETTERS_TO_DECIDE):
            return Work(f"{undecided} dead letters are to be decided", ready=True)
        if ended := number(control, REPLAYS_ENDED):
            return Work(f"{ended} replays ended", ready=not number(control, TO_BE_ANSWERED))
        return None

    def _to_sweep(self, control: Any) -> Work | None:
        if not number(control, "SELECT count(*) FROM run WHERE duty = 'sweep'"):
            return Work("there was none yet", ready=True)
        if failing := number(
            control,
            "SELECT count(*) FROM case_file WHERE state = 'open' AND kind = 'repeated_failure'",
        ):
            return Work(f"{failing} cases of repeated failure are open")
        ended = sum(
            found
            for dsn in set(self._stage.stores.values())
            for (found,) in ask(dsn, statements(dsn)["ended_leases"], {})
        )
        return Work(f"{ended} leases ended") if ended else None

    def _to_send(self, control: Any) -> Work | None:
        due = count_due(control, self._stage.settings)
        return Work(f"{due} requests are due") if due else None

    def _to_watch(self, control: Any) -> Work | None:
        """Parked keys become cases; only the watch finds that one of its cases is over."""
        found = [
            (state, int(keys))
            for dsn in set(self._stage.stores.values())
            if not is_mariadb(dsn)  # no table of parked keys
            for state, keys in ask(dsn, PARKED_KEYS, {})
        ]
        asked = number(control, PARKED_ASKED)
        if sum(keys for state, keys in found if state == "PARKED") > asked:
            return Work("a parked key has no case", ready=True)
        if asked and not found:
            return Work("a case is open of a key that is free", ready=True)
        if others := number(control, WATCHED):
            return Work(f"{others} cases of the watch are open")
        return None

    def _to_ask(self, control: Any) -> Work | None:
        settings = self._stage.settings
        return (
            Work("a case to ask about")
            if any_to_ask(control, settings.people.questions, settings.teams_by_topic())
            else None
        )

    def _to_deliver(self, control: Any) -> Work | None:
        return Work("an alert waits") if any_waiting(control) else None


HELD = """
    SELECT m.topic, m.message_id FROM case_member m JOIN case_file c USING (case_id) WHERE c.state = 'open'
    UNION SELECT topic, message_id FROM quarantine WHERE message_id IS NOT NULL
    UNION SELECT topic, message_id FROM resend_request WHERE state IN ('open', 'claimed')
    UNION SELECT v.topic, v.message_id FROM verdict v JOIN case_file c USING (topic, consumer_group)
        WHERE v.verdict = 'PARKED' AND c.kind = 'key_parked' AND c.state = 'open'
"""
"""What a run could only find as it was: a person decides it, or a send of it was asked for."""
TO_BE_ANSWERED = (
    "SELECT count(*) FROM case_file WHERE state = 'open' AND kind IN ('dead_letters', 'mass_loss')"
)
UNDER_WAY = """
    SELECT (SELECT count(*) FROM resend_request WHERE state IN ('open', 'claimed'))
        + (SELECT count(*) FROM dead_letter WHERE state IN ('open', 'replaying'))
        + (SELECT count(*) FROM case_file WHERE state = 'open' AND kind IN ('dead_letters', 'mass_loss'))
"""
"""What will leave stubs to judge when it is over."""
LETTERS_TO_DECIDE = """
    SELECT count(*) FROM dead_letter d LEFT JOIN case_file c USING (case_id)
    WHERE d.state = 'open' AND (d.look_at IS NULL OR d.look_at <= now()) AND c.state IS DISTINCT FROM 'open'
"""
REPLAYS_ENDED = """
    SELECT count(*) FROM dead_letter d
    LEFT JOIN resend_request r ON r.topic = d.topic AND r.message_id = d.message_id AND r.send_number = d.send_number
    WHERE d.state = 'replaying' AND (r.state IS NULL OR r.state NOT IN ('open', 'claimed'))
"""
PARKED_KEYS = "SELECT state, count(*) FROM parked_key GROUP BY 1"
WATCHED = (
    "SELECT count(*) FROM case_file WHERE closed_at IS NULL"
    " AND kind IN ('queue_blocked', 'parking_full', 'downstream_away')"
)
PARKED_ASKED = "SELECT count(*) FROM case_file WHERE kind = 'key_parked' AND closed_at IS NULL"


def rows(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def number(connection: Any, statement: str) -> int:
    [(found,)] = rows(connection, statement)
    return int(found)


def ask(dsn: str, statement: str, values: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    """The rows; none when the database is away, which is one of the faults."""
    try:
        return change(dsn, statement, values)
    except away(dsn):
        return []
