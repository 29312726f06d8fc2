"""One probe for each database and broker: is there something to do for a duty? Bounded, over a connection that stays open.

A probe reads what the duty's own `due` counts, and only whether there is any of it. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from backstop.alerts.list_alerts import any_waiting
from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.decisions.questions import any_to_ask
from backstop.due.starts import DutySeen
from backstop.leases.redis_exchange import RedisExchange
from backstop.model.errors import Unavailable
from backstop.model.records import LATEST
from backstop.reconcile.count_due import any_to_revisit
from backstop.resend.count_due import any_due
from backstop.runs.run import DEAD_AFTER
from backstop.sql.named import load
from backstop.stores.open import open_leases, open_stub_store
from backstop.stores.protocol import Scope
from backstop.sweep.count_ended import any_ended, any_foreign_ended, any_guard_ended
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.tell_people import any_failing
from backstop.triage.causes.classify import rules_of
from backstop.triage.count_due import any_dead_letter, any_stored
from backstop.triage.drain.drain import groups_of
from backstop.triage.drain.guard_reader import guard_reader
from backstop.watch.due_trigger import note_looked

_SQL = load("backstop.due", "queries.sql")
DUTIES = ("reconcile", "resend", "sweep", "triage", "watch", "deliver_alerts", "ask_people")
MINUTE = timedelta(minutes=1)
OPEN_SECONDS = 600.0
"""So long a connection is used before its URL is asked for again: the place may have moved while its old server still answers."""
SLOW = timedelta(minutes=10)
"""How far apart runs of a duty begin that has more to do each time, where no setting says it."""

Apart = Mapping[str, timedelta]
"""By duty that has something to do: how far apart its runs may begin."""


@dataclass(slots=True)
class Asked:
    """What the control database says besides: its instant, and each duty's newest run."""

    now: datetime
    runs: dict[str, DutySeen]


Open = Callable[[ExitStack, Connections], Callable[[datetime], Apart]]
"""Opens a place for the life of the stack; returns what asks it."""


@dataclass(slots=True)
class Probe:
    """One place to look at. `open` is entered by the first look and left by `close`; one thread at a time."""

    name: str
    serves: frozenset[str]
    open: Open
    connections: Connections
    every: float = 0.5
    """Seconds between two looks at least."""
    _stack: ExitStack | None = None
    _ask: Callable[[datetime], Apart] | None = None
    _opened: float = 0.0

    def look(self, now: datetime) -> Apart:
        """What is due at this instant of the control database. Raises whatever the place raises; the next look opens it again."""
        try:
            if monotonic() - self._opened >= OPEN_SECONDS:
                self.close()
            if self._ask is None:
                self._opened, self._stack = monotonic(), ExitStack()
                self._ask = self.open(self._stack, self.connections.renewed())
            return self._ask(now)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        stack, self._stack, self._ask = self._stack, None, None
        if stack is not None:
            stack.close()


class ControlProbe:
    """The control database: what its own rows say is due, and how the duties' runs are."""

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self._settings, self._connections = settings, connections
        self._stack = ExitStack()
        self._connection: object = None
        self._opened = 0.0
        self._version = rules_of(settings).version

    def look(self, *, silent: Mapping[str, float] | None) -> tuple[Asked, Apart]:
        """`silent`: write down that somebody looks, and for how many seconds which places have not answered; None: write nothing.
        Raises what the database raises."""
        try:
            if monotonic() - self._opened >= OPEN_SECONDS:
                self.close()
            if self._connection is None:
                self._opened = monotonic()
                self._connection = connect(self._settings, self._connections.renewed())
                self._stack.callback(self._connection.close)
            return self._read(self._connection, silent)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection = None
        self._stack.close()

    def _read(self, control: object, silent: Mapping[str, float] | None) -> tuple[Asked, Apart]:
        settings = self._settings
        with control, control.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(_SQL["clock"])
            (now,) = cursor.fetchone()
            cursor.execute(_SQL["runs"], {"duties": list(DUTIES), "dead_after": DEAD_AFTER})
            runs = {duty: DutySeen(None, began, alive) for duty, began, alive in cursor.fetchall()}
            cursor.execute(_SQL["undecided"])
            (is_undecided,) = cursor.fetchone()
        due: dict[str, timedelta] = {}
        if any_due(control, settings):
            due["resend"] = MINUTE
        if any_stored(control, self._version):
            due["triage"] = MINUTE
        if any_to_revisit(control):
            due["reconcile"] = max(SLOW, settings.policy_for().reconcile_interval)
        if settings.channels() and any_waiting(control):
            due["deliver_alerts"] = MINUTE
        elif settings.channels() and is_undecided:
            due["deliver_alerts"] = SLOW  # a case that nobody decides is told again
        if any_to_ask(control, settings.people.questions, settings.teams_by_topic()):
            due["ask_people"] = MINUTE
        if silent is not None:
            # Last: a look that fails is none, and others stand in.
            with control, control.cursor() as cursor:  # type: ignore[attr-defined]
                note_looked(cursor, silent)
        return Asked(now, runs), due


def probes_of(settings: Settings, connections: Connections) -> Iterator[Probe]:
    """One for each shard, consumer store, Redis that holds leases by itself, store of other programs, and broker."""
    policy = settings.policy_for()
    judged, swept = policy.reconcile_interval, policy.sweep_interval

    def shard(name: str) -> Open:
        def opened(stack: ExitStack, connections: Connections) -> Callable[[datetime], Apart]:
            stubs = stack.enter_context(open_stub_store(settings, connections, name))

            def ask(now: datetime) -> Apart:
                if not stubs.count_due(LATEST, Scope(), 1):
                    return {}  # nothing is promised and not settled
                due = {"watch": MINUTE}
                if stubs.count_due(now, Scope(), 1):
                    due["reconcile"] = judged
                return due

            return ask

        return opened

    def store(name: str) -> Open:
        def opened(stack: ExitStack, connections: Connections) -> Callable[[datetime], Apart]:
            leases = stack.enter_context(open_leases(settings, connections, name))

            def ask(_: datetime) -> Apart:
                if any_ended(settings, leases, name):
                    return {"sweep": swept}
                # A message that goes on failing has its case since the first sweep.
                return {"sweep": max(swept, SLOW)} if any_failing(settings, leases, name) else {}

            return ask

        return opened

    def guard(name: str) -> Open:
        def opened(stack: ExitStack, connections: Connections) -> Callable[[datetime], Apart]:
            its = settings.redis_guards[name]
            exchange = RedisExchange(connections.url(its.redis), cluster=its.cluster)
            stack.callback(exchange.close)
            return lambda _: {"sweep": swept} if any_guard_ended(exchange, name) else {}

        return opened

    def foreign(name: str) -> Open:
        def opened(stack: ExitStack, connections: Connections) -> Callable[[datetime], Apart]:
            leases = open_foreign(settings, connections, name)
            stack.callback(leases.close)
            return lambda _: {"sweep": swept} if any_foreign_ended(leases) else {}

        return opened

    def broker(name: str, groups: list[str]) -> Open:
        def opened(stack: ExitStack, connections: Connections) -> Callable[[datetime], Apart]:
            its = stack.enter_context(guard_reader(open_broker, settings, connections, name))

            def ask(_: datetime) -> Apart:
                try:
                    return {"triage": MINUTE} if any_dead_letter(its, groups) else {}
                except Unavailable:
                    guard_reader(
                        its.clock
                    )  # raises when it is away; what it does not give of a group or queue each run names
                    return {}

            return ask

        return opened

    sweep = frozenset({"sweep"})
    for name in settings.producers:
        yield Probe(f"shard {name}", frozenset({"reconcile", "watch"}), shard(name), connections)
    for name in settings.own_consumers():
        yield Probe(f"store {name}", sweep, store(name), connections)
    for name in settings.redis_guards:
        yield Probe(f"redis of {name}", sweep, guard(name), connections)
    for name in settings.foreign_leases:
        every = swept.total_seconds()
        yield Probe(f"foreign {name}", sweep, foreign(name), connections, every)
    if groups := groups_of(settings, None):
        for name in settings.brokers:
            yield Probe(
                f"broker {name}", frozenset({"triage"}), broker(name, groups), connections, 1.0
            )
