"""Guard, sweep and three workers in any order, with crashes, late workers, late notes and lost Redis: one holder, one effect.

With one protection taken away the same machine must find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha1
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from backstop.leases import postgresql, redis_guard
from backstop.leases.front import Front
from backstop.leases.lease import Arrival, Done
from backstop.leases.redis_exchange import Script
from backstop.stores.postgresql import leases as postgresql_leases
from backstop.sweep import redis_bucket
from client_world import Database, postgres, valkey  # noqa: F401
from committed import close_sessions
from guard_machine import GuardAndSweep, Stage
from guard_world import KINDS

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
Switch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def stages(postgres: Any, valkey: Any) -> Iterator[Callable[[str], Stage]]:
    opened: list[Stage] = []

    def stage(kind: str) -> Stage:
        opened.append(Stage(kind, database, valkey.url()))
        return opened[-1]

    database = Database(postgres.admin_dsn("consumer"))
    database.run("ALTER DATABASE consumer SET synchronous_commit = off")
    close_sessions()  # one that is open goes by what was set before
    database.run(
        "TRUNCATE consumer_log, effect; CREATE INDEX IF NOT EXISTS effect_of ON effect (consumer_group)"
    )
    yield stage
    for one in opened:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_holder_one_effect_and_nothing_stuck_whatever_happens(
    stages: Callable[[str], Stage], kind: str
) -> None:
    stage = stages(kind)
    run_state_machine_as_test(lambda: GuardAndSweep(stage), settings=SETTINGS)


def without(module: Any, name: str, statement: str, *changes: tuple[str, str]) -> Switch:
    """A named statement with something of it changed."""

    def switch(patch: pytest.MonkeyPatch) -> None:
        statements = dict(getattr(module, name))
        for old, new in changes:
            assert old in statements[statement], old
            statements[statement] = statements[statement].replace(old, new)
        patch.setattr(module, name, statements)

    return switch


def without_in_script(module: Any, name: str, script: str, old: str, new: str) -> Switch:
    def switch(patch: pytest.MonkeyPatch) -> None:
        changed = Script(script)
        assert old in changed.text, old
        changed.text = changed.text.replace(old, new)
        changed.sha = sha1(changed.text.encode(), usedforsecurity=False).hexdigest().encode()
        patch.setattr(module, name, changed)

    return switch


def done_for_everybody(patch: pytest.MonkeyPatch) -> None:
    """A front that calls done what is held."""
    plain = Front._read

    def read(self: Front, text: bytes, arrival: Arrival, now: int) -> Any:
        return Done() if text[:1] == b"C" else plain(self, text, arrival, now)

    patch.setattr(Front, "_read", read)


def sweep_of_all(patch: pytest.MonkeyPatch) -> None:
    """It looks twice whether a lease has ended, at its choice and at its change: both are gone."""
    for statement in ("expired", "reclaim", "take_back"):
        without(
            postgresql_leases,
            "_SQL",
            statement,
            ("l.lease_expires_at <= clock_timestamp()", "true"),
        )(patch)


OURS = "AND l.owner_token = g.token AND l.state IN ('CONSUMING', 'EXPIRED')"
WEAKENED: dict[str, tuple[str, str, Switch]] = {
    "complete without the token": (
        "database",
        "complete: taken from one",
        without(
            postgresql,
            "_SQL",
            "complete",
            (OURS, ""),
            ("l.message_id, l.owner_token\n", "l.message_id, g.token AS owner_token\n"),
            ("AND l.owner_token = h.owner_token", ""),
            ("RETURNING l.owner_token", "RETURNING h.owner_token"),
        ),
    ),
    "begin without looking at the lease": (
        "database",
        "two holders",
        without(
            postgresql, "_SQL", "begin", ("l.lease_expires_at <= statement_timestamp()", "true")
        ),
    ),
    "begin of what is done": (
        "front",
        "what is done is begun again",
        without(
            postgresql,
            "_SQL",
            "begin",
            ("('FAILED', 'EXPIRED')", "('FAILED', 'EXPIRED', 'CONSUMED')"),
        ),
    ),
    "begin that never takes over": (
        "database",
        "nobody is at work|is stuck",
        without(
            postgresql, "_SQL", "begin", ("l.lease_expires_at <= statement_timestamp()", "false")
        ),
    ),
    "sweep of leases that run": ("database", "a lease that runs was taken back", sweep_of_all),
    "done before it is": ("front", "called done", done_for_everybody),
    "redis: begin without looking at the lease": (
        "redis",
        "two holders",
        without_in_script(redis_guard, "_BEGIN", "begin", "elseif left > 0", "elseif false"),
    ),
    "redis: complete without the token": (
        "redis",
        "complete: taken from one",
        without_in_script(
            redis_guard, "_COMPLETE", "complete", "sub(record, 35, 66) == token", "true"
        ),
    ),
    "redis: a sweep that does not compare": (
        "redis",
        "a record is not as its owner left it",
        without_in_script(redis_bucket, "_SETTLE", "settle", "if record ~= seen", "if false"),
    ),
}
"""Which store, what the machine says then, and what is taken away."""


@pytest.mark.parametrize("weakness", WEAKENED)
def test_with_one_protection_taken_away_the_machine_finds_it(
    stages: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch, weakness: str
) -> None:
    kind, found, switch = WEAKENED[weakness]
    switch(monkeypatch)
    stage = stages(kind)
    bounded = settings(
        SETTINGS, max_examples=300, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(AssertionError, match=found):
        run_state_machine_as_test(lambda: GuardAndSweep(stage), settings=bounded)
