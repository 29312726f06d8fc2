"""A duty is a value: what is due, and its steps and data checks in order. Here its run is opened, kept alive, walked and closed.

    open | due | step, step, check, ... | unread | close

The command line and the tests walk a duty in one process (`walk_duty`). Airflow walks the same value with a process for each
step: `open_due`, `do_step` and `close` are what its tasks call. How a run ends is decided by `state_of` alone:

- done: nothing went wrong;
- incomplete: a store, a broker or another service did not answer, and everything else was done;
- failed: anything else, such as a data check that does not hold.

A control database that goes away is one of those that do not answer. The run is closed over a new connection if there is one;
else it stays open, and the next run takes it over once it has been silent for long enough. So does a run that was killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any, Generic, Literal, TypeVar

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.control.speaker import person
from backstop.model.errors import (
    AlertsUndelivered,
    BackstopError,
    ConfigurationError,
    RunError,
    RunLost,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.records import Counts
from backstop.runs.run import (
    DEAD_AFTER,
    EndState,
    Run,
    add_counts,
    close_run,
    keep_alive,
    open_run,
    require_schema,
)

T = TypeVar("T")
GoesOn = Literal["never", "when_away", "always"]
"""Whether the steps after one that failed are done: not, if something only did not answer, or whatever happened."""
RunCheck = Callable[[Run, Sequence[str]], None]
"""Runs suites of data checks over a run, side by side; raises AuditFailed when one does not hold, after all have run."""


@dataclass(slots=True)
class Work(Generic[T]):
    """A run in one process. `input`: what the duty's steps need beside the run's scope, and where they put what they find."""

    duty: Duty[T]
    settings: Settings
    connections: Connections
    control: Any
    run: Run
    input: T
    due: int | None = None
    """None: nothing is due, or nobody counted."""
    counts: Counts = field(default_factory=Counts)
    """What was done in this process; the run's own counts are in the control database."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when another run has taken this one over."""

    def record(self, counts: Mapping[str, int]) -> None:
        """Adds to the run's counts, and commits."""
        if counts:
            add_counts(self.control, self.run, counts)
            self.counts += counts

    @property
    def parts(self) -> tuple[Settings, Connections, Any, Run]:
        return self.settings, self.connections, self.control, self.run

    def connect(self) -> Any:
        return connect(self.settings, self.connections)


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One thing that a duty does. It commits what it did, may be done again, and raises Unavailable after all else was done."""

    name: str
    do: Callable[[Work[T]], Counts | None]
    """Returns what it did; None: it said so with `record`."""
    goes_on: GoesOn = "never"
    in_dry_run: bool = True
    when_idle: bool = False
    """Done also when nothing is due."""
    counts_itself: bool = False
    """It adds to the run's counts where it commits."""


@dataclass(frozen=True, slots=True)
class Check:
    """One suite of data checks; in a dry run only where that writes what is checked. Suites that follow one another are run
    together."""

    name: str
    goes_on: GoesOn = "never"
    in_dry_run: bool = False
    when_idle: bool = False


@dataclass(frozen=True, slots=True)
class Duty(Generic[T]):
    """`unaffected` and `next_step`: the second and third part of the error when the control database goes away."""

    name: str
    steps: tuple[Step[T] | Check, ...]
    unaffected: str
    next_step: str = "Bring it back; the next run goes on."
    due: Callable[[Work[T]], int | None] | None = None
    """How much there is to do, which it records; None: nothing, and only steps with `when_idle` are done."""
    counts_first: bool = True
    """False: in one process it costs less to walk than to count."""
    people: Callable[[T, bool], bool] = lambda _, dry_run: dry_run
    """Whether a person's own login walks it, by its input and whether the run is dry."""
    instead: str = "Use --dry-run, where the command has it; the scheduled duty does the rest."
    """What a person is told to do who may not."""
    unread: Callable[[Work[T]], Unavailable | None] | None = None
    """What the run could not read, as its steps wrote it into the control database; asked when the run ends."""

    def step(self, name: str) -> Step[T]:
        return next(one for one in self.steps if isinstance(one, Step) and one.name == name)

    def includes(self, name: str, *, dry_run: bool) -> bool:
        """Whether a run does the step or check of this name."""
        return any(one.name == name and (one.in_dry_run or not dry_run) for one in self.steps)

    def works_when_idle(self) -> bool:
        return any(one.when_idle for one in self.steps)


def walk_duty(
    duty: Duty[T],
    settings: Settings,
    connections: Connections,
    given: T,
    *,
    scope: str = "*",
    dry_run: bool = False,
    no_send: bool = False,
    dead_after: timedelta = DEAD_AFTER,
    check: RunCheck | None = None,
) -> Work[T]:
    """The whole duty in this process. `check` null: no data checks.

    Raises RunRefused while another run of the scope lives, ConfigurationError for a person's login that may not walk it: both
    before a run is opened. Whatever else went wrong is raised after the run was closed with it:
    what made the run fail, else Unavailable with everything that did not answer.
    """
    control = connect(settings, connections)
    try:
        with control_answers(duty, settings):
            _require_duty_login(duty, control, given, dry_run)
            run = open_run(
                control,
                duty.name,
                scope,
                settings,
                dry_run=dry_run,
                dead_after=dead_after,
                no_send=no_send,
            )
        work = Work(duty, settings, connections, control, run, given)
        errors: list[BaseException] = []
        try:
            with keep_alive(work.connect, run) as work.lost:
                _walk(work, check, errors)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run ends with it
            errors.append(error)
        _, worst = close(work, errors)
        if worst is not None:
            raise worst
        return work
    finally:
        control.close()


def open_due(
    duty: Duty[T],
    settings: Settings,
    connections: Connections,
    control: Any,
    given: T,
    *,
    scope: str = "*",
    dry_run: bool = False,
    no_send: bool = False,
) -> tuple[Work[T], Unavailable | None] | None:
    """Opens a run for other processes to go on with, and counts what is due. Null: nothing, and the run is closed as done.

    With the run comes what did not answer, where a duty has something to do all the same. Raises RunRefused, and what counting
    raises, after the run was closed with it.
    """
    with control_answers(duty, settings):
        run = open_run(control, duty.name, scope, settings, dry_run=dry_run, no_send=no_send)
    work = Work(duty, settings, connections, control, run, given)
    try:
        with keep_alive(work.connect, run) as work.lost, control_answers(duty, settings):
            away = _count(work)
            if away is not None and not duty.works_when_idle():
                raise away
    except BaseException as error:
        close(work, [error])
        raise
    if duty.due is not None and work.due is None and not duty.works_when_idle():
        close(work, [])
        return None
    return work, away


def do_step(work: Work[T], name: str) -> None:
    """One step of an opened run; nothing where a dry run leaves it out."""
    if work.duty.includes(name, dry_run=work.run.dry_run):
        with control_answers(work.duty, work.settings):
            _do(work, work.duty.step(name))


def state_of(errors: Sequence[BaseException]) -> EndState:
    """How a run ends that met these errors."""
    if not errors:
        return "done"
    # Not "incomplete": nobody was told, whatever else was done.
    return (
        "incomplete"
        if all(_is_away(error) and not isinstance(error, AlertsUndelivered) for error in errors)
        else "failed"
    )


def close(
    work: Work[Any], errors: Sequence[BaseException], counts: Mapping[str, int] | None = None
) -> tuple[EndState, BaseException | None]:
    """Ends the run as `state_of` says; returns that, and the worst of the errors: of what was `unread`, too.

    Where the run cannot be closed it raises the worst error, else what kept it from being closed.
    """
    found = list(errors)
    if work.duty.unread is not None and state_of(found) != "failed" and not work.control.closed:
        try:
            with control_answers(work.duty, work.settings):
                missed = work.duty.unread(work)
        except Unavailable as error:
            missed = error
        found += [] if missed is None else [missed]
    state, worst = state_of(found), _worst(found)
    _close_run(work, state, counts or Counts(), worst)
    return state, worst


@contextmanager
def control_answers(duty: Duty[Any], settings: Settings) -> Iterator[None]:
    """Raises StoreUnavailable where the control database goes away. Drivers of other databases raise errors of ours."""
    try:
        yield
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        why = str(error).strip().splitlines()
        raise StoreUnavailable(
            f"The control database ({settings.control}) did not answer: {why[0] if why else 'no reason'}.",
            unaffected=duty.unaffected,
            next_step=duty.next_step,
        ) from error


def _require_duty_login(duty: Duty[T], control: Any, given: T, dry_run: bool) -> None:
    require_schema(control)
    login = person(control)
    if login is not None and not duty.people(given, dry_run):
        raise ConfigurationError(
            f"The login {login} does not run {duty.name}{' --dry-run' if dry_run else ''}:"
            " that writes what the duties' login alone may write.",
            unaffected="Nothing was read or changed.",
            next_step=duty.instead,
        )


def _walk(work: Work[T], check: RunCheck | None, errors: list[BaseException]) -> None:
    """Adds to `errors` what did not stop the walk; raises what did."""
    duty, idle = work.duty, False
    with control_answers(duty, work.settings):
        if duty.due is not None and duty.counts_first:
            away = _count(work)
            idle = work.due is None
            errors += [] if away is None else [away]
        for _, together in groupby(duty.steps, key=_kind):
            steps = [
                one
                for one in together
                if (one.when_idle or not idle) and (one.in_dry_run or not work.run.dry_run)
            ]
            checks = [one.name for one in steps if isinstance(one, Check)]
            try:
                if checks and check is not None:
                    work.run.phase.begin(f"check {', '.join(checks)}")
                    check(work.run, checks)
                for one in steps:
                    if isinstance(one, Step):
                        _do(work, one)
            except (psycopg2.OperationalError, psycopg2.InterfaceError, RunError):
                raise
            except Exception as error:
                goes_on = steps[0].goes_on
                if goes_on == "never" or (goes_on == "when_away" and not _is_away(error)):
                    raise
                errors.append(error)
                work.control.rollback()


def _kind(one: Step[Any] | Check) -> tuple[str, str]:
    """What is done by itself has its name; checks that stop the same are one kind."""
    return ("check", one.goes_on) if isinstance(one, Check) else ("step", one.name)


def _do(work: Work[T], step: Step[T]) -> None:
    work.run.phase.begin(step.name)
    done = step.do(work)
    if done and step.counts_itself:
        work.counts += done
    elif done:
        work.record(done)


def _count(work: Work[Any]) -> Unavailable | None:
    """Counts what is due, where a duty does; returns what did not answer."""
    work.run.phase.begin("count what is due")
    try:
        work.due = work.duty.due(work) if work.duty.due is not None else None
    except Unavailable as error:
        return error
    return None


def _is_away(error: BaseException) -> bool:
    return isinstance(error, Unavailable)


def _worst(errors: Sequence[BaseException]) -> BaseException | None:
    """What made the run fail, else all that did not answer, as one error."""
    # Whoever interrupts the process is heard first.
    failures = sorted(
        (error for error in errors if not _is_away(error)),
        key=lambda error: isinstance(error, Exception),
    )
    if failures or len(errors) < 2:
        return next(iter(failures or errors), None)
    missed = [error for error in errors if isinstance(error, BackstopError)]
    kinds = {type(error) for error in missed}
    return (kinds.pop() if len(kinds) == 1 else Unavailable)(
        " ".join(dict.fromkeys(error.what for error in missed)),
        unaffected=missed[-1].unaffected,
        next_step=missed[-1].next_step,
    )


def _close_run(
    work: Work[Any], state: EndState, counts: Mapping[str, int], worst: BaseException | None
) -> None:
    try:
        work.control.rollback()
        close_run(work.control, work.run, state, counts, error=worst)
        return
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        broken = error
    work.control.close()  # what it held is free, if the server heard of it
    try:
        with closing(work.connect()) as connection:
            close_run(connection, work.run, state, counts, error=worst)
        return
    except (psycopg2.OperationalError, psycopg2.InterfaceError, StoreUnavailable, RunLost):
        pass  # it stays open, and is taken over once it has been silent for long enough
    if worst is not None:
        raise worst
    with control_answers(work.duty, work.settings):
        raise broken
