"""Counts, in milliseconds, what a triage run would find to do, so that one with nothing to do starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import Broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import BrokerUnavailable, StoreUnavailable, Unavailable
from backstop.runs.run import Run
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.causes.classify import rules_of
from backstop.triage.drain.drain import groups_of
from backstop.triage.drain.guard_reader import guard_reader
from backstop.triage.drain.list_queues import list_queues

_SQL = load("backstop.triage", "count_due.sql")
COUNTED = 10_000
"""Of each kind: more are as good as this many. More than postpone_unchanged looks at, so that what it leaves is counted."""


@dataclass(frozen=True, slots=True)
class DueDeadLetters:
    """`queues`: dead-letter queues with at least one letter; `silent`: brokers and queues that did not answer, and why.
    Letters and replays are counted up to COUNTED of each kind."""

    queues: tuple[str, ...]
    to_classify: int
    to_decide: int
    replays_ended: int
    silent: tuple[str, ...]

    @property
    def total(self) -> int:
        return len(self.queues) + self.to_classify + self.to_decide + self.replays_ended

    def require_reachable(self) -> None:
        """Raises Unavailable when a broker did not say whether it has letters."""
        if self.silent:
            raise BrokerUnavailable(
                f"The dead-letter queues could not be read: {'; '.join(self.silent)}.",
                unaffected="Dead letters are with their broker, and nothing was decided about them.",
                next_step="Bring it back; the next run empties its queues.",
            )


def count_due(
    settings: Settings, connections: Connections, control: Any, run: Run
) -> DueDeadLetters:
    """Looks at the first letter of each queue, takes none, and counts what is stored."""
    queues: list[str] = []
    silent: list[str] = []
    groups = groups_of(settings, topics_of(run.scope))
    for name in settings.brokers if groups else ():
        try:
            with guard_reader(open_broker, settings, connections, name) as broker:
                listed = list_queues(broker, groups)
                silent += [f"broker {name}, group {g}: {why}" for g, why in listed.missed.items()]
                for queue in listed.queues:
                    try:
                        queues += [queue] if guard_reader(_has_dead_letters, broker, queue) else []
                    except Unavailable as error:
                        silent.append(f"broker {name}, {queue}: {error.what}")
        except Unavailable as error:
            silent.append(f"broker {name}: {error.what}")
    return DueDeadLetters(tuple(queues), *count_stored(settings, control, run), tuple(silent))


def count_stored(
    settings: Settings, control: Any, run: Run, at_most: int = COUNTED
) -> tuple[int, int, int]:
    """Letters to classify, letters to decide, replays whose request has ended; of each at most so many."""
    with control, control.cursor() as cursor:
        cursor.execute(
            _SQL["due"],
            {
                "topics": topics_of(run.scope),
                "version": rules_of(settings).version,
                "limit": at_most,
            },
        )
        to_classify, to_decide, ended = cursor.fetchone()
    return to_classify, to_decide, ended


def any_stored(control: Any, version: str) -> bool:
    """Whether a run over every topic would find a stored letter to classify by the rules of this version or to decide, or a
    replay that ended."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["due"], {"topics": None, "version": version, "limit": 1})
        return any(cursor.fetchone())


def any_dead_letter(broker: Broker, groups: Sequence[str]) -> bool:
    """Whether a dead-letter queue of these groups holds a letter; takes none. Raises Unavailable where none is known to hold one and
    not every one answered."""
    listed = list_queues(broker, groups)
    missed: Unavailable | None = listed.error
    for queue in listed.queues:
        try:
            if guard_reader(_has_dead_letters, broker, queue):
                return True
        except Unavailable as error:
            missed = missed or error
    if missed is not None:
        raise missed
    return False


def unread_logs(control: Any, run: Run) -> Unavailable | None:
    """What the run's classification could not read: the letters that needed it wait."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["unread"], {"run_id": run.run_id})
        missed = [detail for (detail,) in cursor.fetchall()]
    if not missed:
        return None
    return StoreUnavailable(
        f"Not every log could be read: {'; '.join(missed)}",
        unaffected="The dead letters that need it wait, unclassified; the others were classified.",
        next_step="Bring it back; the next run classifies them.",
    )


def _has_dead_letters(broker: Any, queue: str) -> bool:
    reader = broker.open_dead_letters(queue)
    try:
        return bool(reader.read(1))
    finally:
        reader.close()
