"""What the tasks of our DAGs do: open a run, audit it, promote it, close it. Each calls functions of
backstop, no more.

Nothing of backstop, and no driver, is imported before a task runs: DAG files import this module. Between
tasks travel the run's id, its fencing token (which opens no door by itself) and counts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.airflow import notify

if TYPE_CHECKING:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.runs.run import EndState, Run

SOMETHING_AWAY = "something_away"
"""XCom key: the task failed because a store or broker did not answer, after it had done all else."""

log = logging.getLogger(__name__)

Opened = dict[str, Any]
"""run_id, token, dry_run, no_send, due: what one task hands to the next."""


@dataclass(frozen=True, slots=True)
class Room:
    """The settings, how to reach things, and an open connection to the control database."""

    settings: Settings
    connections: Connections
    control: Any


def told(step: Callable[..., Any]) -> Callable[..., Any]:
    """Puts the three parts of a BackstopError into the task's log, each on its own line, and lets it pass
    on."""

    @wraps(step)
    def telling(*arguments: Any, **named: Any) -> Any:
        from backstop.errors import BackstopError

        try:
            return step(*arguments, **named)
        except BackstopError as error:
            for part, text in (("what", error.what), ("kept", error.kept), ("next", error.next_step)):
                log.error("backstop %s: %s", part, text)
            raise

    return telling


@contextmanager
def control_room() -> Iterator[Room]:
    """Settings from $BACKSTOP_CONFIG and connections from Airflow; the control connection is closed at the
    end."""
    from backstop.config.connections import Connections
    from backstop.config.load import load
    from backstop.runs.control import connect

    settings, connections = load(), Connections(resolver=url_from_airflow)
    control = connect(settings, connections)
    try:
        yield Room(settings, connections, control)
    finally:
        control.close()


def url_from_airflow(connection_id: str) -> str | None:
    """A connection in Airflow's JSON form, from whatever secrets backend Airflow uses; null when it knows
    none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    try:
        connection = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError):
        return None
    if connection.conn_type not in ("postgres", "postgresql", "redis", "rediss"):
        return connection.get_uri()
    fields = ("conn_type", "host", "login", "password", "port", "schema")
    return json.dumps({name: getattr(connection, name) for name in fields} | {"extra": connection.extra_dejson})


@contextmanager
def going_on(opened: Mapping[str, Any]) -> Iterator[tuple[Room, Run]]:
    """The run that an earlier task opened, kept alive meanwhile. Raises RunLost when it is not ours any
    more."""
    from backstop.runs.control import connect
    from backstop.runs.run import find, keep_alive

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        with keep_alive(lambda: connect(room.settings, room.connections), run):
            yield room, run


@told
def open_duty(
    duty: str, topic: str | None, dry_run: bool, count: Callable[[Room, Run], int],
    *, start: str | None = None, end: str | None = None, no_send: bool = False,
) -> Opened | None:  # fmt: skip
    """Opens a run over a topic (null: all) and the stubs created since `start` and before `end` (null: open); counts what is
    due. Null: nothing is due, and the run is recorded as done.

    Raises RunRefused while another run of this duty and scope lives, and whatever `count` raises: the run is
    then closed as failed (or incomplete, when something did not answer).
    """
    from datetime import datetime

    from backstop.errors import ConfigurationError, Unavailable
    from backstop.records import Counts
    from backstop.runs.run import close_run, open_run
    from backstop.runs.scope import name_of

    with control_room() as room:
        if topic is not None and topic not in room.settings.topics:
            raise ConfigurationError(
                f"There is no topic {topic!r}.",
                kept="Nothing was started.",
                next_step=f"Name one of: {', '.join(room.settings.topics)}.",
            )
        since, before = (datetime.fromisoformat(text) if text else None for text in (start, end))
        scope = name_of([topic] if topic else None, since, before)
        run = open_run(room.control, duty, scope, room.settings, dry_run=dry_run, no_send=no_send)
        try:
            due = count(room, run)
        except BaseException as error:
            room.control.rollback()
            state: EndState = "incomplete" if isinstance(error, Unavailable) else "failed"
            close_run(room.control, run, state, Counts(), error=str(error))
            raise
        if due == 0:
            close_run(room.control, run, "done", Counts(due=0))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": no_send, "due": due}


@told
def open_proof(topic: str, start: str, end: str) -> Opened:
    """Opens the run of a proof over the part of the window that can be proven now."""
    from datetime import datetime

    from backstop.reconcile.run_proof import open_proof as open_window

    with control_room() as room:
        run = open_window(
            room.control, room.settings, topic, datetime.fromisoformat(start), datetime.fromisoformat(end)
        )
        return {"run_id": run.run_id, "token": run.token, "dry_run": False, "due": 1}


@told
def close_proof(opened: Opened, failed: list[str], *, away: bool = False) -> dict[str, Any]:
    """Tells the sentence and closes the run: done, incomplete (not everything could be read) or failed.

    Raises AirflowFailException for a run that is not done, so that it ends red at once.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.records import Counts
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        with room.control, room.control.cursor() as cursor:
            cursor.execute(_PROOF, {"run_id": run.run_id})
            answer, sentence, counts = cursor.fetchone() or ("none", "There is no proof: a task before this one failed.", {})
        incomplete = answer == "incomplete" or (bool(failed) and away)
        state: EndState = "incomplete" if incomplete else "failed" if failed else "done"
        close_run(room.control, run, state, Counts(counts), error=sentence if state != "done" else None)
    log.info("backstop: %s", sentence)
    if state != "done":  # this task alone decides what Airflow calls the DAG run
        raise AirflowFailException(sentence)
    return {"run_id": run.run_id, "state": state, "answer": answer, "sentence": sentence}


_PROOF = """
    SELECT p.answer, p.sentence, coalesce((
        SELECT jsonb_object_agg(c.standing, c.deliveries)
        FROM (SELECT standing, sum(deliveries) AS deliveries FROM proof_count WHERE run_id = p.run_id GROUP BY standing) AS c
    ), '{}')
    FROM proof AS p
    WHERE p.run_id = %(run_id)s
"""


def reconcile_due(room: Room, run: Run) -> int:
    """Stubs due in the run's scope, after late attempts were recovered and the messages of open cases were judged again."""
    from backstop.reconcile.begin import begin
    from backstop.reconcile.count_due import count_due
    from backstop.runs.scope import scope_of

    begin(room.settings, room.connections, room.control, run)
    due = count_due(room.settings, room.connections, run.as_of, scope_of(run.scope))
    if due.total == 0:
        due.require_reachable()
    return due.total


def resend_due(room: Room, run: Run) -> int:
    """Requests that may go out now, and claims that nobody finished; paused topics and those in mode observe
    wait."""
    from backstop.runs.scope import topics_of

    wanted = topics_of(run.scope)
    repair = [
        name for name, topic in room.settings.topics.items()
        if topic.mode == "repair" and (wanted is None or name in wanted)
    ]  # fmt: skip
    with room.control, room.control.cursor() as cursor:
        cursor.execute(_REQUESTS_DUE, {"topics": repair})
        return int(cursor.fetchone()[0])


@told
def open_sweep(groups: list[str], dry_run: bool) -> Opened | None:
    """Opens a sweep over these groups (none: all) and counts, in milliseconds, what ended. Null: nothing did."""
    from backstop.errors import Unavailable
    from backstop.records import Counts
    from backstop.runs.run import close_run, open_run
    from backstop.sweep.parts import parts_of
    from backstop.sweep.run_once import count_before, scope_of_groups

    with control_room() as room:
        parts_of(room.settings, groups or None)
        run = open_run(room.control, "sweep", scope_of_groups(groups), room.settings, dry_run=dry_run)
        try:
            counted = count_before(room.settings, room.connections, room.control, run)
            idle = not counted.leases and not counted.is_sample_due
            if idle:
                counted.require_reachable()
        except BaseException as error:
            room.control.rollback()
            state: EndState = "incomplete" if isinstance(error, Unavailable) else "failed"
            close_run(room.control, run, state, Counts(), error=str(error))
            raise
        if idle:
            close_run(room.control, run, "done", Counts(due=0))
            return None
        return {"run_id": run.run_id, "token": run.token, "dry_run": dry_run, "no_send": False, "due": counted.leases}


@told
def resend_here(opened: Opened) -> dict[str, int]:
    """What spark_jobs/resend.py does, by one worker in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.resend.work import run_once

    with going_on(opened) as (room, run):
        return dict(run_once(room.settings, room.connections, run, tell=lambda planned: log.info("backstop %s", planned)))


@told
def sweep_here(opened: Opened) -> dict[str, int]:
    """What spark_jobs/sweep.py does, part after part in this process. Raises Unavailable, after all else was done, as it does."""
    from backstop.sweep.run_once import in_this_process, sweep_all

    with going_on(opened) as (room, run):
        tell = (lambda told: log.info("backstop would %s", told)) if run.dry_run else None
        spread = in_this_process(room.settings, room.connections, run, tell)
        return dict(sweep_all(room.settings, room.connections, room.control, run, spread))


_REQUESTS_DUE = """
    WITH wanted AS (
        SELECT t.topic FROM unnest(%(topics)s::text[]) AS t (topic)
        WHERE NOT EXISTS (SELECT 1 FROM pause AS p WHERE p.topic IN (t.topic, '*'))
    )
    SELECT (SELECT count(*) FROM resend_request AS r JOIN wanted USING (topic)
            WHERE r.state = 'open' AND r.not_before <= clock_timestamp()
                AND NOT EXISTS (SELECT 1 FROM resend_batch AS b WHERE b.topic = r.topic AND b.state = 'stopped'
                    AND (r.held OR r.batch_id = b.batch_id))
                OR r.state = 'claimed' AND r.claim_deadline <= clock_timestamp())
        -- A live batch is looked at by every run, also when nothing of it is held any more: its last step may go wrong.
        + (SELECT count(*) FROM resend_batch AS b JOIN wanted USING (topic) WHERE b.state = 'ramping')
"""


def anything_to_send(room: Room) -> bool:
    """Whether the control database holds a request that the resend duty could take now, asked for in whatever
    run."""
    with room.control, room.control.cursor() as cursor:
        repair = [name for name, topic in room.settings.topics.items() if topic.mode == "repair"]
        cursor.execute(_REQUESTS_DUE, {"topics": repair})
        return int(cursor.fetchone()[0]) > 0


def anything_to_tell(room: Room) -> bool:
    """Whether an alert waits for a channel that may be tried now; without channels nobody is to be told."""
    from backstop.alerts.look import any_waiting

    return bool(room.settings.channels()) and any_waiting(room.control)


def anybody_to_ask(room: Room) -> bool:
    """Whether a case is to be shown to a person, or a question taken away."""
    from backstop.cases.questions import any_to_ask

    return any_to_ask(room.control, room.settings.people.questions, room.settings.teams_by_topic())


def away(context: Mapping[str, Any], failed: list[str]) -> bool:
    """Whether what failed did so because something did not answer: the run is then incomplete, not broken."""
    return any(context["ti"].xcom_pull(task_ids=task, key=SOMETHING_AWAY) for task in failed)


def failed_tasks(context: Mapping[str, Any]) -> list[str]:
    """The tasks of this DAG run that failed, or could not start because another one did."""
    task = context["ti"]
    states = task.get_task_states(dag_id=task.dag_id, run_ids=[task.run_id]).get(task.run_id, {})
    return sorted(name for name, state in states.items() if str(state) in ("failed", "upstream_failed"))


@told
def promote(opened: Opened) -> dict[str, int]:
    """Applies what was judged and audited; returns its counts."""
    from backstop.reconcile.anomalies import find_anomalies
    from backstop.reconcile.promote import promote as promote_run

    with going_on(opened) as (room, run):
        counts = promote_run(room.settings, room.connections, room.control, run)
        return dict(counts + find_anomalies(room.settings, room.connections, room.control, run))


@told
def audit(suite: str, opened: Opened) -> str:
    """Runs one suite of data checks over the run; returns its report. Raises AuditFailed when a check does
    not hold."""
    return audit_phase([suite], opened)[0]


@told
def audit_phase(suites: Sequence[str], opened: Opened) -> list[str]:
    """Runs the suites of one phase in one process, each to its end; returns their reports.

    Raises the AuditFailed of the first suite that does not hold, after all of them have run.
    """
    from backstop.errors import AuditFailed
    from backstop.quality import run_suite

    reports: list[str] = []
    failed: list[AuditFailed] = []
    with going_on(opened) as (room, run):
        repair = [name for name, topic in room.settings.topics.items() if topic.mode == "repair"]
        url = room.connections.url(room.settings.control)
        for suite in suites:
            try:
                reports.append(run_suite(suite, url, run.run_id, None, docs_folder(), repair_topics=repair).report)
            except AuditFailed as error:
                log.error("backstop: %s", error.what)
                failed.append(error)
    if failed:
        raise failed[0]
    return reports


@told
def close(opened: Opened, failed: list[str], *, away: bool = False) -> dict[str, Any]:
    """Closes the run as done, incomplete (not everything answered: `away`) or failed (these tasks failed);
    returns its summary.

    Raises AirflowFailException for a run that is not done, so that it ends red at once: what it did stays valid,
    and trying to close it again could not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from backstop.errors import Unavailable
    from backstop.runs.run import close_run, find

    with control_room() as room:
        run = find(room.control, int(opened["run_id"]), str(opened["token"]))
        missed: Unavailable | None = None
        if not failed and run.duty == "reconcile":
            from backstop.reconcile.require_reachable import require_all_reachable

            try:
                require_all_reachable(room.control, run)
            except Unavailable as error:
                missed = error
        state: EndState = "incomplete" if missed or (failed and away) else "failed" if failed else "done"
        error_text = f"failed tasks: {', '.join(sorted(failed))}" if failed else str(missed) if missed else None
        counts = counts_of(room.control, run, int(opened["due"]))
        close_run(room.control, run, state, counts, error=error_text)
    if missed:
        log.error("backstop what: %s", missed.what)
    if state != "done":
        # This task alone decides what Airflow calls the DAG run: a tear-down that counts takes the place of every other end.
        raise AirflowFailException(error_text) from missed
    return {"run_id": run.run_id, "state": state, **counts}


def counts_of(control: Any, run: Run, due: int) -> Any:
    """What the run did, by name: its job's own counts, or verdicts as they were staged and requests as they
    were made."""
    from backstop.records import Counts

    counts = Counts(due=due)
    with control, control.cursor() as cursor:
        cursor.execute(_COUNTS, {"run_id": run.run_id})
        for name, number in cursor.fetchall():
            counts[name] = int(number)
    return counts


_COUNTS = """
    SELECT lower(c.verdict), sum(c.deliveries)
    FROM staged_count AS c JOIN run AS r USING (run_id, stage)
    WHERE r.run_id = %(run_id)s
    GROUP BY c.verdict
    UNION ALL
    SELECT 'requests', count(*) FROM resend_request WHERE run_id = %(run_id)s HAVING count(*) > 0
    UNION ALL
    SELECT 'cases', count(*) FROM case_file WHERE opened_by_run = %(run_id)s HAVING count(*) > 0
    UNION ALL
    SELECT 'closed_' || state, count(*) FROM resend_request WHERE closed_by_run = %(run_id)s GROUP BY state
"""


@told
def watch() -> dict[str, Any]:
    """One look of the watch, its alerts and heartbeat, and what the notifier has still to tell; returns its summary.

    Raises what the watch raises, after the notifier had its turn: an alert is told even when something did not answer.
    """
    from backstop.health.watch import run_once

    with control_room() as room:
        notify.tell_back(room.control)
        try:
            watched = run_once(room.settings, room.connections)
        finally:
            told_now = notify.tell_unsaid(room.settings, room.connections, room.control)
        for sentence in watched.overdue.values():
            log.error("backstop: %s", sentence)
        return {**watched.counts, "told": told_now}


def docs_folder() -> Path:
    """Where the Data Docs lie: $BACKSTOP_DOCS_FOLDER, else a folder of Airflow's home. Workers and the UI
    share it."""
    home = os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")
    return Path(os.environ.get("BACKSTOP_DOCS_FOLDER") or Path(home) / "backstop_data_docs")
