"""A duty's run: opened once for a scope, kept alive, fenced by its token, closed with its counts.

The lease saves work and keeps two runs of one scope apart. Safety does not rest on it alone: outside the control database
every write is a compare-and-set on the row itself; inside it, every transaction of a run calls `hold`.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg2
from psycopg2 import errors as pg

from backstop import __version__
from backstop.config.settings import Settings
from backstop.control.speaker import keep_policy, person
from backstop.model.errors import ConfigurationError, RunLost, RunRefused, Unavailable
from backstop.model.mask_secrets import drop_details
from backstop.model.storable_text import escaped
from backstop.runs.phase import CurrentPhase
from backstop.schema.revisions import head
from backstop.sql.named import load

_SQL = load("backstop.runs", "queries.sql")
DEAD_AFTER = timedelta(minutes=2)
"""A holder that was silent for longer is taken over: several heartbeats, and a pause of the machine."""
BEAT_EVERY = timedelta(seconds=5)
SHOWN_AFTER = timedelta(seconds=1)
"""A shorter phase is not written: most runs end without a heartbeat, and so without its connection."""

EndState = Literal["done", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a duty. `token` fences its writes (it opens no door); `as_of` is the control database's clock."""

    run_id: int
    token: str
    as_of: datetime
    duty: str
    scope: str
    dry_run: bool = False
    no_send: bool = False
    """Judges and promotes, and asks for no resend."""
    phase: CurrentPhase = field(default_factory=CurrentPhase, compare=False, repr=False)
    """What this process does for it now."""

    def _where(self) -> dict[str, Any]:
        lease = _lease(self.duty, self.dry_run)
        return {"lease": lease, "scope": self.scope, "token": self.token, "run_id": self.run_id}


def open_run(
    conn: Any,
    duty: str,
    scope: str,
    settings: Settings,
    dry_run: bool = False,
    dead_after: timedelta = DEAD_AFTER,
    no_send: bool = False,
) -> Run:
    """Opens and commits a run of `duty` over `scope` ('*': everything).

    Raises RunRefused while another one of exactly this scope lives; one that has been silent for
    `dead_after` is taken over and abandoned. Runs of other scopes go on beside it; those silent for
    DEAD_AFTER are abandoned, because nobody else may ever ask for their scope again. A dry run has
    a lease of its own, and keeps other dry runs waiting alone. A duty's run that is not dry notes
    the groups that came to a topic since the run before, and what limits people; a person's own
    login notes nothing. ConfigurationError when the database is of an older revision than this
    program (on a newer one, which only adds, it goes on), or the login may not.
    """
    require_schema(conn)
    notes = not dry_run and person(conn) is None
    if notes:
        keep_policy(conn, settings)
    token = str(uuid.uuid4())
    lease = _lease(duty, dry_run)
    where: dict[str, Any] = {
        "duty": duty,
        "lease": lease,
        "scope": scope,
        "token": token,
        "dry_run": dry_run,
        "no_send": no_send,
        "policy_version": settings.version,
        "code_version": __version__,
    }
    try:
        with conn, conn.cursor() as cursor:
            cursor.execute(_SQL["lock_lease"], where)
            holder = cursor.fetchone()
            if holder is not None and holder[2] < dead_after:
                raise _refused(
                    lease,
                    scope,
                    f"run {holder[1]}, last heard of {holder[2].total_seconds():.1f} s ago",
                )
            cursor.execute(_SQL["insert_run"], where)
            run_id, as_of = cursor.fetchone()
            if holder is not None:
                cursor.execute(_SQL["abandon_run"], {"run_id": holder[1], "by": run_id})
                cursor.execute(_SQL["take_over_lease"], {**where, "run_id": run_id})
            else:
                cursor.execute(_SQL["take_free_lease"], {**where, "run_id": run_id})
                if cursor.rowcount == 0:
                    raise _refused(lease, scope, "a run that began at the same moment")
            if notes:
                taken = [
                    (topic, group)
                    for topic in settings.topics
                    for group in settings.groups_of(topic)
                ]
                cursor.execute(
                    _SQL["see_groups"],
                    {
                        "topics": [topic for topic, _ in taken],
                        "groups": [group for _, group in taken],
                    },
                )
            cursor.execute(
                _SQL["drop_dead_leases"], {**where, "dead_after": max(dead_after, DEAD_AFTER)}
            )
            for (dead,) in cursor.fetchall():
                cursor.execute(_SQL["abandon_run"], {"run_id": dead, "by": run_id})
    except pg.LockNotAvailable:
        raise _refused(lease, scope, "a run whose transaction has not ended yet") from None
    except pg.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"This login may not open the run: {drop_details(error)}.",
            unaffected="Nothing was read or changed.",
            next_step="With a login of your own use --dry-run, or name a topic. Runs over everything are the duties'.",
        ) from None
    return Run(run_id, token, as_of, duty, scope, dry_run, no_send)


def require_schema(conn: Any) -> None:
    """Raises ConfigurationError where the control database is of an older revision than this program, or is none."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["version_is_there"])
        version, has_tables = cursor.fetchone()
        if not has_tables:
            raise ConfigurationError(
                "The database that `control` names has no tables of a control database, or this login may not see them.",
                unaffected="Nothing was read or changed.",
                next_step="Run `backstop migrate --role control`, then `backstop migrate --grants --role control`; or correct the"
                " connection, where it is another database's.",
            )
        if version is None:
            return  # not made by `backstop migrate`: whoever made it otherwise keeps no version
        cursor.execute(_SQL["version"])
        found = cursor.fetchone()
    if found is None or found[0] < head("control"):
        raise ConfigurationError(
            f"The control database is at revision {found[0] if found else 'none'}, and this program needs {head('control')}.",
            unaffected="Nothing was read or changed.",
            next_step="Run `backstop migrate --role control`, then `backstop migrate --grants --role control`.",
        )


def find(conn: Any, run_id: int, token: str) -> Run:
    """The open run with this id and token, as a Spark job is given it; RunLost when it is not ours or not open."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["find"], {"run_id": run_id, "token": token})
        row = cursor.fetchone()
    if row is None:
        raise _lost(run_id)
    duty, scope, as_of, dry_run, no_send = row
    return Run(run_id, token, as_of, duty, scope, dry_run, no_send)


def hold(cursor: Any, run: Run) -> None:
    """Proves that the run is ours and open, and keeps it so until the caller's transaction ends; else RunLost.

    Call it first in every transaction that writes to the control database for a run. It does not block heartbeats nor
    other workers of the same run.
    """
    cursor.execute(_SQL["hold"], run._where())
    if cursor.fetchone() is None:
        raise _lost(run.run_id)


def beat(conn: Any, run: Run) -> None:
    """Says that the run lives, then in which phase it is, and commits each; RunLost when it is not ours any more."""
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["beat"], run._where())
        if cursor.rowcount == 0:
            raise _lost(run.run_id)
        cursor.execute(_SQL["show_beat"], run._where())
    phase = run.phase.unwritten()
    if phase is None:
        return
    # By itself: a run lives although its phase cannot be written.
    shown = {"run_id": run.run_id, "phase": phase.name, "done": phase.done, "of": phase.of}
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["show_phase"], shown)
    run.phase.wrote(phase)


def begin_stage(conn: Any, run: Run) -> int:
    """Begins the judge's next attempt in this run, and commits; returns its number (1 and up). What it stages counts once
    `finish_stage` has said that it is whole. RunLost when the run is not ours any more, or its stage is already being checked."""
    with conn, conn.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["begin_stage"], run._where())
        found = cursor.fetchone()
        if found is None:
            raise _too_late(run.run_id)
    return int(found[0])


def finish_stage(cursor: Any, run: Run, stage: int, policy_version: str | None = None) -> None:
    """From the end of the caller's transaction, which holds the run, this stage is what the run checks and promotes.
    `policy_version`: of the settings that it was judged by, which may have changed since another process opened the run.

    RunLost when a later stage is whole, or a check of an earlier one has begun: what was checked is what is promoted."""
    cursor.execute(
        _SQL["finish_stage"],
        {"run_id": run.run_id, "stage": stage, "policy_version": policy_version},
    )
    if cursor.fetchone() is None:
        raise _too_late(run.run_id)


def add_counts(conn: Any, run: Run, counts: Mapping[str, int]) -> None:
    """Adds what was done to the run's counts, so that a check finds them whatever happens next; commits."""
    with conn, conn.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(
            _SQL["add_counts"], {"run_id": run.run_id, "counts": json.dumps(dict(counts))}
        )


def close_run(
    conn: Any,
    run: Run,
    state: EndState,
    counts: Mapping[str, int],
    phases: Mapping[str, float] | None = None,
    error: str | BaseException | None = None,
) -> None:
    """Ends the run, gives its lease back, and commits. Closing again what is closed raises RunLost.
    `error`: an exception is kept, and changed, as `drop_details` does.

    A lost run that wants to end as failed is left as it is: whoever took it over has already written why.
    """
    if error is not None:
        error = drop_details(error).strip() if isinstance(error, BaseException) else escaped(error)
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["give_back_lease"], run._where())
        if cursor.rowcount == 0:
            if state == "failed":
                return
            raise _lost(run.run_id)
        cursor.execute(
            _SQL["close_run"],
            {
                "run_id": run.run_id,
                "state": state,
                "error": error,
                "counts": json.dumps(dict(counts)),
                "phases": json.dumps(dict(phases or {})),
            },
        )


@contextmanager
def keep_alive(
    connect: Callable[[], Any], run: Run, every: timedelta = BEAT_EVERY
) -> Iterator[threading.Event]:
    """Beats in the background over a connection of its own; yields an event that is set when the run was lost.

    It beats at intervals, and when the run is in another phase. A control database that does not answer is asked again: the lease
    tells who is right once it is back.
    """
    lost, stop = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=_beat_until,
        args=(connect, run, every.total_seconds(), stop, lost),
        daemon=True,
        name="heartbeat",
    )
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        run.phase.changed.set()
        thread.join()


def _beat_until(
    connect: Callable[[], Any],
    run: Run,
    seconds: float,
    stop: threading.Event,
    lost: threading.Event,
) -> None:
    conn: Any = None
    try:
        while not stop.is_set():
            if run.phase.changed.wait(seconds):
                run.phase.changed.clear()
                if stop.wait(min(seconds, SHOWN_AFTER.total_seconds())):
                    return
            try:
                if conn is None:
                    conn = connect()
                beat(conn, run)
            except RunLost:
                lost.set()
                return
            except (Unavailable, psycopg2.Error):
                # Being away is not being lost. A new connection, at the next beat.
                if conn is not None:
                    conn.close()
                conn = None
    finally:
        if conn is not None:
            conn.close()


def _lease(duty: str, dry_run: bool) -> str:
    """The name of the lease; the control database knows it, too (keep_off_duties)."""
    return f"{duty} (dry run)" if dry_run else duty


def _refused(duty: str, scope: str, holder: str) -> RunRefused:
    what = "everything" if scope == "*" else scope
    return RunRefused(
        f"Another {duty} over {what} is at work: {holder}.",
        unaffected="It was not disturbed, and nothing was done twice.",
        next_step="Wait until it ends; if it has died, it is taken over once it has been silent for long enough.",
    )


def _too_late(run_id: int) -> RunLost:
    return RunLost(
        f"Run {run_id} has staged its answers already, in another attempt: this one comes too late.",
        unaffected="What the other attempt staged is what is checked and promoted; nothing of this one is.",
        next_step="Let this process end. If the run fails, start the duty again: its next run judges again.",
    )


def _lost(run_id: int) -> RunLost:
    return RunLost(
        f"Run {run_id} is closed, or was taken over by another one.",
        unaffected="This process changed nothing since; what the run had committed stays valid.",
        next_step="Let this process end; `backstop runs show` names the run that took over, and the next run goes on.",
    )
